"""Expected speeds: the table of the design, the closed form, and runs with drawn verdicts."""

from __future__ import annotations

from functools import cache

import pytest

from pearl_pp.schedule.placement import Placement, Shard
from pearl_pp.schedule.schedule import TICKS, Schedule, plain, speculative
from pearl_pp.simulation.expectation import Cycle, simulated_cycle
from tests.unit.simulation.test_simulator import EvenCosts, closed_form, pearl, tokens_per_pass_time

ACCEPTANCES = (0.6, 0.7, 0.8, 0.9)


def exact(num_stages: int, ratio: int, ranks: tuple[int, ...], fill: int, interval: int) -> Schedule:
    """Draft passes as long as measured."""
    replicas = tuple((Shard(rank, 0, 2),) for rank in ranks)
    placement = Placement("", (1,) * num_stages, replicas, fill, interval, None, "ship")
    return speculative(placement, 1).with_pass_ticks(round(num_stages / ratio * TICKS))


@cache
def dedicated_cycles(num_stages: int, ratio: int) -> list[Cycle]:
    """PEARL with one more rank for the draft: every gamma up to 2c, and the exact pace."""
    schedules = [pearl(num_stages, (num_stages,), num_stages, gamma) for gamma in range(1, 2 * ratio + 1)]
    schedules.append(exact(num_stages, ratio, (num_stages,), 1, num_stages))
    return [simulated_cycle(schedule, EvenCosts(num_stages, ratio)) for schedule in schedules]


@pytest.mark.parametrize(
    ("reference", "arguments", "expected"),
    [
        ((4, 8), (4, 8, (3, 0), 1, 4), [100, 100, 100, 100]),
        ((4, 8), (4, 8, (3,), 1, 4), [99, 97, 94, 89]),
        ((4, 8), (4, 8, (3, 0), 1, 2), [120, 119, 117, 112]),
        ((4, 5), (4, 5, (3, 0), 1, 2), [112, 109, 104, 95]),
        ((4, 12), (4, 12, (3, 0), 1, 2), [122, 122, 120, 115]),
        ((8, 12), (8, 12, (7, 0), 1, 2), [134, 135, 130, 115]),
        ((3, 8), (3, 8, (2, 1), 1, 2), [112, 111, 107, 98]),
        ((4, 8), (4, 8, (3, 0), 3, 2), [129, 127, 120, 110]),
        ((4, 12), (4, 12, (3, 0), 3, 2), [134, 133, 128, 115]),
        ((8, 12), (8, 12, (7, 0), 7, 2), [139, 139, 132, 111]),
        ((3, 8), (3, 8, (2, 1), 3, 2), [121, 115, 104, 90]),
        ((4, 8), (4, 8, (3,), 4, 1), [128, 123, 110, 87]),
        ((2, 8), (2, 8, (1, 0), 2, 2), [116, 112, 104, 95]),
        # The draft alone on one of the four cards, the target on the other three.
        ((4, 8), (3, 8, (3,), 1, 1), [124, 122, 118, 111]),
        ((4, 12), (3, 12, (3,), 1, 1), [130, 131, 128, 120]),
    ],
)
def test_expected_speeds_over_dedicated_at_its_best_gamma(
    reference: tuple[int, int], arguments: tuple, expected: list[float]
) -> None:
    """The table of expected speeds, without overheads, within 2 points."""
    cycle = simulated_cycle(exact(*arguments), EvenCosts(arguments[0], arguments[1]))
    best = [max(other.tokens_per_s(alpha) for other in dedicated_cycles(*reference)) for alpha in ACCEPTANCES]
    relative = [100 * cycle.tokens_per_s(alpha) / speed for alpha, speed in zip(ACCEPTANCES, best, strict=True)]
    assert relative == pytest.approx(expected, abs=2.0)


@pytest.mark.parametrize("alpha", [0.3, *ACCEPTANCES])
@pytest.mark.parametrize(("ranks", "interval", "gamma"), [((4,), 4, 8), ((3, 0), 4, 8), ((3, 0), 2, 4)])
def test_it_is_the_closed_form_where_that_holds(
    alpha: float, ranks: tuple[int, ...], interval: int, gamma: int
) -> None:
    cycle = simulated_cycle(pearl(4, ranks, interval, gamma), EvenCosts(4, 8))
    assert cycle.tokens_per_s(alpha) == pytest.approx(closed_form(alpha, gamma, 4, interval), rel=1e-6)


@pytest.mark.parametrize(
    "arguments",
    [(4, 8, (3,), 4, 1), (3, 8, (2, 1), 3, 2), (2, 8, (1, 0), 2, 2), (3, 8, (3,), 1, 1), (4, 5, (3, 0), 1, 2)],
)
def test_drawn_verdicts_come_to_the_same(arguments: tuple) -> None:
    """The same draws for both schedules: what chance adds to one it adds to the other."""
    num_stages, ratio, *_ = arguments
    costs, num_tokens = EvenCosts(num_stages, ratio), 6000
    drawn = tokens_per_pass_time(exact(*arguments), costs, 0.8, num_tokens)
    reference = exact(num_stages, ratio, (num_stages,), 1, num_stages)
    drawn /= tokens_per_pass_time(reference, costs, 0.8, num_tokens)
    expected = simulated_cycle(exact(*arguments), costs).tokens_per_s(0.8)
    expected /= simulated_cycle(reference, costs).tokens_per_s(0.8)
    assert drawn == pytest.approx(expected, rel=0.015)


def test_plain_and_speculative_decoding_in_turns() -> None:
    assert simulated_cycle(plain(4), EvenCosts(4, 8)).tokens_per_s(0.5) == pytest.approx(1.0)
    placement = Placement("", (1,) * 4, ((Shard(0, 0, 2),),), 1, 4, 5, "catchup")
    turns = speculative(placement, 5, pre_verify=False, post_verify=False)
    alpha, expected_tokens = 0.8, sum(0.8**i for i in range(6))
    speed = simulated_cycle(turns, EvenCosts(4, 8)).tokens_per_s(alpha)
    assert speed == pytest.approx(expected_tokens / (1 + 5 / 8))


def test_a_draft_that_is_always_right_never_restarts() -> None:
    cycle = simulated_cycle(pearl(4, (4,), 4, 8), EvenCosts(4, 8))
    assert cycle.tokens_per_s(1.0) == pytest.approx(8, rel=0.05)
    assert cycle.tokens_per_s(0.0) == pytest.approx(1.0)
