"""The first passes of a run: they measure t, T(k) and messages, try the best few ways of decoding, and choose one.

The last stage's rank decides what is tried and what is chosen; the others follow (DESIGN section 3).
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass

from pearl_pp.messages import Change
from pearl_pp.planning.measured_costs import run_costs
from pearl_pp.planning.modes import Family, Limits, Mode, modes, plain_mode, turns_mode
from pearl_pp.planning.speed_table import SpeedTable, speed_table
from pearl_pp.runtime.pair import ModelPair
from pearl_pp.runtime.rank_engine import RankEngine
from pearl_pp.runtime.request import Request
from pearl_pp.runtime.trial import Limiter, Trial, time_factor
from pearl_pp.runtime.watching import AcceptanceRate, Watcher
from pearl_pp.schedule.schedule import Schedule
from pearl_pp.simulation.simulator import CostModel
from pearl_pp.telemetry import Activity, Recorder
from pearl_pp.transport.base import Transport

TRIAL_TOKENS = 256
"""Longest text of a trial; mostly its verdicts or its time end it."""

_UNKNOWN = 0.5  # acceptance before anything has been judged
_ROUNDS = (4, 8)  # tokens a round of `sd` with which T(5) and T(9) are measured
_CLOSE = 1.2  # kinds that are predicted to be so close to the best are tried once more
_THINKING_S = 600.0  # the decider simulates meanwhile: for less than a second, on a slow machine longer


@dataclass(frozen=True)
class Tuned:
    """How the requests of a run begin.

    Args:
        watcher: on the last stage's rank; None elsewhere, and where nothing may change.
        notes: what was chosen and why, one line each.
    """

    schedule: Schedule
    watcher: Watcher | None
    notes: tuple[str, ...]


class Tuner:
    """Chooses among all ways of decoding that `limits` leaves.

    Args:
        base: the schedule to warm up with; its replicas and hand-off are those of every other.
        request: the text of the trials.
    """

    def __init__(
        self,
        transport: Transport,
        rank_engine: RankEngine,
        recorder: Recorder,
        pair: ModelPair,
        base: Schedule,
        limits: Limits,
        request: Request,
    ) -> None:
        self._transport = transport
        self._rank_engine = rank_engine
        self._recorder = recorder
        self._pair = pair
        self._base = base
        self._limits = limits
        self._request = request
        self._rank = transport.rank
        self._decider = base.last_rank
        self._acceptance = AcceptanceRate(_UNKNOWN, weight=1.0)
        self._costs: CostModel
        self._trials: dict[Family, list[Trial]] = {family: [] for family in Family}

    def run(self) -> Tuned:
        """Collective: whatever the decider wants tried is tried, until it has chosen."""
        steps = self._steps() if self._rank == self._decider else None
        trial: Trial | None = None
        while True:
            step = None if steps is None else _step(steps, trial)
            told = self._announced(step)
            schedule = self._base.changed(_change(told["schedule"]))
            if isinstance(step, Tuned):
                return step
            if "notes" in told:
                return Tuned(schedule, None, tuple(told["notes"]))
            trial = self._try(schedule)

    def _announced(self, step: Schedule | Tuned | None) -> dict:
        """Collective: what the decider wants tried, or has chosen, on every rank."""
        told = {}
        if isinstance(step, Tuned):
            told = {"schedule": step.schedule.as_change().to_wire(), "notes": step.notes}
        elif step is not None:
            told = {"schedule": step.as_change().to_wire()}
        payload = json.dumps(told).encode() if told else None
        return json.loads(self._transport.broadcast_bytes(payload, src=self._decider, timeout_s=_THINKING_S))

    def _try(self, schedule: Schedule) -> Trial | None:
        """Collective: one short run; the decider gets what every rank measured."""
        self._recorder.reset()
        limiter = Limiter()
        self._rank_engine.run(self._request, schedule, decide=limiter.decide)
        times = [self._recorder.median_ns(activity) * 1e-9 for activity in (Activity.TARGET, Activity.DRAFT)]
        times[0] += self._recorder.median_ns(Activity.VERIFY) * 1e-9
        gathered = self._transport.gather_bytes(json.dumps(times).encode(), dst=self._decider)
        if gathered is None:
            return None
        target_s, draft_s = zip(*(json.loads(payload) for payload in gathered), strict=True)
        return Trial(schedule, limiter.verdicts, limiter.times, target_s, draft_s)

    # -- on the last stage's rank

    def _steps(self) -> Generator[Schedule, Trial, Tuned]:
        """Schedules to try, one after another; each is sent back as a trial."""
        warm = yield self._base
        self._acceptance.add(warm.num_accepted, warm.num_judged)
        known = self._pair.known_costs()
        if known is not None:
            self._costs, acceptance = known
            self._acceptance = AcceptanceRate(acceptance)
            return self._chosen(self._table())
        yield from self._measure()
        timed = {family: [t for t in trials if t.is_timed] for family, trials in self._trials.items()}
        if not timed[Family.PLAIN] or not any(any(trial.draft_s) for trial in timed[Family.TURNS]):
            return Tuned(self._base, None, ("too little room to try anything: decoding stays as it is",))
        self._trials = timed
        self._costs = self._measured_costs(warm)
        table = self._table()
        yield from self._compare(table)
        return self._chosen(table)

    def _table(self) -> SpeedTable:
        return speed_table(modes(self._base, self._pair.placement, self._costs, self._limits), self._costs)

    def _try_one(self, mode: Mode) -> Generator[Schedule, Trial, None]:
        trial = yield mode.schedule
        self._acceptance.add(trial.num_accepted, trial.num_judged)
        self._trials[mode.family].append(trial)

    def _measure(self) -> Generator[Schedule, Trial, None]:
        """Plain decoding, then rounds of `sd`: one rank at work at a time, so that times are those of the passes."""
        yield from self._try_one(plain_mode(self._base))
        for gamma in (self._limits.gamma,) if self._limits.gamma else _ROUNDS:
            yield from self._try_one(turns_mode(self._base, gamma))

    def _measured_costs(self, warm: Trial) -> CostModel:
        plain, rounds = self._trials[Family.PLAIN][0], self._trials[Family.TURNS]
        points = [
            {1: plain.target_s[rank]} | {(t.schedule.draft_limit or 0) + 1: t.target_s[rank] for t in rounds}
            for rank in range(self._base.num_stages)
        ]
        return run_costs(points, self._draft_times(warm, rounds[0]), plain.seconds_per_token)

    def _draft_times(self, warm: Trial, turns: Trial) -> list[list[float]]:
        """Seconds of every shard: those of the replica that worked alone, the others' in the proportion that they had
        to it in the warm-up, where all of them worked.
        """
        (alone,) = turns.schedule.in_use
        replica = self._base.replicas[alone]
        own = sum(turns.draft_s[shard.rank] for shard in replica)
        together = sum(warm.draft_s[shard.rank] for shard in replica)
        per_layer = own / sum(shard.num_layers for shard in replica)
        ratio = own / together if together else 0.0
        return [
            [
                turns.draft_s[s.rank] if number == alone else warm.draft_s[s.rank] * ratio or per_layer * s.num_layers
                for s in shards
            ]
            for number, shards in enumerate(self._base.replicas)
        ]

    def _compare(self, table: SpeedTable) -> Generator[Schedule, Trial, None]:
        """The best of each kind that has not run yet, then again those that are close to the fastest."""
        families = [*dict.fromkeys(mode.family for mode in table.modes)]
        if len(families) == 1:
            return
        for family in families:
            if not self._trials[family]:
                yield from self._try_one(table.modes[self._best(table, family)])
        factors = self._factors()
        seconds = {family: self._seconds(table, family, factors) for family in families}
        close = [family for family in families if seconds[family] < _CLOSE * min(seconds.values())]
        if len(close) > 1:
            for family in close:
                yield from self._try_one(table.modes[self._best(table, family)])

    def _factors(self) -> dict[Family, float]:
        """Measured over simulated time of each family; 1 where it has not been tried."""
        timed = {family: [t for t in trials if t.is_timed] for family, trials in self._trials.items()}
        return {f: time_factor(trials, self._costs, self._request) if trials else 1.0 for f, trials in timed.items()}

    def _best(self, table: SpeedTable, family: Family) -> int:
        return table.best(self._acceptance.value, dict.fromkeys(Family, 1.0), [family])

    def _seconds(self, table: SpeedTable, family: Family, factors: dict[Family, float]) -> float:
        """Of a token in the family's best mode."""
        return table.expected(self._best(table, family), self._acceptance.value, factors)

    def _chosen(self, table: SpeedTable) -> Tuned:
        acceptance, factors = self._acceptance.value, self._factors()
        number = table.best(acceptance, factors)
        speeds = [
            f"{table.modes[self._best(table, family)].name} {1 / self._seconds(table, family, factors):.4g}"
            for family in dict.fromkeys(mode.family for mode in table.modes)
        ]
        mode = table.modes[number]
        note = f"starts with {mode.name}; tokens/s predicted at acceptance {acceptance:.2f}: {'; '.join(speeds)}"
        return Tuned(mode.schedule, Watcher(table, factors, number, acceptance), (note,))


def _step(steps: Generator[Schedule, Trial, Tuned], trial: Trial | None) -> Schedule | Tuned:
    """What is to be tried next, after `trial`; or what has been chosen."""
    try:
        return next(steps) if trial is None else steps.send(trial)
    except StopIteration as end:
        return end.value


def _change(fields: list[int]) -> Change:
    change = Change.from_wire(fields)
    assert change is not None, "the decider names one"
    return change
