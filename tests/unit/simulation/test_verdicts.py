"""Verdict streams that a run has left behind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl_pp.messages import Outcome, Verdict
from pearl_pp.runtime.worker import Progress
from pearl_pp.simulation.simulator import Simulator
from pearl_pp.simulation.timeline import Timeline
from pearl_pp.simulation.verdicts import independent, replayed
from tests.unit.schedule.strategies import schedules
from tests.unit.simulation.test_simulator import EvenCosts, pearl

PROMPT_LEN = 3


def progress_of(verdicts: list[Verdict]) -> Progress:
    progress = Progress()
    for verdict in verdicts:
        progress.count(verdict)
    return progress


def verdicts_of(timeline: Timeline) -> list[Verdict]:
    return [verdict for _, verdict in timeline.verdicts]


@settings(max_examples=40, deadline=None)
@given(schedules(), st.floats(0, 1), st.integers(0, 50), st.integers(2, 60))
def test_a_request_replays_as_it_was(schedule, acceptance: float, seed: int, num_tokens: int) -> None:
    costs, total_len = EvenCosts(schedule.num_stages, 8), PROMPT_LEN + num_tokens
    made = Simulator(schedule, costs, independent(acceptance, seed)).run(PROMPT_LEN, total_len)
    runs = progress_of(verdicts_of(made)).accepted_runs
    again = Simulator(schedule, costs, replayed(runs, total_len)).run(PROMPT_LEN, total_len)
    assert verdicts_of(again) == verdicts_of(made)
    assert again.duration == pytest.approx(made.duration)


def test_a_text_that_ended_before_its_limit_ends_there_again() -> None:
    schedule, costs = pearl(4, (3, 0), 4, 8), EvenCosts(4, 8)
    timeline = Simulator(schedule, costs, replayed([3, 0, 40], PROMPT_LEN + 20)).run(PROMPT_LEN, PROMPT_LEN + 100)
    assert timeline.num_tokens == 20
    outcomes = [verdict.outcome for verdict in verdicts_of(timeline)]
    assert outcomes.count(Outcome.REJECTED) == 2
    assert progress_of(verdicts_of(timeline)).accepted_runs[:2] == [3, 0]
