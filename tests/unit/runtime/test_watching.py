"""The watcher against made-up machines: its clock and the draft's luck are the test's."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from pearl_pp.messages import Change, Outcome, Reason, Verdict
from pearl_pp.planning.measured_costs import run_costs
from pearl_pp.planning.modes import Family, Limits, modes
from pearl_pp.planning.speed_table import SpeedTable, speed_table
from pearl_pp.runtime.watching import FIRST_HOLD, Watcher, explain
from pearl_pp.schedule.instructions import Verify
from pearl_pp.schedule.placement import Placement, Shard
from pearl_pp.schedule.schedule import Schedule, speculative

PLACEMENT = Placement("auto", (2, 3, 3, 2), ((Shard(3, 0, 2),), (Shard(0, 0, 2),)), 1, 4, None, "catchup")
BASE = speculative(PLACEMENT, 4)
COSTS = run_costs([{1: 2e-3, 5: 2.2e-3}] * 4, [[1e-3], [1e-3]], 8.4e-3)
TABLE = speed_table(modes(BASE, PLACEMENT, COSTS, Limits()), COSTS)
ONES = dict.fromkeys(Family, 1.0)


@dataclass
class Machine:
    """Plays verdicts of the mode in force at the speed that the mode has here.

    Args:
        factors: true over predicted time of each family.
        acceptance: at a position. slowness: of the whole machine, there.
    """

    watcher: Watcher
    acceptance: Callable[[int], float]
    factors: dict[Family, float] = field(default_factory=lambda: dict(ONES))
    slowness: Callable[[int], float] = lambda position: 1.0
    table: SpeedTable = TABLE
    seed: int = 0
    noise: float = 0.03

    def __post_init__(self) -> None:
        self.now = 0.0
        self.position = 0
        self.changes: list[tuple[int, Change]] = []
        self._random = random.Random(self.seed)
        self.schedule = self.table.modes[self.watcher.current].schedule

    @property
    def family(self) -> Family:
        return self.table.modes[self.table.number_of(self.schedule)].family

    def run(self, num_tokens: int) -> float:
        """Seconds of one request."""
        self.watcher.begin_request()
        start, end = self.now, self.position + num_tokens
        while self.position < end:
            verdict = self._verdict()
            number = self.table.number_of(self.schedule)
            true = self.acceptance(self.position)
            tokens = max(1, len(verdict.token_ids))
            pace = self.table.seconds_per_token(number, true) * self.factors[self.family] * self.slowness(self.position)
            # A verdict takes its share of the mode's mean speed: what it yields in the mean.
            self.now += pace * self._mean_tokens(true) * self._random.gauss(1.0, self.noise)
            self.position += tokens
            decided = self.watcher.decide(Verify(3, self.position, 0, False), verdict)
            if decided.change is not None:
                self.changes.append((self.position, decided.change))
                self.schedule = self.schedule.changed(decided.change)
        return self.now - start

    def _judged(self) -> int:
        return 0 if not self.schedule.drafts else self.schedule.draft_limit or 4

    def _mean_tokens(self, acceptance: float) -> float:
        return sum(acceptance**i for i in range(self._judged() + 1))

    def _verdict(self) -> Verdict:
        judged, acceptance = self._judged(), self.acceptance(self.position)
        accepted = next((i for i in range(judged) if self._random.random() >= acceptance), judged)
        outcome = Outcome.REJECTED if accepted < judged else Outcome.BONUS
        return Verdict(0, (0,) * (accepted + 1), accepted, outcome)


def machine(acceptance: float, *, believed: float | None = None, start: Family | None = None, **options) -> Machine:
    """A machine whose watcher believes in `believed` at first, and starts with the mode that is best then."""
    believed = acceptance if believed is None else believed
    number = TABLE.best(believed, ONES, [start] if start else Family)
    watcher = Watcher(TABLE, ONES, number, believed, clock=lambda: made.now)
    made = Machine(watcher, options.pop("changing", lambda position: acceptance), **options)
    return made


def only(*families: Family) -> SpeedTable:
    """What may be chosen under `--strategy sd`, or on one rank."""
    numbers = [number for number, mode in enumerate(TABLE.modes) if mode.family in families]
    return SpeedTable(tuple(TABLE.modes[n] for n in numbers), tuple(TABLE.seconds[n] for n in numbers))


def plain_seconds(num_tokens: int) -> float:
    return TABLE.seconds_per_token(TABLE.best(0.0, ONES, [Family.PLAIN]), 0.0) * num_tokens


@pytest.mark.parametrize("num_tokens", [128, 256, 1024])
def test_retries_cost_less_than_a_twentieth_where_nothing_is_ever_accepted(num_tokens: int) -> None:
    made = machine(0.0)
    assert made.family is Family.PLAIN
    # A window in which all is rejected takes up to half as long again as a plain pass, and yields one token.
    made.factors = {family: 1.0 if family is Family.PLAIN else 1.4 for family in Family}
    assert plain_seconds(num_tokens) / made.run(num_tokens) >= 0.95
    assert any(change.reason is Reason.RETRY for _, change in made.changes) == (num_tokens > FIRST_HOLD)


def test_it_goes_plain_where_speculation_loses_and_says_so() -> None:
    rounds = only(Family.PLAIN, Family.TURNS)
    watcher = Watcher(rounds, ONES, rounds.best(0.8, ONES), 0.8, clock=lambda: made.now)
    made = Machine(watcher, lambda position: 0.02, table=rounds)
    made.run(100)
    position, change = made.changes[-1]
    assert (change.reason, change.active, made.family) == (Reason.LOSES, (), Family.PLAIN)
    assert position < 80, "it takes some dozen rejections to believe that the past is over"
    line = explain(change, made.schedule)
    assert line.startswith("speculation loses here (acceptance 0.") and line.endswith("plain for 64 tokens")


def test_a_disturbed_measurement_of_plain_decoding_does_not_keep_it_away_where_nothing_is_accepted() -> None:
    believed = {family: 1.6 if family is Family.PLAIN else 1.0 for family in Family}
    turns = TABLE.best(0.5, ONES, [Family.TURNS])
    watcher = Watcher(TABLE, believed, turns, 0.1, clock=lambda: made.now)
    made = Machine(watcher, lambda position: 0.0)
    made.run(40)
    assert made.family is Family.PLAIN, "no speculation is faster without an accepted token, whatever was measured"


def test_the_wait_before_a_retry_doubles_each_time_it_fails() -> None:
    made = machine(0.0)
    made.run(1000)
    retries = [position for position, change in made.changes if change.reason is Reason.RETRY]
    holds = [change.hold for _, change in made.changes if change.reason is Reason.LOSES]
    assert holds == [2 * FIRST_HOLD, 4 * FIRST_HOLD, 8 * FIRST_HOLD, 16 * FIRST_HOLD]
    assert retries[0] == FIRST_HOLD
    assert all(b - a >= 120 for a, b in pairwise(retries))


def test_speculation_comes_back_with_the_acceptance_also_in_a_later_request() -> None:
    made = machine(0.0, changing=lambda position: 0.0 if position < 90 else 0.85)
    for _ in range(4):
        made.run(64)
    made.run(256)
    assert made.family is not Family.PLAIN
    assert made.watcher.acceptance.value > 0.6


def test_a_prediction_that_measurement_refutes_is_given_up() -> None:
    made = machine(0.8)
    first = made.family
    made.factors = {family: 2.5 if family is first else 1.0 for family in Family}
    made.run(600)
    assert made.family not in (first, Family.PLAIN)
    assert made.changes[0][1].reason is Reason.FASTER
    assert "is faster here" in explain(made.changes[0][1], made.schedule)


def test_gamma_shrinks_where_less_is_accepted() -> None:
    rounds = only(Family.TURNS)
    watcher = Watcher(rounds, ONES, rounds.best(0.9, ONES), 0.9, clock=lambda: made.now)
    made = Machine(watcher, lambda position: 0.9 if position < 300 else 0.2, table=rounds)
    made.run(300)
    before = made.schedule.draft_limit or 0
    made.run(400)
    after = made.schedule.draft_limit or 0
    assert 1 <= after < before


@pytest.mark.parametrize("seed", range(5))
def test_nothing_changes_back_and_forth(seed: int) -> None:
    made = machine(0.75, seed=seed, noise=0.1)
    made.run(4000)
    assert len(made.changes) <= 8


def test_a_machine_that_slows_down_as_a_whole_keeps_its_mode() -> None:
    made = machine(0.8, slowness=lambda position: 1.0 if position < 400 else 1.8)
    made.run(400)
    family = made.family
    made.changes.clear()
    made.run(800)
    assert made.family is family
    assert not any(change.reason is Reason.LOSES for _, change in made.changes)


def test_time_between_requests_does_not_count() -> None:
    made = machine(0.8)
    for _ in range(10):
        made.run(60)
        made.now += 1000.0
    assert all(0.5 < factor < 2.0 for factor in made.watcher.factors.values())


def test_a_change_says_all_that_a_schedule_needs() -> None:
    for mode in TABLE.modes:
        assert BASE.changed(mode.schedule.as_change()) == mode.schedule
    assert isinstance(BASE.changed(TABLE.modes[0].schedule.as_change()), Schedule)
