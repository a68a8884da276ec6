"""Short runs that measure: how long they are, what is kept of them, what the simulator makes of their verdicts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from pearl_pp.decoding.stopping import StopReason
from pearl_pp.messages import Outcome, Verdict
from pearl_pp.runtime.request import Request
from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.schedule.instructions import Verify
from pearl_pp.schedule.schedule import Schedule
from pearl_pp.simulation.simulator import CostModel, Simulator

MIN_VERDICTS = 10
MIN_SECONDS = 0.2  # on fast models: shorter trials are noisy
SETTLING = 2  # verdicts of a trial that are not timed: the prompt, and what is done for the first time
FEWEST_TIMED = 4


class Trial(NamedTuple):
    """What the last stage's rank saw of a short run.

    Args:
        times: seconds at which each verdict was made.
        target_s, draft_s: each rank's median pass, 0 where it made none; the last stage's with its verdicts.
    """

    schedule: Schedule
    verdicts: list[Verdict]
    times: list[float]
    target_s: tuple[float, ...]
    draft_s: tuple[float, ...]

    @property
    def seconds_per_token(self) -> float:
        timed = sum(len(verdict.token_ids) for verdict in self.verdicts[SETTLING:])
        return self.seconds / max(1, timed)

    @property
    def num_accepted(self) -> int:
        return sum(verdict.num_accepted for verdict in self.verdicts)

    @property
    def num_judged(self) -> int:
        return self.num_accepted + sum(verdict.outcome is Outcome.REJECTED for verdict in self.verdicts)

    @property
    def seconds(self) -> float:
        """From the first verdict that is timed to the last one."""
        return self.times[-1] - self.times[SETTLING - 1]

    @property
    def is_timed(self) -> bool:
        return len(self.times) >= SETTLING + FEWEST_TIMED

    def simulated_s(self, costs: CostModel, request: Request) -> float:
        """The simulator's time for the same verdicts, from the same one on."""
        # A text that came to its own end did so with one more verdict, which is not timed.
        coming = iter([*self.verdicts[:-1], replace(self.verdicts[-1], stop=int(StopReason.LENGTH))])

        def judge(slot: int, verify: Verify, generator: SlotGenerator) -> Verdict:
            return next(coming)

        timeline = Simulator(self.schedule, costs, judge).run(
            len(request.token_ids), request.total_len, request.draft_end
        )
        return timeline.verdicts[-1][0] - timeline.verdicts[SETTLING - 1][0]


class Limiter:
    """Ends a trial after enough verdicts and seconds, and keeps what it saw."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.times: list[float] = []

    def decide(self, verify: Verify, verdict: Verdict) -> Verdict:
        self.times.append(time.perf_counter())
        is_long = len(self.times) >= MIN_VERDICTS + SETTLING
        if is_long and self.times[-1] - self.times[SETTLING - 1] >= MIN_SECONDS:
            verdict = replace(verdict, stop=int(StopReason.LENGTH))
        self.verdicts.append(verdict)
        return verdict


def time_factor(trials: Sequence[Trial], costs: CostModel, request: Request) -> float:
    """Measured over simulated time of the same verdicts."""
    return sum(trial.seconds for trial in trials) / sum(trial.simulated_s(costs, request) for trial in trials)
