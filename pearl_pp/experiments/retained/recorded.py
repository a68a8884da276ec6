"""What a line of `results.jsonl` must hold before it is used: folders of results come from anybody.

What else a record holds is kept and not looked at.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from pearl_pp.config.reading import reason_of
from pearl_pp.experiments.retained.job import ENGINE

_LONGEST_NAME = 1000
_LARGEST = 1e15  # seconds, tokens, bytes: sums of many stay finite, and tables readable
_SMALLEST = 1e-9  # seconds, or tokens a second, that others are divided by: what comes of it stays finite, too


def _none_or_enough(value: float) -> float:
    if 0 < value < _SMALLEST:
        raise ValueError(f"must be 0, or at least {_SMALLEST:g}")
    return value


Name = Annotated[str, Field(max_length=_LONGEST_NAME, strict=True)]
Time = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST, allow_inf_nan=False, strict=True)]  # before or after another
Amount = Annotated[float, Field(ge=0, le=_LARGEST, allow_inf_nan=False, strict=True)]
Divisor = Annotated[Amount, AfterValidator(_none_or_enough)]
Count = Annotated[int, Field(ge=0, le=int(_LARGEST), strict=True)]
Flag = Annotated[bool, Field(strict=True)]


class _Key(BaseModel):
    case: Name
    row: Name
    variant: Name
    phase: Name
    round: Count
    prompt: Name


class _Experiment(BaseModel):
    name: Name
    title: Name | None = None
    digest: Name


class _Machine(BaseModel):
    hostname: Name | None = None
    cpu: Name | None = None
    cores: Count | None = None
    device: Name | None = None
    load: Amount | dict[Name, Amount | None] | None = None


class _Shard(BaseModel):
    rank: Count


class _Placement(BaseModel):
    name: Name
    target: list[Count]
    replicas: list[list[_Shard]]
    fill: Count
    verify_interval: Count
    handoff: Name


class _Plan(BaseModel):
    placement: _Placement
    strategy: Name
    adapts: Flag
    starts_with: Name


class _OfRank(BaseModel):
    target_s: Amount
    draft_s: Amount
    verify_s: Amount
    move_s: Amount
    wait_s: Amount


class _Metrics(BaseModel):
    num_output_tokens: Count
    num_decode_tokens: Count
    decode_s: Divisor
    decode_tokens_per_s: Divisor | None
    ttft_s: Amount | None
    total_s: Divisor = 0.0
    final_mode: Name | None = None
    num_accepted_tokens: Count | None = None
    num_rejected_tokens: Count | None = None
    num_accepted_runs: Count | None = None
    num_target_passes: Count | None = None
    handoff_bytes: Count | None = None
    per_rank: list[_OfRank] | None = None

    @model_validator(mode="after")
    def _ranks_share_a_time(self) -> _Metrics:
        if self.per_rank and "total_s" not in self.model_fields_set:
            raise ValueError("has a per_rank, and no total_s that they share")
        return self


class _Published(BaseModel):
    retained: Amount | None = None
    what: Name | None = None


class _Run(BaseModel):
    key: _Key
    experiment: _Experiment
    machine: _Machine
    mode: Name
    num_ranks: Count
    metrics: _Metrics
    kind: Name = ENGINE
    gamma: Amount | None = None
    plan: _Plan | None = None
    versions: dict[Name, Name | None] | None = None
    notes: list[Name] | None = None
    published: _Published | None = None
    simulated_tokens_per_s: Divisor | None = None
    started_at: Name | None = None


class Recorded(_Run):
    """What tables and pictures are made of."""

    text_equals_oracle: Flag | None = None


class Kept(_Run):
    """What a bench that goes on where it was reads besides: the oracle's text, and whether others are equal to it."""

    text: Annotated[str, Field(strict=True)]
    token_ids: list[Count]
    text_equals_oracle: Flag | None


def fault_of(content: object, schema: type[BaseModel]) -> str | None:
    """What keeps `content` from being of `schema`, in one line: `metrics.decode_s must be a number`; None: nothing."""
    try:
        schema.model_validate(content)
    except ValidationError as error:
        return first_fault(error)
    return None


def first_fault(error: ValidationError) -> str:
    """Where, and what: `metrics.decode_s must be a number`."""
    fault = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in fault["loc"] if not str(part).startswith("function-"))
    return f"{where} {reason_of(fault['type'], fault['msg'])}".strip()
