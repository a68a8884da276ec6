"""The closed form beside the simulator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pearl_pp.planning.candidates import PLAIN, TURNS, WINDOWS
from pearl_pp.planning.prediction import exact_pass_ticks, expected_tokens_per_s, simulated_request
from pearl_pp.planning.window_shape import window_shape
from pearl_pp.schedule.placement import Placement, Replica, Shard
from pearl_pp.schedule.schedule import TICKS, speculative
from pearl_pp.simulation.costs import ProfileCosts
from tests.unit.simulation.machines import profile


def whole(*ranks: int) -> tuple[Replica, ...]:
    return tuple((Shard(rank, 0, 4),) for rank in ranks)


EVEN = {"link": {"latency_us": 0, "bandwidth_gb_s": 1000}}
SLOW_LINKS = {"link": {"latency_us": 2000, "bandwidth_gb_s": 0.2}}
MIXED = {"ranks__speed": [1, 1, 0.5, 0.5, 1]}

PLACEMENTS = [
    Placement("", (2, 2, 2, 2), whole(3, 0), 1, 4, None, "catchup"),
    Placement("", (2, 2, 2, 2), whole(3, 0), 1, 2, None, "catchup"),
    Placement("", (2, 2, 2, 2), whole(3, 0), 3, 2, None, "catchup"),
    Placement("", (2, 2, 2, 2), whole(3), 1, 1, None, "catchup"),
    Placement("", (2, 2, 2, 2), whole(3), 1, 4, 8, "catchup"),
    Placement("", (3, 3, 1, 1), whole(1, 0), 1, 2, None, "catchup"),
    Placement("", (3, 2, 2, 1), whole(3, 1, 0), 4, 3, 4, "catchup"),
    Placement("", (3, 3, 2), whole(3), 2, 1, None, "catchup"),
    Placement("", (2, 2, 2, 2), ((Shard(3, 0, 2), Shard(2, 2, 4)),), 1, 4, None, "catchup"),
]


@pytest.mark.parametrize("acceptance", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("machine", [EVEN, SLOW_LINKS, MIXED], ids=["even", "slow links", "mixed"])
@pytest.mark.parametrize(
    "placement", PLACEMENTS, ids=lambda p: f"{p.target} on {p.replicas} F{p.fill} p{p.verify_interval}"
)
def test_it_is_within_a_few_points_of_the_simulator(placement: Placement, machine: dict, acceptance: float) -> None:
    costs = ProfileCosts(profile(**machine), placement)
    simulated = expected_tokens_per_s(WINDOWS.schedule(placement, costs), costs, acceptance)
    assert WINDOWS.screened(placement, costs, acceptance) == pytest.approx(simulated, rel=0.05)


@pytest.mark.parametrize("machine", [EVEN, SLOW_LINKS, MIXED], ids=["even", "slow links", "mixed"])
def test_plain_decoding_and_turns_too(machine: dict) -> None:
    plain = Placement("", (2, 2, 2, 2), (), 1, 4, None, "catchup")
    costs = ProfileCosts(profile(**machine), plain)
    simulated = expected_tokens_per_s(PLAIN.schedule(plain, costs), costs, 0.7)
    assert PLAIN.screened(plain, costs, 0.7) == pytest.approx(simulated, rel=0.02)
    for gamma in (1, 3, 7):
        turns = replace(plain, replicas=whole(0), gamma=gamma)
        costs = ProfileCosts(profile(**machine), turns)
        simulated = expected_tokens_per_s(TURNS.schedule(turns, costs), costs, 0.7)
        assert TURNS.screened(turns, costs, 0.7) == pytest.approx(simulated, rel=0.03)


def test_it_has_an_answer_at_the_ends() -> None:
    """A rejection each time: one token a pass of the target. None at all: as fast as the draft, 5 ms a token."""
    costs = ProfileCosts(profile(), PLACEMENTS[1])
    assert WINDOWS.screened(PLACEMENTS[1], costs, 0.0) == pytest.approx(1 / 0.040, rel=1e-3)
    assert WINDOWS.screened(PLACEMENTS[1], costs, 1.0) == pytest.approx(1 / 0.005, rel=1e-3)


def test_the_long_run_is_that_of_long_texts() -> None:
    """What is ranked, without noise, is what a simulated text of many tokens comes to."""
    costs = ProfileCosts(profile(), PLACEMENTS[2])
    schedule = WINDOWS.schedule(PLACEMENTS[2], costs)
    requests = [simulated_request(schedule, costs, 0.7, num_tokens=3000, seed=seed) for seed in range(3)]
    texts = [request.decode_tokens_per_s or 0.0 for request in requests]
    assert expected_tokens_per_s(schedule, costs, 0.7) == pytest.approx(sum(texts) / 3, rel=0.02)


def test_passes_are_as_long_as_measured() -> None:
    """t N / T slots; a pass a little too long for its slot is taken to fit."""
    costs = ProfileCosts(profile(), PLACEMENTS[0])
    assert exact_pass_ticks(PLACEMENTS[0], costs) == TICKS // 2
    costs = ProfileCosts(profile(draft__pass_ms=5.2), PLACEMENTS[0])
    assert exact_pass_ticks(PLACEMENTS[0], costs) == TICKS // 2
    alone = replace(PLACEMENTS[0], replicas=whole(4))
    costs = ProfileCosts(profile(draft__pass_ms=5.2), alone)
    assert exact_pass_ticks(alone, costs) == pytest.approx(0.52 * TICKS, abs=1)


def test_a_window_ends_in_a_bonus_where_nothing_is_drafted_in_time() -> None:
    """Two stages and a pass of five slots: the first chunk's row judges nothing."""
    placement = Placement("", (4, 4), ((Shard(2, 0, 4),),), 1, 2, None, "catchup")
    shape = window_shape(speculative(placement, 1).with_pass_ticks(5 * TICKS), 8)
    assert (shape.entries, shape.ends, shape.bonus) == ((0,), (1,), True)
