"""RunConfig: every option of a run once, with its type, range, default and help. No torch in here."""

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from pearl_pp.config.reading import first_user_error, nearest, one_line
from pearl_pp.config.strategies import STRATEGIES
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError

PRESETS = ("auto", "dedicated", "single", "hop", "pipelined", "sharded")

AutoOrCount = Literal["auto"] | Annotated[int, Field(ge=1)]
AutoOrGamma = Literal["auto"] | Annotated[int, Field(ge=1, le=1000)]  # far more than any draft gets right in a row
PositiveInt = Annotated[int, Field(ge=1)]
Handoff = Literal["auto", "ship", "catchup"]
PositiveFloat = Annotated[float, Field(gt=0)]

# Names that users of vLLM, llama.cpp and PEARL's own code know already; the same in flags, YAML and Python.
ALIASES: dict[str, str] = {
    "model": "target",
    "target_model": "target",
    "draft_model": "draft",
    "model_draft": "draft",
    "speculative_model": "draft",
    "num_speculative_tokens": "gamma",
    "draft_max": "gamma",
    "max_tokens": "max_new_tokens",
    "n_predict": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "temp": "temperature",
    "repeat_penalty": "repetition_penalty",
    "ctx_size": "max_model_len",
}


_PLACEMENT_SUFFIXES = (".yaml", ".yml")


class RunConfig(SamplingParams):
    """Everything that decides what a run does; the sampling options are the defaults of its prompts."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)

    target: str | None = Field(
        default=None, description="target model, a Hugging Face folder or synthetic:SHAPE (default: the embedded pair)"
    )
    draft: str | None = Field(
        default=None, description="draft model, a folder with the target's tokenizer or the target's synthetic:SHAPE"
    )
    trust_remote_code: bool = Field(default=False, description="run Python code that comes with a model folder")
    emulate: str | None = Field(
        default=None, description="no models: passes sleep for the times of a PROFILE.yaml, all else is real"
    )

    prompt: tuple[str, ...] = Field(default=(), description="a prompt; repeatable (default: the built-in prompts)")
    prompts: str | None = Field(
        default=None, description="FILE.txt (a prompt a line), FILE.jsonl, or - (standard input)"
    )
    chat: bool = Field(default=False, description="put each prompt into the tokenizer's chat template")

    strategy: Literal["pearl", "sd", "ar"] = Field(
        default="pearl", description="PEARL, plain speculative decoding, or the target alone"
    )
    placement: str = Field(default="auto", description=f"where the draft works: {', '.join(PRESETS)}, or a FILE.yaml")
    gamma: AutoOrGamma = Field(default="auto", description="tokens drafted per verify interval; with sd, per round")
    fill: AutoOrCount = Field(default="auto", description="slots after a restart in which a chunk may enter (F)")
    verify_interval: AutoOrCount = Field(default="auto", description="slots between two chunks after the fill (p)")
    layer_split: tuple[PositiveInt, ...] | None = Field(default=None, description="target layers of each stage")
    handoff: Handoff = Field(default="auto", description="how a replica is brought up to date")
    prefill_piece: AutoOrCount = Field(
        default="auto", description="tokens of a piece of the prompt; as many as the prompt has: one piece"
    )
    no_pre_verify: bool = Field(default=False, description="ablation: no chunk before the first window is full")
    no_post_verify: bool = Field(default=False, description="ablation: no drafting while a window is verified")
    verify: Literal["rejection", "coupled"] = Field(default="rejection", description="rule for sampled tokens")

    max_model_len: PositiveInt | None = Field(default=None, description="room for prompt and output, in tokens")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(default="auto", description="of the weights")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="where the models run")
    memory_gb: tuple[PositiveFloat, ...] | None = Field(default=None, description="memory of each rank, in GB")
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1, description="share of a GPU's memory to use")
    timeout: float = Field(
        default=120.0, gt=0, le=604_800, description="longest wait for a message of another rank, seconds"
    )

    # `json` would hide a method of pydantic's; the option, the YAML key and the record say json.
    json_file: str | None = Field(default=None, alias="json", description="write the results here after each request")
    trace: str | None = Field(default=None, description="write a Chrome trace here")
    quiet: bool = Field(default=False, description="print the texts only")

    @field_validator("*", mode="before")
    @classmethod
    def _no_number_from_bool(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool) and cls.model_fields[info.field_name or ""].annotation is not bool:
            raise ValueError("takes a value, not true or false")
        return value

    @field_validator("target", "draft", "emulate", "prompts", "placement", "json_file", "trace", mode="before")
    @classmethod
    def _path_as_text(cls, value: object) -> object:
        path = os.fspath(value) if isinstance(value, os.PathLike) else value
        if isinstance(path, str) and "\0" in path:
            raise ValueError("must have no null character in it: no file's name has one")
        return path

    @field_validator("layer_split", "memory_gb", mode="before")
    @classmethod
    def _comma_list(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(","))
        return (value,) if isinstance(value, int | float) else value

    @field_validator("prompt", "stop", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("placement")
    @classmethod
    def _preset_or_file(cls, value: str) -> str:
        if value in PRESETS or value.endswith(_PLACEMENT_SUFFIXES):
            return value
        raise ValueError(f"must be {', '.join(PRESETS)} or a FILE.yaml{nearest(value, PRESETS)}")

    @model_validator(mode="after")
    def _models_fit_strategy(self) -> "RunConfig":
        if self.target is None and self.draft is not None:
            raise UserError("--draft", self.draft, "needs --target too")
        if self.target is not None and self.draft is None and STRATEGIES[self.strategy].drafts:
            raise UserError("--target", self.target, "needs --draft too, or --strategy ar")
        return self

    @model_validator(mode="after")
    def _emulation_has_no_models(self) -> "RunConfig":
        """What an emulated run cannot honour is refused, not ignored."""
        if self.emulate is None:
            return self
        for option, value, is_refused, reason in (
            ("--target", self.target, self.target is not None, "the profile takes the target's place"),
            ("--draft", self.draft, self.draft is not None, "the profile takes the draft's place"),
            ("--device", self.device, self.device == "cuda", "nothing is computed"),
            ("--logprobs", None, self.logprobs, "there are no probabilities"),
            ("--trust-remote-code", None, self.trust_remote_code, "there is no model to bring code"),
            *self._given("nothing is computed", "dtype", "gpu_memory_utilization"),
            *self._given("there are no logits", "top_k", "top_p", "min_p", "repetition_penalty"),
        ):
            if is_refused:
                raise UserError(option, value, f"with --emulate {reason}; leave it out")
        return self

    def _given(self, reason: str, *names: str) -> list[tuple[str, object, bool, str]]:
        """Rows for `_emulation_has_no_models` of options that must keep their defaults."""
        rows = []
        for name in names:
            value = getattr(self, name)
            is_changed = value != type(self).model_fields[name].default
            rows.append((f"--{name.replace('_', '-')}", value, is_changed, reason))
        return rows

    @property
    def mode(self) -> str:
        """Where a run's numbers come from: `real` or `emulated`."""
        return "real" if self.emulate is None else "emulated"

    @property
    def adapts(self) -> bool:
        """Whether the run chooses how it decodes, and changes it on the way; a named placement is run as named."""
        is_ablation = self.no_pre_verify or self.no_post_verify
        return self.placement == "auto" and STRATEGIES[self.strategy].drafts and not is_ablation

    @property
    def names_placement_file(self) -> bool:
        """Whether `placement` is a file, not one of the presets."""
        return self.placement.endswith(_PLACEMENT_SUFFIXES)

    @property
    def leaves_layers_free(self) -> bool:
        """Whether nothing says how many target layers each stage gets."""
        return self.layer_split is None and not self.names_placement_file

    @property
    def run_device(self) -> str:
        """Where tensors live: an emulated run needs no card."""
        return self.device if self.emulate is None else "cpu"

    def sampling_params(self) -> SamplingParams:
        """The sampling options: what a prompt without options of its own gets."""
        return SamplingParams(**{name: getattr(self, name) for name in SamplingParams.model_fields})

    def updated(self, **options: object) -> "RunConfig":
        """A copy with `options` changed, by any of their names; raises UserError."""
        named = {option_name(key, key): value for key, value in options.items()}
        return run_config(self.model_dump(by_alias=True) | named)

    def record(self) -> dict[str, Any]:
        """Every option by its public name, as JSON holds it."""
        return self.model_dump(mode="json", by_alias=True)

    def non_default(self) -> dict[str, Any]:
        """The options that differ from their defaults, by their public names."""
        defaults = RunConfig().record()
        return {name: value for name, value in self.record().items() if value != defaults[name]}


OPTIONS: dict[str, str] = {info.alias or name: name for name, info in RunConfig.model_fields.items()}
"""Public name of every option (`json`), in order, and the field that holds it (`json_file`)."""


def run_config(options: Mapping[str, object], names: Mapping[str, str] | None = None) -> RunConfig:
    """A RunConfig from options by any of their names; raises UserError for the first fault.

    `names` maps a key of `options` to what the user wrote (`--gamma`, `run.yaml: gamma`).
    """
    names = names or {}
    values: dict[str, object] = {}
    shown: dict[str, str] = {}
    for key, value in options.items():
        name = option_name(key, names.get(key, key))
        if name in values:
            raise UserError(names.get(key, key), one_line(value), f"is given twice, also as {shown[name]}")
        values[name] = value
        shown[name] = names.get(key, key)
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise first_user_error(error, shown, values) from None


def option_name(key: str, shown: str) -> str:
    """The public name of the option that `key` means; raises UserError naming the nearest one."""
    name = key.replace("-", "_")
    name = ALIASES.get(name, name)
    if name not in OPTIONS:
        raise UserError(shown, None, f"no such option{nearest(name, [*OPTIONS, *ALIASES])}")
    return name
