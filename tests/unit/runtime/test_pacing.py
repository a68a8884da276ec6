"""`--gamma auto`: a draft pass in slots, from measured times."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl_pp.runtime.pacing import measured_pass_ticks, prefill_piece
from pearl_pp.schedule.placement import Shard
from pearl_pp.schedule.schedule import TICKS
from tests.inprocess import Cluster
from tests.unit.simulation.machines import save_profile

LAST = (Shard(3, 0, 2),)
FIRST = (Shard(0, 0, 2),)
CUT = (Shard(1, 0, 1), Shard(2, 1, 2))
MS = 1_000_000


def slots(ticks: int) -> float:
    return ticks / TICKS


def test_a_pass_is_as_many_slots_as_measured() -> None:
    """T = 40 ms over 4 stages: a slot is 10 ms."""
    assert slots(measured_pass_ticks([10 * MS] * 4, [0, 0, 0, 5 * MS], [LAST], 4)) == 0.5


def test_uneven_stages_count_with_their_mean() -> None:
    assert slots(measured_pass_ticks([4 * MS, 8 * MS, 12 * MS, 16 * MS], [0, 0, 0, 5 * MS], [LAST], 4)) == 0.5


def test_the_slowest_replica_sets_the_pace() -> None:
    assert slots(measured_pass_ticks([10 * MS] * 4, [9 * MS, 0, 0, 5 * MS], [LAST, FIRST], 4)) == 0.9


def test_the_shards_of_a_replica_add_up() -> None:
    assert slots(measured_pass_ticks([10 * MS] * 4, [0, 3 * MS, 4 * MS, 0], [CUT], 4)) == 0.7


def test_a_replica_not_yet_measured_is_left_out() -> None:
    assert slots(measured_pass_ticks([10 * MS] * 4, [0, 3 * MS, 0, 5 * MS], [LAST, CUT], 4)) == 0.5


def test_a_draft_on_a_rank_of_its_own_is_no_stage() -> None:
    times = [10 * MS, 10 * MS, 0]
    assert slots(measured_pass_ticks(times, [0, 0, 5 * MS], [(Shard(2, 0, 2),)], 2)) == 0.5


@pytest.mark.parametrize(
    ("target_ns", "draft_ns"), [([10, 0, 10, 10], [5, 5, 5, 5]), ([10] * 4, [5, 5, 5, 0]), ([0] * 4, [0] * 4)]
)
def test_where_something_was_not_measured_nothing_changes(target_ns: list[int], draft_ns: list[int]) -> None:
    assert measured_pass_ticks(target_ns, draft_ns, [LAST], 4) == 0


@given(st.lists(st.integers(1, 10**10), min_size=4, max_size=4), st.integers(1, 10**10))
def test_the_length_is_exact_to_a_tick_and_never_zero(target_ns: list[int], draft_ns: int) -> None:
    """On a rank of the draft's own; see below for a rank that it shares."""
    ticks = measured_pass_ticks([*target_ns, 0], [0, 0, 0, 0, draft_ns], [(Shard(4, 0, 2),)], 4)
    exact = Fraction(draft_ns * 4, sum(target_ns)) * TICKS
    assert ticks >= 1
    assert ticks == 1 or exact - 1 < ticks <= exact


@pytest.mark.parametrize(
    ("measured", "fitted"),
    [(0.506, 0.5), (0.5, 0.5), (0.55, 0.55), (1.04, 1.0), (0.49, 0.49), (2.05, 2.0), (0.34, 1 / 3)],
)
def test_a_pass_that_nearly_fits_into_a_slot_is_taken_to_fit(measured: float, fitted: float) -> None:
    ticks = measured_pass_ticks([1000 * MS] * 4, [0, 0, 0, int(measured * 1000 * MS)], [LAST], 4)
    assert slots(ticks) == pytest.approx(fitted, abs=2 / TICKS)
    alone = measured_pass_ticks([1000 * MS] * 4, [0, 0, 0, 0, int(measured * 1000 * MS)], [(Shard(4, 0, 2),)], 4)
    assert slots(alone) == pytest.approx(measured, abs=2 / TICKS), "on a rank of its own nothing needs to fit"


@given(st.integers(1, 200_000), st.integers(1, 16))
def test_a_long_prompt_is_cut_so_that_every_stage_has_a_piece(prompt_len: int, num_stages: int) -> None:
    piece = prefill_piece(prompt_len, num_stages, 128)
    if num_stages == 1 or prompt_len < 256:
        assert piece == 0, "nothing would overlap, or a pass over a piece costs as much as one over the whole"
        return
    num_pieces = -(-prompt_len // piece)
    assert piece >= 128
    assert 2 <= num_pieces <= 3 * num_stages
    if prompt_len >= 128 * 3 * num_stages:
        slots = (num_pieces + num_stages - 1) / num_pieces
        assert slots < 1.5, "the whole prompt's time in a stage, and less than half of it again to fill the pipeline"


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 8))
def test_a_piece_of_ones_own_choice_is_taken_as_it_is(prompt_len: int, wanted: int, num_stages: int) -> None:
    piece = prefill_piece(prompt_len, num_stages, 128, wanted)
    assert piece == (0 if wanted >= prompt_len else wanted)


@pytest.mark.parametrize(("wanted", "num_pieces"), [(1, 10), (3, 4), (9, 2), (10, 1), (99, 1), ("auto", 1)])
def test_the_prompt_goes_through_in_pieces_of_the_option(wanted: int | str, num_pieces: int, tmp_path: Path) -> None:
    path = save_profile(tmp_path, target__pass_ms=2.0, draft__pass_ms=0.1)
    cluster = Cluster(None, None, 3, emulate=path, placement="hop", prefill_piece=wanted)
    schedules = {result.generator.schedule.prefill_piece for result in cluster.run([0] * 10, max_new_tokens=4).results}
    assert len(schedules) == 1
    piece = schedules.pop()
    assert (-(-10 // piece) if piece else 1) == num_pieces
