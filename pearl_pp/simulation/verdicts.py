"""Verdict streams for simulated and emulated runs: with a chosen acceptance, or those of a run that was made."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pearl_pp.decoding.noise import is_right
from pearl_pp.decoding.stopping import StopReason
from pearl_pp.messages import Outcome, Verdict
from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.schedule.instructions import Verify

Judge = Callable[[int, Verify, SlotGenerator], Verdict]


def independent(acceptance: float, seed: int) -> Judge:
    """Each drafted token is right with probability `acceptance`, independently, whenever it is judged: a pure
    function of seed and position.
    """

    def judge(slot: int, verify: Verify, generator: SlotGenerator) -> Verdict:
        wrong = (i for i in range(verify.num_drafted) if not is_right(acceptance, seed, verify.first + i))
        num_accepted = next(wrong, verify.num_drafted)
        return verdict_of(slot, verify, num_accepted, generator.state.total_len)

    return judge


def replayed(accepted_runs: Sequence[int], end: int) -> Judge:
    """The verdicts of a request that was run: under the same schedule they come out the same.

    Args:
        accepted_runs: `accepted_runs` of its metrics: tokens accepted one after another, a rejection after each
            entry but the last.
        end: position at which its text ended.
    """
    runs = iter(accepted_runs)
    left = next(runs)
    following = next(runs, None)

    def judge(slot: int, verify: Verify, generator: SlotGenerator) -> Verdict:
        nonlocal left, following
        if following is None or left >= verify.num_drafted:
            left -= verify.num_drafted
            return verdict_of(slot, verify, verify.num_drafted, end)
        num_accepted, left, following = left, following, next(runs, None)
        return verdict_of(slot, verify, num_accepted, end)

    return judge


def verdict_of(slot: int, verify: Verify, num_accepted: int, end: int) -> Verdict:
    """What the last stage says where the first `num_accepted` of the judged tokens are right; ids are blank.

    Args:
        end: position at which the text ends.
    """
    outcome = Outcome.BONUS if verify.bonus else Outcome.ACCEPTED
    if num_accepted < verify.num_drafted:
        outcome = Outcome.REJECTED
    num_ids = min(num_accepted + (outcome is not Outcome.ACCEPTED), end - verify.first)
    stop = StopReason.LENGTH if verify.first + num_ids >= end else StopReason.NONE
    return Verdict(slot, (0,) * num_ids, min(num_accepted, num_ids), outcome, int(stop))
