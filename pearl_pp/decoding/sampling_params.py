"""What one request asks of sampling: validated once, here, and frozen afterwards."""

import difflib
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ValidationInfo

from pearl_pp.errors import UserError

# Below this, logits divided by the temperature could overflow float32 and turn into NaN.
MIN_TEMPERATURE = 1e-6


def _as_tuple(stop: object) -> object:
    return (stop,) if isinstance(stop, str) else stop


class SamplingParams(BaseModel):
    """The sampling options of one request; names and meanings are those of transformers' `generate`.

    temperature: 0 is greedy. top_k: 0 is off; top_p: 1 is off; min_p: 0 is off; repetition_penalty: 1 is off.
    seed: None lets the engine choose one. max_new_tokens, min_new_tokens: in tokens, without the prompt;
    before min_new_tokens neither an end-of-sequence token nor a stop string ends the text.
    stop: strings that end the text, themselves left out of it. logprobs: return log-probabilities as well.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0, allow_inf_nan=False)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0, allow_inf_nan=False)
    repetition_penalty: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    max_new_tokens: int = Field(default=128, ge=0)
    min_new_tokens: int = Field(default=0, ge=0)
    stop: Annotated[tuple[str, ...], BeforeValidator(_as_tuple)] = ()
    ignore_eos: bool = False
    logprobs: bool = False

    @field_validator("temperature")
    @classmethod
    def _representable(cls, temperature: float) -> float:
        if 0 < temperature < MIN_TEMPERATURE:
            raise PydanticCustomError("range", "must be 0 (greedy) or at least {least}", {"least": MIN_TEMPERATURE})
        return temperature

    @field_validator("min_new_tokens")
    @classmethod
    def _not_above_max(cls, min_new_tokens: int, info: ValidationInfo) -> int:
        max_new_tokens = info.data.get("max_new_tokens")
        if max_new_tokens is not None and min_new_tokens > max_new_tokens:
            raise PydanticCustomError("range", "is more than --max-new-tokens {max}", {"max": max_new_tokens})
        return min_new_tokens

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if "" in stop:
            raise PydanticCustomError("empty", "a stop string must not be empty")
        if any("\ud800" <= character <= "\udfff" for text in stop for character in text):
            raise PydanticCustomError("utf8", "a stop string must be UTF-8 text")
        return stop

    @property
    def greedy(self) -> bool:
        """True where the text is the target's argmax at every position."""
        return self.temperature == 0.0


def sampling_params(**options: object) -> SamplingParams:
    """Build SamplingParams from a user's options (`top_p` or `top-p`).

    Raises UserError with one line that names the flag and its value; an unknown option names the nearest one.
    """
    try:
        return SamplingParams.model_validate({name.replace("-", "_"): value for name, value in options.items()})
    except ValidationError as error:
        raise _user_error(error.errors()[0]) from None


def _user_error(error: ErrorDetails) -> UserError:
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        nearest = difflib.get_close_matches(name, SamplingParams.model_fields, n=1, cutoff=0.5)
        hint = f"; did you mean {_flag(nearest[0])}?" if nearest else ""
        return UserError(_flag(name), None, f"unknown sampling option{hint}")
    value = error["input"]
    shown = repr(value) if isinstance(value, str) else value
    reason = error["msg"].replace("Input should be", "must be").splitlines()[0]
    return UserError(_flag(name), shown, reason)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
