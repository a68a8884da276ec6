"""The ways of decoding that a run compares, and their predicted speeds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pearl_pp.planning.measured_costs import run_costs
from pearl_pp.planning.modes import Family, Limits, describe, family_of, modes
from pearl_pp.planning.prediction import simulated_request
from pearl_pp.planning.replica_sets import lighter, replica_sets
from pearl_pp.planning.speed_table import GRID, speed_table
from pearl_pp.schedule.placement import Placement
from pearl_pp.schedule.schedule import TICKS, Schedule, speculative

T, PASS = 40e-3, 5e-3
ONES = dict.fromkeys(Family, 1.0)


def placement(num_ranks: int) -> Placement:
    replicas = next(replica_sets(num_ranks, 2))
    return Placement("auto", (1,) * num_ranks, replicas, 1, num_ranks, None, "catchup")


def base(num_ranks: int) -> Schedule:
    both = num_ranks > 1
    return speculative(placement(num_ranks), 4, pre_verify=both, post_verify=both)


def costs(num_ranks: int):
    return run_costs([{1: T / num_ranks}] * num_ranks, [[PASS]] * len(placement(num_ranks).replicas), T)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5, 8])
def test_every_kind_is_there_on_several_ranks_and_rounds_alone_on_one(num_ranks: int) -> None:
    found = modes(base(num_ranks), placement(num_ranks), costs(num_ranks), Limits())
    kinds = {mode.family for mode in found}
    assert kinds == (set(Family) if num_ranks > 1 else {Family.PLAIN, Family.TURNS})
    assert len(set(found)) == len(found)
    for mode in found:
        assert family_of(mode.schedule) is mode.family
        assert mode.schedule.replicas == base(num_ranks).replicas, "nothing has to be loaded for a change"


def test_what_the_user_has_fixed_stays() -> None:
    found = modes(base(4), placement(4), costs(4), Limits(gamma=5, fill=2, interval=3))
    for mode in found:
        schedule = mode.schedule
        if mode.family is Family.TURNS:
            assert schedule.draft_limit == 5
        elif mode.family is not Family.PLAIN:
            assert (schedule.fill, schedule.verify_interval) == (2, 3)
            assert schedule.pass_ticks == 3 * TICKS // 5
    rounds = modes(base(4), placement(4), costs(4), Limits(families=frozenset({Family.TURNS})))
    assert {mode.family for mode in rounds} == {Family.TURNS}


def test_the_table_says_what_the_simulator_says() -> None:
    found = modes(base(4), placement(4), costs(4), Limits())
    table = speed_table(found, costs(4))
    for number in range(0, len(found), 7):
        for acceptance in (0.3, 0.85):
            request = simulated_request(found[number].schedule, costs(4), acceptance, num_tokens=1500)
            predicted = 1 / table.seconds_per_token(number, acceptance)
            assert predicted == pytest.approx(request.decode_tokens_per_s, rel=0.06)


def test_plain_decoding_does_not_depend_on_acceptance_and_wins_where_nothing_is_right() -> None:
    found = modes(base(4), placement(4), costs(4), Limits())
    table = speed_table(found, costs(4))
    plain = next(n for n, mode in enumerate(found) if mode.family is Family.PLAIN)
    assert table.seconds_per_token(plain, 0.0) == pytest.approx(table.seconds_per_token(plain, 1.0)) == pytest.approx(T)
    slow = ONES | {Family.ONE_CHUNK: 1.05, Family.PIPELINED: 1.05}
    assert found[table.best(0.0, slow)].family is Family.PLAIN
    assert found[table.best(0.8, slow)].family is Family.PIPELINED, "as DESIGN section 4 has it"


def test_between_two_acceptances_the_time_of_a_token_lies_between() -> None:
    table = speed_table(modes(base(2), placement(2), costs(2), Limits()), costs(2))
    for row_number, row in enumerate(table.seconds):
        for left in range(len(GRID) - 1):
            middle = table.seconds_per_token(row_number, (GRID[left] + GRID[left + 1]) / 2)
            assert min(row[left : left + 2]) <= middle <= max(row[left : left + 2])
        assert table.seconds_per_token(row_number, 1.0) == row[-1]


def test_pass_times_lie_on_lines_through_what_was_measured_and_messages_are_the_rest() -> None:
    known = run_costs([{1: 2.0, 5: 4.0, 9: 5.0}, {1: 3.0, 5: 5.0, 9: 6.0}], [[0.5, 1.0]], 5.8)
    assert [known.target(0, n) for n in (1, 3, 5, 7, 9, 13)] == [2.0, 3.0, 4.0, 4.5, 5.0, 6.0]
    assert known.message(None, 1, 0, 3, 0) == pytest.approx(0.4)
    assert known.draft(0, 0, 1, 1) == 1.0
    assert known.draft(0, 0, 1, 9) == pytest.approx(11 / 5)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5, 8])
def test_less_and_less_of_the_draft_is_loaded(num_ranks: int) -> None:
    sets = list(replica_sets(num_ranks, 4))
    assert sets[-1] == ()
    sizes = [sum(shard.num_layers for replica in replicas for shard in replica) for replicas in sets]
    assert sizes == sorted(sizes, reverse=True)
    assert all(replica[-1].end == 4 for replicas in sets for replica in replicas)
    whole = placement(num_ranks)
    wanted = list(lighter(whole, None))
    assert wanted[0] == whole
    assert [p.replicas for p in wanted] == list(dict.fromkeys(sets_of(num_ranks)))
    assert all(sum(p.target) == num_ranks for p in wanted)


def sets_of(num_ranks: int) -> list:
    return list(replica_sets(num_ranks, 2))


@pytest.mark.parametrize("num_ranks", [3, 5, 7])
def test_an_odd_number_of_ranks_has_a_copy_where_p_2_needs_one(num_ranks: int) -> None:
    ranks = [replica[0].rank for replica in next(replica_sets(num_ranks, 2))]
    assert len({rank % 2 for rank in ranks}) == 2


def test_a_mode_in_words() -> None:
    schedule = base(4)
    assert describe(schedule) == "F = 1, p = 4, gamma 4"
    assert describe(replace(schedule, active=())) == "plain decoding"
    assert describe(replace(schedule, first_window=3, draft_limit=3)) == "sd, gamma 3"
