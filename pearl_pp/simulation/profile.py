"""A profile: what a machine and a model pair cost, in numbers (DESIGN section 10). No torch in here.

Read from YAML by `config.read_profile`; used by the simulator's cost model and by emulated runs alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

# Far beyond any machine, and near enough that no product or quotient of several of them is without end.
Layers = Annotated[int, Field(ge=1, le=1000, strict=True)]
Size = Annotated[int, Field(ge=1, le=10**9, strict=True)]
Bytes = Annotated[int, Field(ge=1, le=10**12, strict=True)]
Gigabytes = Annotated[float, Field(ge=1e-9, le=1e9, strict=True)]
Milliseconds = Annotated[float, Field(ge=1e-4, le=1e7, strict=True)]
More = Annotated[float, Field(ge=0, le=1e9, strict=True)]  # of a time
Rate = Annotated[float, Field(ge=1e-3, le=1e15, strict=True)]
Speed = Annotated[float, Field(ge=1e-4, le=1e4, strict=True)]

MOST_RANKS = 1024
RATIOS = (0.01, 10_000.0)
"""Of T/t. A draft that is slower than this is none; one that is faster is never waited for."""

PREFILL_TOKENS = 32
"""A longer chunk is prefill: arithmetic, not reading the weights, sets its time. Windows of PEARL are shorter."""

ACTIVATION_BYTES = 2  # hidden states travel in bf16


def pass_time(times: Sequence[float], extra: float, num_tokens: int) -> float:
    """Time of a pass over `num_tokens`, in the unit of `times`.

    Args:
        times: of passes over 1, 2, 3, .. tokens.
        extra: what each token beyond the last of them adds.
    """
    known = min(num_tokens, len(times))
    return times[known - 1] + extra * (num_tokens - known)


def _number_or_list(value: object) -> str:
    return "[list]" if isinstance(value, list | tuple) else "[number]"


# Tags in brackets: a fault's place in the file is named without them.
PassTimes = Annotated[
    Annotated[Milliseconds, Tag("[number]")]
    | Annotated[tuple[Milliseconds, ...], Field(min_length=1, max_length=10_000), Tag("[list]")],
    Discriminator(_number_or_list),
]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelProfile(_Entry):
    """One of the two models, at speed 1.

    Args:
        pass_ms: one pass of all layers over one token, or a list: over 1, 2, 3, .. tokens.
        extra_token_ms: what every further token of the same pass adds; None is the last difference of the list, or 0.
        kv_bytes_per_token: keys and values of one position in all layers.
        weights_gb: all weights, in 10^9 bytes; None leaves them out of planned memory.
    """

    pass_ms: PassTimes
    extra_token_ms: More | None = None
    num_layers: Layers
    hidden_size: Size
    kv_bytes_per_token: Bytes
    weights_gb: Gigabytes | None = None

    def pass_s(self, num_tokens: int, prefill_tokens_per_s: float) -> float:
        """Seconds of one pass of all layers over `num_tokens` positions."""
        longest = max(PREFILL_TOKENS, len(self.times_ms))
        decode_s = pass_time(self.times_ms, self.further_token_ms, min(num_tokens, longest)) * 1e-3
        return decode_s if num_tokens <= longest else max(decode_s, num_tokens / prefill_tokens_per_s)

    @property
    def times_ms(self) -> tuple[float, ...]:
        """Of passes over 1, 2, 3, .. tokens, as far as they are told."""
        return self.pass_ms if isinstance(self.pass_ms, tuple) else (self.pass_ms,)

    @property
    def one_token_ms(self) -> float:
        """T or t: a pass over one token."""
        return self.times_ms[0]

    @property
    def further_token_ms(self) -> float:
        """What each token beyond the end of `times_ms` adds."""
        if self.extra_token_ms is not None:
            return self.extra_token_ms
        return max(0.0, self.times_ms[-1] - self.times_ms[-2]) if len(self.times_ms) > 1 else 0.0

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

    vocab_size: Annotated[Size, Field(ge=2)]


class RanksProfile(_Entry):
    """The cards: memory in GB (10^9 bytes) and relative speed; a slower card stretches its own passes."""

    memory_gb: tuple[Gigabytes, ...] = Field(min_length=1, max_length=MOST_RANKS)
    speed: tuple[Speed, ...] = Field(min_length=1, max_length=MOST_RANKS)

    @model_validator(mode="after")
    def _one_entry_each(self) -> RanksProfile:
        if len(self.memory_gb) != len(self.speed):
            raise ValueError(f"memory_gb has {len(self.memory_gb)} entries, speed has {len(self.speed)}")
        return self


class Link(_Entry):
    """From one rank to another, one way: a message of b bytes needs latency + b / bandwidth (GB: 10^9 bytes)."""

    latency_us: More
    bandwidth_gb_s: Rate

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
    prefill_tokens_per_s: Rate
    link: Link | LinkMatrix
    acceptance: Annotated[float, Field(ge=0, le=1, strict=True)]

    @model_validator(mode="after")
    def _draft_that_can_be_of_use(self) -> Profile:
        least, most = RATIOS
        if not least <= self.ratio <= most:
            reason = f"a pass of the target takes {self.ratio:.3g} of the draft's; at least {least:g}, at most {most:g}"
            raise ValueError(f"pass_ms: {reason}")
        return self

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
        return self.target.one_token_ms / self.draft.one_token_ms

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
