"""What a line of `results.jsonl` must hold before tables are made of it: folders of results come from anybody.

What else a record holds is kept and not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from pearl_pp.config.reading import reason_of
from pearl_pp.experiments.retained.job import ENGINE

_LONGEST_NAME = 1000
_LARGEST = 1e15  # seconds, tokens, bytes: sums of many stay finite, and tables readable

Name = Annotated[str, Field(max_length=_LONGEST_NAME, strict=True)]
Amount = Annotated[float, Field(ge=0, le=_LARGEST, allow_inf_nan=False, strict=True)]
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
    decode_s: Amount
    decode_tokens_per_s: Amount | None
    ttft_s: Amount | None
    total_s: Amount = 0.0
    final_mode: Name | None = None
    num_accepted_tokens: Count | None = None
    num_rejected_tokens: Count | None = None
    num_accepted_runs: Count | None = None
    num_target_passes: Count | None = None
    handoff_bytes: Count | None = None
    per_rank: list[_OfRank] | None = None


class _Published(BaseModel):
    retained: Amount | None = None
    what: Name | None = None


class _Recorded(BaseModel):
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
    text_equals_oracle: Flag | None = None
    simulated_tokens_per_s: Amount | None = None
    started_at: Name | None = None


def fault_of(record: Mapping[str, Any]) -> str | None:
    """What keeps a record from being one, in one line: `metrics.decode_s must be a number`; None: nothing does."""
    try:
        _Recorded.model_validate(record)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in fault["loc"] if not str(part).startswith("function-"))
        return f"{where} {reason_of(fault['type'], fault['msg'])}".strip()
    return None
