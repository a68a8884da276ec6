"""A cost model from the first passes of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pearl_pp.schedule.instructions import Kind
from pearl_pp.simulation.costs import MeasuredCosts, PassTimes


@dataclass(frozen=True)
class RunCosts(MeasuredCosts):
    """Passes as measured; every message takes as long as those of plain decoding did on average.

    Args:
        message_s: seconds of one message.
    """

    message_s: float = 0.0

    def message(self, kind: Kind | None, src: int, dst: int, count: int, num_layers: int) -> float:
        return self.message_s


def run_costs(target: Sequence[Mapping[int, float]], draft: Sequence[Sequence[float]], token_s: float) -> RunCosts:
    """Costs of a run.

    Args:
        target: for each stage, seconds of its passes by number of tokens; the same numbers for all, one of them 1.
        draft: for each replica, seconds of each shard's pass over one token. A pass over more is taken to grow as one
            of the target's.
        token_s: seconds a token of plain decoding: what its passes do not account for is its messages.
    """
    stages = [_pass_times(points) for points in target]
    whole = _pass_times({n: sum(points[n] for points in target) for n in target[0]})
    once = whole.of(1)
    growth = [seconds / once for seconds in whole.seconds]
    shards = {
        (number, part): PassTimes(tuple(seconds * g for g in growth), whole.extra_s / once * seconds)
        for number, replica in enumerate(draft)
        for part, seconds in enumerate(replica)
    }
    return RunCosts(stages, shards, max(0.0, token_s - once) / len(stages))


def _pass_times(points: Mapping[int, float]) -> PassTimes:
    """On straight lines between the points, and on the last of them beyond; never falling."""
    known = sorted(points)
    seconds = [points[known[0]]] * known[0]
    slope = 0.0
    for left, right in pairwise(known):
        slope = max(0.0, (points[right] - points[left]) / (right - left))
        before = seconds[-1]
        seconds += [before + slope * (n + 1) for n in range(right - left)]
    return PassTimes(tuple(seconds), slope)
