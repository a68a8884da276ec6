"""Where a window's time goes: the critical path and each rank's parts, from hand-made events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl_pp.experiments.windows import PARTS, windows
from pearl_pp.telemetry import Activity, Event

MS = 1_000_000


def rank(*events: tuple[Activity, float, float] | tuple[Activity, float, float, str]) -> list[Event]:
    """Events from (activity, start, end, label) in ms."""
    return [
        Event(activity, round(start * MS), round((end - start) * MS), "".join(label))
        for activity, start, end, *label in events
    ]


T, D, M, W, V = Activity.TARGET, Activity.DRAFT, Activity.MOVE, Activity.WAIT, Activity.VERIFY

# Verdicts end at 10 and 30; the chunk [5, 9) is in stage 0 from 13 to 18 and in stage 1 from 20 to 26.
FIRST = rank((W, 4, 12), (W, 12.5, 13), (T, 13, 18, "[5, 9)"), (M, 18.5, 19), (D, 20, 23), (W, 23, 40))
LAST = rank(
    (T, 3, 8, "[4, 5)"),
    (V, 8, 10),
    (M, 10, 11),
    (D, 11, 15),
    (W, 15, 20),
    (T, 20, 26, "[5, 9)"),
    (W, 26.5, 28),
    (V, 28, 30),
    (M, 30, 31),
)


def with_first_pass(events: list[Event]) -> list[Event]:
    return [*rank((T, 0, 3, "[4, 5)")), *events]


def test_parts_of_the_critical_path() -> None:
    (window,) = windows([with_first_pass(FIRST), LAST], 2)
    assert (window.ms, window.num_fed, window.target_ms) == (20, 4, 11)
    assert window.draft_ms == pytest.approx([3, 4])
    assert window.path == pytest.approx(
        {
            "target": 5 + 6,
            "draft": 0.5,  # rank 0 waits for drafted tokens (12.5 to 13) while rank 1 drafts
            "verify": 2,
            "messages": 1 + 0.5,  # the verdict is posted, the activations are posted
            "waiting": 1 + 1 + 1.5,  # verdict under way, activations under way, tokens for the verifier
            "python": 0.5 + 0.5 + 0.5,  # rank 0 before it reads; before it sends; the verifier's rank
        }
    )


def test_parts_of_each_rank_add_up() -> None:
    (window,) = windows([with_first_pass(FIRST), LAST], 2)
    assert window.ranks[0] == pytest.approx(
        {"target": 5, "draft": 3, "verify": 0, "messages": 0.5, "waiting": 2 + 0.5 + 7, "python": 2}
    )
    assert window.ranks[1] == pytest.approx(
        {"target": 6, "draft": 4, "verify": 2, "messages": 1, "waiting": 5 + 1.5, "python": 0.5}
    )
    for parts in (window.path, *window.ranks):
        assert sum(parts.values()) == pytest.approx(window.ms)


def test_the_verifier_that_waits_for_a_draft_pass_is_held_up_by_the_draft() -> None:
    late = [*FIRST[:-2], *rank((D, 24, 27.5), (W, 28, 40))]
    (window,) = windows([with_first_pass(late), LAST], 2)
    assert window.path["draft"] == pytest.approx(0.5 + 1.0)  # 26.5 to 27.5 too


def test_a_draft_pass_elsewhere_is_no_part_of_the_path_while_activations_travel() -> None:
    drafter = rank((D, 0, 40))
    (window,) = windows([with_first_pass(FIRST), LAST, drafter], 2)
    assert window.path["waiting"] == pytest.approx(1 + 1)  # as above; only for tokens does a draft pass count
    assert window.path["draft"] == pytest.approx(0.5 + 1.5)


def test_a_cancelled_chunk_over_the_same_positions_is_not_taken_for_the_judged_one() -> None:
    cancelled = rank((T, 3.2, 3.9, "[5, 9)"))
    (window,) = windows([with_first_pass([*cancelled, *FIRST]), LAST], 2)
    assert window.target_ms == 11


def test_the_next_chunk_may_be_in_stage_0_before_the_judged_one_is_in_stage_1() -> None:
    following = rank((T, 19, 19.9, "[9, 13)"))
    (window,) = windows([with_first_pass([*FIRST, *following]), LAST], 2)
    assert window.target_ms == 11


def test_a_chunk_that_entered_before_the_window_counts_in_full_but_only_its_rest_is_on_the_path() -> None:
    early = rank((T, 4, 9, "[5, 9)"), (M, 9, 9.5), (W, 9.5, 40))
    (window,) = windows([with_first_pass(early), LAST], 2)
    assert window.target_ms == 11
    assert window.path["target"] == pytest.approx(6)
    assert sum(window.path.values()) == pytest.approx(20)


def test_one_verdict_makes_no_window() -> None:
    assert windows([with_first_pass([]), LAST[:2]], 2) == []


@given(st.lists(st.tuples(st.sampled_from(list(Activity)), st.integers(1, 9), st.integers(0, 3)), max_size=40))
def test_parts_add_up_whatever_another_rank_does(work: list[tuple[Activity, int, int]]) -> None:
    clock, events = 0.0, []
    for activity, length, pause in work:
        clock += pause
        events.append((activity, clock, clock + length, "[0, 1)"))
        clock += length
    (window,) = windows([with_first_pass(FIRST), LAST, rank(*events)], 2)
    for parts in (window.path, *window.ranks):
        assert set(parts) == set(PARTS)
        assert all(value >= 0 for value in parts.values())
        assert sum(parts.values()) == pytest.approx(window.ms)
