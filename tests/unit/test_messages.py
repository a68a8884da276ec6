"""A verdict's wire form: fixed length, everything comes back, and only in the slot it was made for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl_pp.messages import Change, Outcome, Reason, Verdict

FIELD = st.integers(0, 2**40)
CHANGES = st.builds(
    Change,
    active=st.sets(st.integers(0, 40), max_size=5).map(lambda numbers: tuple(sorted(numbers))),
    fill=FIELD,
    verify_interval=FIELD,
    pass_ticks=FIELD,
    first_window=FIELD,
    draft_limit=st.none() | FIELD,
    ships_kv=st.booleans(),
    reason=st.sampled_from(Reason),
    acceptance=st.integers(0, 1000),
    hold=FIELD,
)


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    ids = tuple(draw(st.lists(st.integers(0, 2**40), max_size=12)))
    return Verdict(
        draw(st.integers(0, 2**40)),
        ids,
        draw(st.integers(0, len(ids))),
        draw(st.sampled_from(Outcome)),
        draw(st.integers(0, 3)),
        draw(st.none() | CHANGES),
    )


@given(verdicts(), st.integers(0, 5))
def test_a_verdict_comes_back_whatever_room_its_chunk_left(verdict: Verdict, room: int) -> None:
    max_ids = len(verdict.token_ids) + room
    fields = verdict.to_wire(max_ids)
    assert len(fields) == Verdict.wire_length(max_ids), "the receive was posted for this length"
    arrived = Verdict.from_wire(fields, verdict.slot)
    assert arrived == verdict
    assert isinstance(arrived.outcome, Outcome)
    if arrived.change is not None:
        assert isinstance(arrived.change.reason, Reason)


@given(verdicts(), st.integers(0, 2**40))
def test_a_verdict_of_another_slot_is_refused(verdict: Verdict, slot: int) -> None:
    if slot == verdict.slot:
        slot += 1
    with pytest.raises(RuntimeError, match=f"verdict of slot {verdict.slot} arrived where slot {slot} was expected"):
        Verdict.from_wire(verdict.to_wire(12), slot)


def test_more_ids_than_the_chunk_allows_are_refused() -> None:
    with pytest.raises(ValueError, match="holds 3 ids, its chunk allows 2"):
        Verdict(0, (5, 6, 7), 3, Outcome.ACCEPTED).to_wire(2)


@pytest.mark.parametrize(("outcome", "restarts"), [(o, o is not Outcome.ACCEPTED) for o in Outcome])
def test_a_rejection_a_bonus_and_a_change_restart_the_draft(outcome: Outcome, restarts: bool) -> None:
    assert Verdict(0, (5,), 0, outcome).restarts is restarts
    assert Verdict(0, (5,), 0, outcome, change=Change((), 1, 1, 1, 0, 0, False)).restarts
