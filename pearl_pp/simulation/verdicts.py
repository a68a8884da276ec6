"""Verdict streams with a chosen acceptance, for simulated and emulated runs: a pure function of seed and position."""

from __future__ import annotations

from collections.abc import Callable

from pearl_pp.decoding.noise import is_right
from pearl_pp.decoding.stopping import StopReason
from pearl_pp.messages import Outcome, Verdict
from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.schedule.instructions import Verify


def independent(acceptance: float, seed: int) -> Callable[[int, Verify, SlotGenerator], Verdict]:
    """Each drafted token is right with probability `acceptance`, independently, whenever it is judged."""

    def judge(slot: int, verify: Verify, generator: SlotGenerator) -> Verdict:
        wrong = (i for i in range(verify.num_drafted) if not is_right(acceptance, seed, verify.first + i))
        num_accepted = next(wrong, verify.num_drafted)
        outcome = Outcome.BONUS if verify.bonus else Outcome.ACCEPTED
        if num_accepted < verify.num_drafted:
            outcome = Outcome.REJECTED
        num_ids = num_accepted + (outcome is not Outcome.ACCEPTED)
        ends = verify.first + num_ids >= generator.state.total_len
        stop = StopReason.LENGTH if ends else StopReason.NONE
        return Verdict(slot, (0,) * num_ids, num_accepted, outcome, int(stop))

    return judge
