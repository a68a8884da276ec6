"""Expected speed of a schedule, without drawing verdicts.

Every rejection and every bonus token restarts the schedule, so a text is a sequence of cycles that begin alike. In a
cycle each judged token is accepted with the same probability, independently: the chance that it ends with the i-th
token and the time at which it then ends give E[tokens] / E[time], the long-run speed (renewal-reward theorem). One
simulated cycle in which everything is accepted gives all these times.
"""

from __future__ import annotations

from typing import NamedTuple

from pearl_pp.messages import Outcome, Verdict
from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.schedule.instructions import Verify
from pearl_pp.schedule.schedule import Schedule
from pearl_pp.simulation.simulator import CostModel, Simulator
from pearl_pp.simulation.verdicts import verdict_of

READING = 32  # verdicts that accept all before the cycle: by then every replica has read the prompt
REJECTIONS = 3  # after those, at once: the cycle begins as one after a rejection does
MOST_TOKENS = 256  # of a cycle: at acceptance .95 one in 500,000 is longer


class Cycle(NamedTuple):
    """What happens after a restart while everything is accepted: (time since the restart, verdict)."""

    verdicts: list[tuple[float, Verdict]]

    def tokens_per_s(self, acceptance: float) -> float:
        """Tokens per unit of time in the long run, each judged token right with `acceptance`."""
        alive, tokens, expected_tokens, expected_time = 1.0, 0, 0.0, 0.0
        for time, verdict in self.verdicts:
            for _ in range(verdict.num_accepted):
                tokens += 1
                ends = alive * (1 - acceptance)
                expected_tokens += ends * tokens
                expected_time += ends * time
                alive *= acceptance
            tokens += verdict.outcome is Outcome.BONUS
        longest = self.verdicts[-1][0]
        return (expected_tokens + alive * tokens) / (expected_time + alive * longest)


def simulated_cycle(schedule: Schedule, costs: CostModel, most_tokens: int = MOST_TOKENS) -> Cycle:
    """The cycle of `schedule`, up to a bonus token or `most_tokens` accepted ones.

    What is left of a draft pass at a restart, and entries that a replica lacks then, are taken as they are after a
    chunk of one token was rejected.
    """
    num_verdicts, first = 0, 0

    def judge(slot: int, verify: Verify, generator: SlotGenerator) -> Verdict:
        nonlocal num_verdicts, first
        num_verdicts += 1
        end = generator.state.total_len
        if num_verdicts <= READING:
            return verdict_of(slot, verify, verify.num_drafted, end)
        if num_verdicts <= READING + REJECTIONS:
            first = verify.first + 1
            return verdict_of(slot, verify, 0, end)
        judged = verify.first + verify.num_drafted
        is_last = verify.bonus or judged - first >= most_tokens
        return verdict_of(slot, verify, verify.num_drafted, judged if is_last else end)

    # So far from the end of the text that the schedule does not see it.
    timeline = Simulator(schedule, costs, judge).run(1, 2**20)
    before = READING + REJECTIONS
    started = timeline.verdicts[before - 1][0]
    return Cycle([(time - started, verdict) for time, verdict in timeline.verdicts[before:]])
