"""Random schedules and verdict streams for property tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from hypothesis import strategies as st

from pearl_pp.messages import Change, Outcome, Verdict
from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.schedule.instructions import Verify
from pearl_pp.schedule.placement import Placement, Replica, Shard
from pearl_pp.schedule.plan import SlotPlan
from pearl_pp.schedule.schedule import TICKS, Schedule, plain, speculative

DRAFT_LAYERS = 4


@st.composite
def replicas(draw: st.DrawFn, num_ranks: int) -> Replica:
    """One copy of the draft, cut over one rank or several."""
    num_shards = draw(st.integers(1, min(num_ranks, DRAFT_LAYERS)))
    ranks = draw(st.permutations(range(num_ranks)))[:num_shards]
    cuts = sorted(draw(st.permutations(range(1, DRAFT_LAYERS)))[: num_shards - 1])
    bounds = [0, *cuts, DRAFT_LAYERS]
    return tuple(Shard(rank, bounds[i], bounds[i + 1]) for i, rank in enumerate(ranks))


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Any strategy, placement, entry pattern, prefill and pace; the draft may have ranks of its own."""
    return replace(draw(_without_prefill()), prefill_piece=draw(st.sampled_from([0, 0, 1, 2, 5])))


@st.composite
def _without_prefill(draw: st.DrawFn) -> Schedule:
    num_stages = draw(st.integers(1, 8))
    if draw(st.integers(0, 9)) == 0:
        return plain(num_stages)
    num_ranks = num_stages + draw(st.integers(0, 1))
    copies = tuple(draw(replicas(num_ranks)) for _ in range(draw(st.integers(1, 3))))
    interval = draw(st.integers(1, num_stages))
    handoff = draw(st.sampled_from(["ship", "catchup"]))
    fill = draw(st.integers(1, num_stages))
    placement = Placement("", (1,) * num_stages, copies, fill, interval, None, handoff)
    gamma = draw(st.integers(1, 9))
    # On one stage nothing is idle and pearl runs as sd.
    pre, post = (False, False) if num_ranks == 1 else (draw(st.booleans()), draw(st.booleans()))
    schedule = speculative(placement, gamma, pre_verify=pre, post_verify=post, sends_probs=draw(st.booleans()))
    if pre and post and draw(st.booleans()):
        return schedule.with_pass_ticks(draw(st.integers(1_000, 3_000_000)))
    return schedule


@st.composite
def changes(draw: st.DrawFn, schedule: Schedule) -> Change:
    """Anything that a verdict may ask of `schedule`: other replicas or none, another pattern, pace or strategy."""
    numbers = range(len(schedule.replicas))
    active = tuple(number for number in numbers if draw(st.booleans()))
    gamma = draw(st.integers(1, 9))
    # On one stage nothing is idle: drafting goes on during a pass only with a rank of the draft's own.
    pre, post = (False, False) if schedule.world_size == 1 else (draw(st.booleans()), draw(st.booleans()))
    changed = replace(
        schedule,
        active=active,
        fill=draw(st.integers(1, schedule.num_stages)),
        verify_interval=draw(st.integers(1, schedule.num_stages)),
        first_window=0 if pre else gamma,
        draft_limit=None if post else gamma,
        ships_kv=draw(st.booleans()),
    )
    if not pre and not post:
        return replace(changed, pass_ticks=max(1, TICKS // gamma)).as_change()
    return changed.with_pass_ticks(draw(st.integers(1_000, 3_000_000))).as_change()


Judge = Callable[[Verify], int]
Changes = Callable[[], Change | None]


def random_judge(draw_int: Callable[[int], int]) -> Judge:
    """How many drafted tokens of a chunk are accepted."""
    return lambda verify: draw_int(verify.num_drafted)


def verdict_for(plan: SlotPlan, num_accepted: int, generator: SlotGenerator) -> Verdict:
    """The verdict when `num_accepted` of the judged tokens are right."""
    verify = next(i for i in plan.instructions if isinstance(i, Verify))
    outcome = Outcome.BONUS if verify.bonus else Outcome.ACCEPTED
    num_accepted = min(num_accepted, verify.num_drafted)
    if num_accepted < verify.num_drafted:
        outcome = Outcome.REJECTED
    num_ids = num_accepted + (outcome is not Outcome.ACCEPTED)
    stop = 3 * (generator.state.committed + num_ids >= generator.state.total_len)
    return Verdict(plan.slot, tuple(range(num_ids)), num_accepted, outcome, stop)


def play(
    generator: SlotGenerator, judge: Judge, max_slots: int = 5000, change: Changes = lambda: None
) -> Iterator[tuple[SlotPlan, Verdict | None]]:
    """Slots with their verdicts, already applied when yielded, until the request ends.

    Args:
        change: asked for with every verdict that goes on.
    """
    for _ in range(max_slots):
        if generator.finished:
            return
        plan = generator.next_slot()
        verdict = None
        if plan.has_verdict:
            verify = next(i for i in plan.instructions if isinstance(i, Verify))
            verdict = verdict_for(plan, judge(verify), generator)
            verdict = verdict if verdict.stop else replace(verdict, change=change())
            generator.apply(verdict)
        yield plan, verdict
    raise AssertionError(f"no end after {max_slots} slots")
