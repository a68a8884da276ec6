"""How well a placement keeps the draft busy, read off the schedule itself."""

from __future__ import annotations

from pearl_pp.messages import Outcome, Verdict
from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.schedule.instructions import Verify
from pearl_pp.schedule.placement import Placement, Replica
from pearl_pp.schedule.schedule import speculative

_NUM_SLOTS = 48
_GAMMA = 8  # passes short enough that shards, not rounding, decide


def tokens_per_window(num_stages: int, replicas: tuple[Replica, ...], interval: int) -> float:
    """Drafted tokens judged in `interval` slots while everything is accepted; at most about `_GAMMA`."""
    placement = Placement("", (1,) * num_stages, replicas, 1, interval, _GAMMA, "catchup")
    generator = SlotGenerator(speculative(placement, _GAMMA), 1, 10**6, 10**6)
    num_judged = 0
    for _ in range(_NUM_SLOTS):
        plan = generator.next_slot()
        if plan.has_verdict:
            verify = next(i for i in plan.instructions if isinstance(i, Verify))
            num_judged += verify.num_drafted
            ids = (0,) * (verify.num_drafted + verify.bonus)
            outcome = Outcome.BONUS if verify.bonus else Outcome.ACCEPTED
            generator.apply(Verdict(plan.slot, ids, verify.num_drafted, outcome))
    return num_judged * interval / _NUM_SLOTS
