"""A profile: what a machine and a model pair cost, in numbers (DESIGN section 10). No torch in here.

Read from YAML by `config.read_profile`; used by the simulator's cost model and by emulated runs alike.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

PositiveInt = Annotated[int, Field(ge=1, strict=True)]
PositiveFloat = Annotated[float, Field(gt=0, strict=True)]
NotNegative = Annotated[float, Field(ge=0, strict=True)]

PREFILL_TOKENS = 32
"""A longer chunk is prefill: arithmetic, not reading the weights, sets its time. Windows of PEARL are shorter."""

ACTIVATION_BYTES = 2  # hidden states travel in bf16


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelProfile(_Entry):
    """One of the two models, at speed 1.

    Args:
        pass_ms: one pass of all layers over one token.
        extra_token_ms: what every further token of the same pass adds.
        kv_bytes_per_token: keys and values of one position in all layers.
        weights_gb: all weights, in 10^9 bytes; None leaves them out of planned memory.
    """

    pass_ms: PositiveFloat
    extra_token_ms: NotNegative = 0.0
    num_layers: PositiveInt
    hidden_size: PositiveInt
    kv_bytes_per_token: PositiveInt
    weights_gb: PositiveFloat | None = None

    def pass_s(self, num_tokens: int, prefill_tokens_per_s: float) -> float:
        """Seconds of one pass of all layers over `num_tokens` positions."""
        decode_ms = self.pass_ms + self.extra_token_ms * (min(num_tokens, PREFILL_TOKENS) - 1)
        if num_tokens <= PREFILL_TOKENS:
            return decode_ms * 1e-3
        return max(decode_ms * 1e-3, num_tokens / prefill_tokens_per_s)

    @property
    def activation_bytes(self) -> int:
        """Of one position's hidden states."""
        return ACTIVATION_BYTES * self.hidden_size

    @property
    def kv_bytes_per_layer(self) -> int:
        """Of one position in one layer, rounded up."""
        return -(-self.kv_bytes_per_token // self.num_layers)


class TargetProfile(ModelProfile):
    """The target also says how many ids can be drawn."""

    vocab_size: Annotated[int, Field(ge=2, strict=True)]


class RanksProfile(_Entry):
    """The cards: memory in GB (10^9 bytes) and relative speed; a slower card stretches its own passes."""

    memory_gb: tuple[PositiveFloat, ...] = Field(min_length=1)
    speed: tuple[PositiveFloat, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_entry_each(self) -> RanksProfile:
        if len(self.memory_gb) != len(self.speed):
            raise ValueError(f"memory_gb has {len(self.memory_gb)} entries, speed has {len(self.speed)}")
        return self


class Link(_Entry):
    """From one rank to another, one way: a message of b bytes needs latency + b / bandwidth (GB: 10^9 bytes)."""

    latency_us: NotNegative
    bandwidth_gb_s: PositiveFloat

    def seconds(self, num_bytes: int) -> float:
        return self.latency_us * 1e-6 + num_bytes / (self.bandwidth_gb_s * 1e9)


LinkMatrix = tuple[tuple[Link | None, ...], ...]


class Profile(_Entry):
    """A machine with a model pair.

    Args:
        prefill_tokens_per_s: prompt tokens a second of the whole target at speed 1; the draft is as many times
            as fast as its pass is shorter.
        link: one for all pairs of ranks, or `link[src][dst]` (the diagonal is not used, and may be null).
        acceptance: probability that a drafted token is the target's.
    """

    name: str = Field(min_length=1)
    target: TargetProfile
    draft: ModelProfile
    ranks: RanksProfile
    prefill_tokens_per_s: PositiveFloat
    link: Link | LinkMatrix
    acceptance: Annotated[float, Field(ge=0, le=1, strict=True)]

    @model_validator(mode="after")
    def _link_between_all_ranks(self) -> Profile:
        if isinstance(self.link, Link):
            return self
        if any(len(row) != self.num_ranks for row in (self.link, *self.link)):
            raise ValueError(f"link: must be one entry or {self.num_ranks} rows of {self.num_ranks} entries")
        for src, row in enumerate(self.link):
            for dst, entry in enumerate(row):
                if entry is None and src != dst:
                    raise ValueError(f"link[{src}][{dst}]: is missing")
        return self

    @property
    def num_ranks(self) -> int:
        return len(self.ranks.speed)

    @property
    def ratio(self) -> float:
        """c = T/t."""
        return self.target.pass_ms / self.draft.pass_ms

    def target_pass_s(self, rank: int, num_layers: int, num_tokens: int) -> float:
        """Seconds of a pass of `num_layers` target layers on `rank` over `num_tokens` positions."""
        whole = self.target.pass_s(num_tokens, self.prefill_tokens_per_s)
        return whole * num_layers / self.target.num_layers / self.ranks.speed[rank]

    def draft_pass_s(self, rank: int, num_layers: int, num_tokens: int) -> float:
        """Seconds of a pass of `num_layers` draft layers on `rank` over `num_tokens` positions."""
        whole = self.draft.pass_s(num_tokens, self.prefill_tokens_per_s * self.ratio)
        return whole * num_layers / self.draft.num_layers / self.ranks.speed[rank]

    def link_s(self, src: int, dst: int, num_bytes: int) -> float:
        """Seconds from the send of a message to its arrival, at least."""
        link = self.link if isinstance(self.link, Link) else self.link[src][dst]
        return 0.0 if src == dst or link is None else link.seconds(num_bytes)
