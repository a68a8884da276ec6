"""PlanOptions: every option of `pearl-pp plan` once, with its range. No torch in here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from pearl_pp.config.run_config import AutoOrCount, AutoOrGamma, Handoff, PositiveFloat, PositiveInt
from pearl_pp.simulation.profile import MOST_RANKS

# Far beyond any machine, as the numbers of a profile.
Bandwidth = Annotated[float, Field(ge=0.1, le=1e6)]
Latency = Annotated[float, Field(ge=0, le=1e9)]
LinkSpeed = Annotated[float, Field(ge=1e-3, le=1e15)]


class PlanOptions(BaseModel):
    """What a machine and a model pair are, as far as the user says; None leaves it to the profile or to a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    num_ranks: Annotated[PositiveInt, Field(le=MOST_RANKS)] | None = None
    target: str | None = None
    draft: str | None = None
    profile: str | None = None
    trust_remote_code: bool = False
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    device: Literal["cuda", "cpu"] = "cuda"

    memory_gb: Annotated[tuple[PositiveFloat, ...], Field(max_length=MOST_RANKS)] | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    bandwidth_gb_s: tuple[Bandwidth, ...] | None = None
    link_latency_us: Latency | None = None
    link_gb_s: LinkSpeed | None = None

    context: Annotated[PositiveInt, Field(le=10**9)] | None = None
    acceptance: Annotated[float, Field(ge=0, le=1)] | None = None

    layer_split: tuple[PositiveInt, ...] | None = None
    fill: AutoOrCount = "auto"
    verify_interval: AutoOrCount = "auto"
    gamma: AutoOrGamma = "auto"
    handoff: Handoff = "auto"

    top: PositiveInt = 10
    json_file: str | None = None
    trace: str | None = None
    write: str | None = None

    @field_validator("memory_gb", "bandwidth_gb_s", "layer_split", mode="before")
    @classmethod
    def _comma_list(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value
