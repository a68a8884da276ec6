"""Times of passes and messages from a profile."""

from __future__ import annotations

import pytest

from pearl_pp.messages import Verdict
from pearl_pp.schedule.instructions import Kind
from pearl_pp.schedule.placement import Placement, Shard
from pearl_pp.simulation.costs import MeasuredCosts, Overheads, PassTimes, ProfileCosts
from tests.unit.simulation.machines import profile

UNEVEN = Placement("", (3, 3, 2), ((Shard(2, 0, 1), Shard(0, 1, 4)), (Shard(1, 0, 4),)), 1, 3, 4, "ship")


def test_a_stage_takes_its_share_of_the_layers_and_a_slow_card_longer() -> None:
    costs = ProfileCosts(profile(ranks__speed=[1, 0.5, 2, 1, 1]), UNEVEN)
    assert [costs.target(rank, 1) for rank in range(3)] == pytest.approx([0.015, 0.030, 0.005])
    assert costs.draft(2, 0, 0, 1) == pytest.approx(0.005 / 4 / 2)
    assert costs.draft(0, 0, 1, 1) == pytest.approx(0.005 * 3 / 4)
    assert costs.draft(1, 1, 0, 1) == pytest.approx(0.010)


def test_further_tokens_cost_what_the_profile_says() -> None:
    costs = ProfileCosts(profile(target__extra_token_ms=0.8, draft__extra_token_ms=0.4), UNEVEN)
    assert costs.target(0, 5) == pytest.approx((40 + 4 * 0.8) * 1e-3 * 3 / 8)
    assert costs.draft(1, 1, 0, 3) == pytest.approx((5 + 2 * 0.4) * 1e-3)


def test_prefill_is_bound_by_tokens_per_second_and_a_short_chunk_by_the_weights() -> None:
    costs = ProfileCosts(profile(target__extra_token_ms=1.0), UNEVEN)
    assert costs.target(0, 2000) == pytest.approx(0.2 * 3 / 8)
    assert costs.draft(1, 1, 0, 2000) == pytest.approx(0.2 / 8)  # c = 8
    times = [costs.target(0, n) for n in (1, 8, 31, 32, 33, 100, 500, 1000, 3000)]
    assert times == sorted(times), "more tokens never take less time"


@pytest.mark.parametrize(
    ("kind", "count", "num_layers", "num_bytes"),
    [
        (Kind.ACTIVATION, 5, 0, 5 * 64 * 2),
        (Kind.DRAFT_ACTIVATION, 2, 0, 2 * 32 * 2),
        (Kind.TOKENS, 3, 0, 24),
        (Kind.PROBS, 2, 0, 2 * 4096 * 4),
        (Kind.KV, 3, 2, 3 * 2 * 128),
        (Kind.REPORT, 2, 0, 16),
        (None, 4, 0, 8 * Verdict.wire_length(4)),
    ],
)
def test_a_message_takes_latency_and_its_bytes_over_the_bandwidth(
    kind: Kind | None, count: int, num_layers: int, num_bytes: int
) -> None:
    machine = profile(link={"latency_us": 20, "bandwidth_gb_s": 0.5})
    costs = ProfileCosts(machine, UNEVEN)
    assert costs.message_bytes(kind, count, num_layers) == num_bytes
    assert costs.message(kind, 0, 1, count, num_layers) == pytest.approx(20e-6 + num_bytes / 0.5e9)
    measured = ProfileCosts(machine, UNEVEN, Overheads(message_s=1e-3))
    assert measured.message(kind, 0, 1, count, num_layers) == pytest.approx(1e-3 + 20e-6 + num_bytes / 0.5e9)


def test_a_placement_that_needs_more_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="3 ranks"):
        ProfileCosts(profile(ranks={"memory_gb": [1, 1], "speed": [1, 1]}), UNEVEN)


def test_a_list_of_times_is_a_measurement_and_goes_on_evenly() -> None:
    machine = profile(target__pass_ms=[40, 44, 46], draft__pass_ms=[5.0, 7.0], draft__extra_token_ms=0.5)
    costs = ProfileCosts(machine, UNEVEN)
    times = [costs.target(0, n) / 3 * 8 for n in (1, 2, 3, 4, 10)]
    assert times == pytest.approx([0.040, 0.044, 0.046, 0.048, 0.060]), "the last difference, where none is told"
    assert [costs.draft(1, 1, 0, n) for n in (1, 2, 4)] == pytest.approx([0.005, 0.007, 0.008])
    assert (machine.target.one_token_ms, machine.ratio) == (40, 8)
    falling = profile(target__pass_ms=[40, 39])
    assert falling.target.further_token_ms == 0.0, "more tokens never take less time"


def test_a_list_longer_than_windows_are_is_taken_as_it_stands() -> None:
    machine = profile(target__pass_ms=[float(n) for n in range(1, 51)])
    assert machine.target.pass_s(50, 1e9) == pytest.approx(0.050)
    assert machine.target.pass_s(51, 1e9) == pytest.approx(0.050)
    assert machine.target.pass_s(51, 510) == pytest.approx(0.1)


def test_measured_passes_keep_their_ranks_and_messages_are_free() -> None:
    stages = [PassTimes((0.03, 0.04), 0.01), PassTimes((0.05,)), PassTimes((0.02,))]
    shards = {(0, 0): PassTimes((0.001,)), (0, 1): PassTimes((0.002,)), (1, 0): PassTimes((0.004,), 0.001)}
    costs = MeasuredCosts(stages, shards)
    assert [costs.target(0, n) for n in (1, 2, 3)] == pytest.approx([0.03, 0.04, 0.05])
    assert (costs.target(1, 5), costs.draft(0, 0, 1, 3)) == (0.05, 0.002)
    assert costs.draft(1, 1, 0, 3) == pytest.approx(0.006)
    assert (costs.message(Kind.KV, 0, 1, 5, 5), costs.slot_s, costs.post_s) == (0.0, 0.0, 0.0)
