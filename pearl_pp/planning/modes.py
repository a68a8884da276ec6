"""Ways of decoding that the loaded replicas allow, and how fast each one is predicted to be.

What is loaded does not change while a run goes on; which replicas are used, F, p and gamma do. A mode is one choice
of them, so that a run can go from any mode to any other with one verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from pearl_pp.planning.prediction import exact_pass_ticks, replica_seconds, stage_seconds
from pearl_pp.schedule.placement import Placement
from pearl_pp.schedule.schedule import TICKS, Schedule
from pearl_pp.simulation.simulator import CostModel


class Family(StrEnum):
    """Modes that use the machine alike: what the simulator gets wrong of one, it gets wrong of the others, too."""

    PLAIN = "plain"
    TURNS = "turns"  # the draft, then the target: `sd`
    ONE_CHUNK = "one chunk"  # PEARL, one chunk in flight: F = 1, p = N
    PIPELINED = "pipelined"  # PEARL, several chunks in flight


@dataclass(frozen=True)
class Mode:
    """One way of decoding with what is loaded."""

    family: Family
    schedule: Schedule

    @property
    def name(self) -> str:
        return describe(self.schedule)


@dataclass(frozen=True)
class Limits:
    """What the user has fixed; None is free.

    Args:
        gamma: tokens drafted in p slots, or in a round.
        fill, interval: F and p.
        families: that may be used at all.
    """

    gamma: int | None = None
    fill: int | None = None
    interval: int | None = None
    families: frozenset[Family] = frozenset(Family)


def describe(schedule: Schedule) -> str:
    """A mode in a few words, with gamma as far as it is fixed by the schedule."""
    if not schedule.drafts:
        return "plain decoding"
    if family_of(schedule) is Family.TURNS:
        return f"sd, gamma {schedule.draft_limit}"
    return f"F = {schedule.fill}, p = {schedule.verify_interval}, gamma {tokens_per_interval(schedule):g}"


def tokens_per_interval(schedule: Schedule) -> float:
    """Tokens drafted in p slots when nothing blocks the draft."""
    return round(schedule.verify_interval * TICKS / schedule.pass_ticks, 2)


def family_of(schedule: Schedule) -> Family:
    if not schedule.drafts:
        return Family.PLAIN
    if schedule.first_window and schedule.draft_limit is not None:
        return Family.TURNS
    one_chunk = schedule.fill == 1 and schedule.verify_interval == schedule.num_stages
    return Family.ONE_CHUNK if one_chunk else Family.PIPELINED


def plain_mode(base: Schedule) -> Mode:
    """The target alone, while the replicas stay loaded."""
    steps = {"fill": 1, "verify_interval": base.num_stages, "pass_ticks": TICKS}
    return Mode(Family.PLAIN, replace(base, active=(), first_window=0, draft_limit=0, **steps))


def turns_mode(base: Schedule, gamma: int) -> Mode:
    """`sd` with gamma tokens a round, drafted on rank 0 where there is a copy: rank 0 feeds them."""
    on_first = (n for n, replica in enumerate(base.replicas) if len(replica) == 1 and replica[0].rank == 0)
    active = (next(on_first, 0),)
    steps = {"fill": 1, "verify_interval": base.num_stages, "pass_ticks": max(1, TICKS // gamma)}
    return Mode(Family.TURNS, replace(base, active=active, first_window=gamma, draft_limit=gamma, **steps))


# Tokens a round that are compared; more than the ratio of the pass times seldom pays.
_ROUNDS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)


def modes(base: Schedule, placement: Placement, costs: CostModel, limits: Limits) -> list[Mode]:
    """All that are worth a comparison.

    Args:
        base: a schedule of the run: replicas, hand-off and what else no mode changes.
        placement: that `base` and `costs` belong to.
    """
    found = [
        plain_mode(base),
        *(turns_mode(base, gamma) for gamma in ((limits.gamma,) if limits.gamma else _rounds(placement, costs))),
    ]
    if base.world_size > 1:  # on one rank nothing is idle
        found += [Mode(family_of(s), s) for s in _pearl(base, placement, costs, limits)]
    return [mode for mode in dict.fromkeys(found) if mode.family in limits.families]


def _rounds(placement: Placement, costs: CostModel) -> Iterable[int]:
    ratio = sum(stage_seconds(placement, costs)) / replica_seconds(placement, costs)[0]
    return (gamma for gamma in _ROUNDS if gamma <= max(4.0, 2 * ratio))


def _pearl(base: Schedule, placement: Placement, costs: CostModel, limits: Limits) -> Iterator[Schedule]:
    num_stages = base.num_stages
    usual = {1, 2, 3, num_stages, placement.verify_interval} & {*range(1, num_stages + 1)}
    intervals = (limits.interval,) if limits.interval else sorted(usual)
    filled = 2 if num_stages == 2 else max(1, num_stages - 1)
    fills = (limits.fill,) if limits.fill else sorted({1, filled, placement.fill})
    for interval in intervals:
        for fill in fills[:1] if interval == 1 else fills:  # p = 1 fills anyway
            for active in _active_sets(base, interval):
                pattern = replace(
                    base, active=active, fill=fill, verify_interval=interval, first_window=0, draft_limit=None
                )
                yield from _paced(pattern, placement, costs, limits.gamma)


def _active_sets(base: Schedule, interval: int) -> Iterator[tuple[int, ...]]:
    """Replicas to use: the paper's two where one chunk is in flight, all where there are more; or the first alone."""
    numbers = tuple(range(len(base.replicas)))
    yield numbers[:2] if interval == base.num_stages else numbers
    if interval == 1 and len(numbers) > 1:  # in steady state every stage is busy in every slot
        yield numbers[:1]


def _paced(pattern: Schedule, placement: Placement, costs: CostModel, gamma: int | None) -> Iterator[Schedule]:
    """With passes as long as they take, and with whole parts of a slot, or whole slots, where that is longer."""
    if gamma is not None:
        yield pattern.with_pass_ticks(max(1, pattern.verify_interval * TICKS // gamma))
        return
    exact = exact_pass_ticks(placement, costs)
    yield pattern.with_pass_ticks(exact)
    longer = TICKS // max(1, TICKS // exact) if exact < TICKS else -(-exact // TICKS) * TICKS
    if longer > exact:
        yield pattern.with_pass_ticks(longer)
