"""The planner's choices, on machines where the right answer is known."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl_pp.errors import UserError
from pearl_pp.planning.candidates import candidates_of
from pearl_pp.planning.choice import Ranking, choose
from pearl_pp.planning.memory import planned_bytes
from pearl_pp.planning.question import Question, Wanted
from tests.unit.planning.machines import GB, question


def check(asked: Question, ranking: Ranking) -> None:
    """What is true of every answer."""
    speeds = [entry.tokens_per_s for entry in ranking.entries if entry.fits]
    if speeds:
        assert ranking.first.fits
        assert ranking.first.tokens_per_s >= 0.995 * max(speeds)
        assert speeds[1:] == sorted(speeds[1:], reverse=True)
    for entry in ranking.entries:
        placement = entry.placement
        assert sum(placement.target) == asked.num_layers
        assert placement.world_size == asked.num_ranks or not placement.replicas
        held = planned_bytes(placement, asked.target, asked.draft, asked.max_len, asked.fixed)
        assert list(entry.memory) == held
        for rank, (size, short) in enumerate(zip(held, entry.short, strict=True)):
            assert short == max(0, round(size.total - asked.memory[rank]))
        assert entry.schedule.replicas == placement.replicas or not placement.replicas
    assert "\n" not in ranking.reason


# A stage of two layers and half a gigabyte of draft fit, three layers do not: no room for a draft with a card alone.
TIGHT = {"memory": (2.8,) * 4, "draft__weights_gb": 0.5}


def test_several_chunks_in_flight_where_rejections_are_frequent() -> None:
    """DESIGN section 4, N = 4, c = 8: fill and p = 2 on two replicas."""
    asked = question(4, **TIGHT)
    ranking = choose(asked)
    check(asked, ranking)
    first = ranking.first
    assert first.strategy == "pearl"
    assert (first.placement.verify_interval, len(first.placement.replicas)) == (2, 2)
    assert first.placement.fill >= 3
    assert first.speedup == pytest.approx(2.42, abs=0.05)
    assert "one chunk in flight" in ranking.reason


def test_two_ranks_one_rank_and_many_tokens_that_are_wrong() -> None:
    expected = {
        "pearl": [question(2, memory=(10.0, 10.0)), question(3, acceptance=1.0)],
        "sd": [question(1, memory=(10.0,))],
        "ar": [question(1, memory=(8.5,)), question(4, acceptance=0.0)],
    }
    for strategy, questions in expected.items():
        for asked in questions:
            ranking = choose(asked)
            check(asked, ranking)
            assert ranking.first.strategy == strategy
            assert (ranking.first.speedup == 1.0) == (strategy == "ar")


def test_a_slow_draft_is_left_out() -> None:
    asked = question(4, draft__pass_ms=39.0, acceptance=0.3)
    ranking = choose(asked)
    check(asked, ranking)
    assert ranking.first.strategy == "ar" or ranking.first.speedup > 1
    alone = choose(question(2, draft__pass_ms=40.0, acceptance=0.1, wanted=Wanted(strategies=frozenset({"ar", "sd"}))))
    assert alone.first.strategy == "ar"
    assert alone.reason.startswith("drafting does not pay at acceptance 0.1")


def test_the_draft_gets_the_last_card_where_that_is_best_and_fits() -> None:
    """Near acceptance .9 with a draft that is busy all the time (N = 4, c = 5)."""
    busy = {"draft__pass_ms": 8.0, "acceptance": 0.88}
    roomy, tight = question(4, **busy), question(4, **busy, **TIGHT)
    roomiest, tightest = choose(roomy), choose(tight)
    check(roomy, roomiest)
    check(tight, tightest)
    assert roomiest.first.placement.num_stages == 3
    assert tightest.first.placement.num_stages == 4
    assert "; draft alone on rank 3" in tightest.reason
    assert "GB short" in tightest.reason


def test_slow_cards_get_fewer_layers_and_no_replica() -> None:
    mixed = {"ranks__speed": [1, 1, 0.5, 0.5, 1], "target__num_layers": 48, "target__kv_bytes_per_token": 48 * 256}
    asked = question(4, **mixed)
    ranking = choose(asked)
    check(asked, ranking)
    split = ranking.first.placement.target
    assert min(split[:2]) > max(split[2:])
    even = choose(question(4, **mixed, wanted=Wanted(layer_split=(12, 12, 12, 12))))
    assert even.first.placement.target == (12, 12, 12, 12)
    assert ranking.first.tokens_per_s >= 1.2 * even.first.tokens_per_s


def test_a_draft_that_fits_on_no_rank_is_cut() -> None:
    asked = question(4, memory=(2.6,) * 4)  # 2 layers of the target and half a draft
    ranking = choose(asked)
    check(asked, ranking)
    assert ranking.first.fits
    assert all(len(replica) > 1 for replica in ranking.first.placement.replicas)
    assert ranking.first.placement.replicas


def test_what_is_short_is_said() -> None:
    asked = question(4, memory=(2.1, 2.1, 1.5, 2.1))
    ranking = choose(asked)
    check(asked, ranking)
    assert not ranking.first.fits
    missing = sum(ranking.first.short)
    assert missing >= 8 * GB - sum(asked.memory)
    assert ranking.reason.startswith("nothing fits; closest is ")
    assert "GB short" in ranking.reason


def test_the_users_options_are_kept() -> None:
    wanted = Wanted(layer_split=(3, 2, 2, 1), fill=2, verify_interval=3, gamma=4, handoff="ship")
    asked = question(4, wanted=wanted)
    ranking = choose(asked)
    check(asked, ranking)
    for entry in ranking.entries:
        assert entry.placement.target == (3, 2, 2, 1)
        if entry.strategy == "pearl":
            assert (entry.placement.fill, entry.placement.verify_interval) == (2, 3)
        if entry.strategy != "ar":
            assert entry.placement.gamma == 4
    only = choose(question(4, wanted=Wanted(strategies=frozenset({"sd"}))))
    assert {entry.strategy for entry in only.entries} == {"sd"}


def test_a_split_that_does_not_cover_the_target_is_refused() -> None:
    with pytest.raises(UserError, match="--layer-split 3,3,3,3: has 12 layers, the target has 8"):
        choose(question(4, wanted=Wanted(layer_split=(3, 3, 3, 3))))


def test_entries_are_shipped_where_feeding_them_again_costs_more() -> None:
    wanted = Wanted(fill=1, verify_interval=4, strategies=frozenset({"pearl"}))
    for changes, handoff in (({}, "catchup"), ({"draft__extra_token_ms": 4.0}, "ship")):
        two = [c for c in candidates_of(question(4, wanted=wanted, **changes)) if len(c.layout.replicas) == 2]
        assert {c.placement.handoff for c in two} == {handoff}


@settings(max_examples=6, deadline=None)
@given(
    st.integers(1, 5),
    st.lists(st.sampled_from([1.2, 2.3, 3.5, 6.0]), min_size=5, max_size=5),
    st.lists(st.sampled_from([0.4, 1.0, 1.7]), min_size=5, max_size=5),
    st.sampled_from([0.0, 0.4, 0.8, 1.0]),
)
def test_every_answer_holds(num_ranks: int, memory: list[float], speed: list[float], acceptance: float) -> None:
    asked = question(num_ranks, memory=tuple(memory[:num_ranks]), ranks__speed=speed, acceptance=acceptance)
    check(asked, choose(asked))


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_candidates_differ(num_ranks: int) -> None:
    found = [(c.strategy.name, c.placement) for c in candidates_of(question(num_ranks))]
    assert len(set(found)) == len(found)
