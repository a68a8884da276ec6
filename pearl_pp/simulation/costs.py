"""What the simulator adds up, seconds of passes and messages: from a profile, or measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pearl_pp.messages import Verdict
from pearl_pp.schedule.instructions import Kind
from pearl_pp.schedule.placement import Placement
from pearl_pp.simulation.profile import Profile, pass_time

_ID_BYTES = 8  # ids travel as int64
_PROB_BYTES = 4  # q travels as float32


@dataclass(frozen=True)
class Overheads:
    """What a runtime adds to the times of a profile, in seconds, measured on the machine it runs on.

    Args:
        message_s: from the post of a message to its arrival, on top of the link's time.
        post_s: of the sender's own time for each message.
        slot_s: of each rank's own time for each slot: generating and interpreting its instructions.
        pass_s: of each pass, beyond the profile's time.
    """

    message_s: float = 0.0
    post_s: float = 0.0
    slot_s: float = 0.0
    pass_s: float = 0.0


FREE = Overheads()


class ProfileCosts:
    """A `CostModel` in seconds: pass times by layers and speed, messages by their real sizes.

    Args:
        placement: says which layers are where.
        overheads: zero gives the time of a machine whose runtime costs nothing.
    """

    def __init__(self, profile: Profile, placement: Placement, overheads: Overheads = FREE) -> None:
        if placement.world_size > profile.num_ranks:
            raise ValueError(f"the placement needs {placement.world_size} ranks, the profile has {profile.num_ranks}")
        self.profile = profile
        self.placement = placement
        self.overheads = overheads
        self._known: dict[tuple, float] = {}

    @property
    def slot_s(self) -> float:
        return self.overheads.slot_s

    @property
    def post_s(self) -> float:
        return self.overheads.post_s

    def target(self, rank: int, num_tokens: int) -> float:
        key = (rank, num_tokens)
        if key not in self._known:
            seconds = self.profile.target_pass_s(rank, self.placement.target[rank], num_tokens)
            self._known[key] = seconds + self.overheads.pass_s
        return self._known[key]

    def draft(self, rank: int, replica: int, shard: int, num_tokens: int) -> float:
        key = (rank, replica, shard, num_tokens)
        if key not in self._known:
            num_layers = self.placement.replicas[replica][shard].num_layers
            seconds = self.profile.draft_pass_s(rank, num_layers, num_tokens)
            self._known[key] = seconds + self.overheads.pass_s
        return self._known[key]

    def message(self, kind: Kind | None, src: int, dst: int, count: int, num_layers: int) -> float:
        key = (kind, src, dst, count, num_layers)
        if key not in self._known:
            num_bytes = self.message_bytes(kind, count, num_layers)
            self._known[key] = self.profile.link_s(src, dst, num_bytes) + self.overheads.message_s
        return self._known[key]

    def message_bytes(self, kind: Kind | None, count: int, num_layers: int) -> int:
        """Payload of a message about `count` positions; kind None is a verdict with room for `count` ids."""
        if kind is None:
            return _ID_BYTES * Verdict.wire_length(count)
        if kind is Kind.KV:
            return count * num_layers * self.profile.draft.kv_bytes_per_layer
        return count * self._bytes_per_position[kind]

    @cached_property
    def _bytes_per_position(self) -> dict[Kind, int]:
        return {
            Kind.ACTIVATION: self.profile.target.activation_bytes,
            Kind.DRAFT_ACTIVATION: self.profile.draft.activation_bytes,
            Kind.TOKENS: _ID_BYTES,
            Kind.PROBS: _PROB_BYTES * self.profile.target.vocab_size,
            Kind.REPORT: _ID_BYTES,
        }


@dataclass(frozen=True)
class PassTimes:
    """Seconds of passes over 1, 2, 3, .. tokens; each token beyond the last adds `extra_s`."""

    seconds: tuple[float, ...]
    extra_s: float = 0.0

    def of(self, num_tokens: int) -> float:
        return pass_time(self.seconds, self.extra_s, num_tokens)


@dataclass(frozen=True)
class MeasuredCosts:
    """A `CostModel` in seconds of passes that were measured on the ranks they are for; messages are free.

    Args:
        stages: of each stage of the target.
        shards: (replica, shard) -> its draft passes.
    """

    stages: Sequence[PassTimes]
    shards: Mapping[tuple[int, int], PassTimes]

    slot_s = post_s = 0.0

    def target(self, rank: int, num_tokens: int) -> float:
        return self.stages[rank].of(num_tokens)

    def draft(self, rank: int, replica: int, shard: int, num_tokens: int) -> float:
        return self.shards[replica, shard].of(num_tokens)

    def message(self, kind: Kind | None, src: int, dst: int, count: int, num_layers: int) -> float:
        return 0.0
