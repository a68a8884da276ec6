"""What the ranks of a group measured of single passes: plain data. No torch in here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pearl_pp.schedule.placement import Placement
from pearl_pp.simulation.costs import MeasuredCosts, PassTimes

REPEATS = 15  # passes of each length


class StageTimes(NamedTuple):
    """Median seconds of one stage's passes after `CONTEXT` tokens.

    Args:
        seconds: over 1, 2, 3, .. tokens, with logits of each where they are judged.
        extra_s: what each further token adds.
        layers_s: over one token without the head.
        prefill_tokens, prefill_s: a long pass.
    """

    seconds: list[float]
    extra_s: float
    layers_s: float
    prefill_tokens: int
    prefill_s: float
    num_layers: int
    weight_bytes: int

    @property
    def pass_times(self) -> PassTimes:
        return PassTimes(tuple(self.seconds), self.extra_s)


class RankTimes(NamedTuple):
    """What one rank measured. The target's stage is None where the draft has the rank alone; shards by replica."""

    target: StageTimes | None
    shards: Mapping[int, StageTimes]
    memory_bytes: int

    def record(self) -> dict[str, Any]:
        """As JSON; `rank_times` reads it."""
        return {"target": self.target, "shards": self.shards, "memory_bytes": self.memory_bytes}


def rank_times(told: Mapping[str, Any]) -> RankTimes:
    """The inverse of `RankTimes.record`."""
    target = None if told["target"] is None else StageTimes(*told["target"])
    return RankTimes(target, {int(i): StageTimes(*one) for i, one in told["shards"].items()}, told["memory_bytes"])


def measured_costs(ranks: Sequence[RankTimes], placement: Placement) -> MeasuredCosts:
    """What the simulator adds up for `placement`, on whose ranks the passes were measured."""
    stages = [rank.target.pass_times for rank in ranks if rank.target is not None]
    shards = {
        (number, position): ranks[shard.rank].shards[number].pass_times
        for number, replica in enumerate(placement.replicas)
        for position, shard in enumerate(replica)
    }
    return MeasuredCosts(stages, shards)
