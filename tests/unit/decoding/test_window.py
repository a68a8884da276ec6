"""The window state machine: whatever the draft guesses, and whenever chunks enter, the text is the target's."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl_pp.decoding.window import Chunk, SequenceState
from pearl_pp.messages import Outcome, Verdict

WRONG = -1


class Replay:
    """A target whose token at position i is i, a draft that is told when to be right, and one state between them."""

    def __init__(self, state: SequenceState) -> None:
        self.state = state
        self.tape = list(range(state.prompt_len))
        self.slot = 0

    def draft(self, is_right: bool) -> None:
        if self.state.drafted < self.state.draft_end:
            self.tape.append(self.state.drafted if is_right else WRONG)
            self.state.drafted += 1

    def enter(self) -> Chunk | None:
        self.slot += 1
        return self.state.take_chunk(self.slot)

    def judge(self) -> Verdict:
        """The oldest chunk's verdict as the last stage would make it; every position is judged once, in order."""
        state = self.state
        chunk = state.in_flight[0]
        assert chunk.first_judged == state.committed
        num_drafted = state.num_drafted_for(chunk)
        assert chunk.num_judged - num_drafted in (0, 1)
        positions = range(chunk.first_judged, chunk.first_judged + num_drafted)
        num_accepted = next((n for n, p in enumerate(positions) if self.tape[p] != p), num_drafted)
        outcome = Outcome.ACCEPTED
        if num_accepted < num_drafted:
            outcome = Outcome.REJECTED
        elif num_drafted < chunk.num_judged:
            outcome = Outcome.BONUS
        num_ids = num_accepted + (outcome is not Outcome.ACCEPTED)
        ids = tuple(range(state.committed, state.committed + num_ids))
        return Verdict(self.slot, ids, num_accepted, outcome, int(state.committed + num_ids >= state.total_len))

    def enter_piece(self, size: int) -> None:
        """Part of the prompt, which is not its last token."""
        self.slot += 1
        chunk = self.state.take_piece(self.slot, size)
        assert chunk.num_judged == 0

    def conclude(self) -> None:
        if self.state.in_flight[0].num_judged == 0:
            self.state.retire()
            return
        verdict = self.judge()
        if verdict.restarts or verdict.stop:
            del self.tape[self.state.committed :]
            self.tape += verdict.token_ids
        self.state.apply(verdict)

    def check(self) -> None:
        state = self.state
        assert state.prompt_len <= state.committed <= state.drafted <= state.total_len
        assert state.fed <= state.total_len - 1
        assert state.fed >= state.committed - 1 or state.committed == state.prompt_len
        assert self.tape[: state.committed] == list(range(state.committed))
        assert len(self.tape) == state.drafted
        ends = [chunk.end for chunk in state.in_flight]
        assert [chunk.start for chunk in state.in_flight][1:] == ends[:-1]
        assert all(chunk.start < chunk.end for chunk in state.in_flight)
        assert not ends or ends[-1] == state.fed


@st.composite
def states(draw: st.DrawFn) -> SequenceState:
    prompt_len = draw(st.integers(1, 6))
    total_len = prompt_len + draw(st.integers(1, 25))
    return SequenceState(prompt_len, total_len, draw(st.integers(0, total_len + 3)))


@given(states(), st.integers(0, 2**32), st.floats(0, 1), st.integers(1, 4))
def test_the_committed_text_is_the_targets(state: SequenceState, seed: int, acceptance: float, depth: int) -> None:
    replay, random = Replay(state), Random(seed)
    while state.fed < random.randrange(state.prompt_len):
        replay.enter_piece(random.randint(1, state.prompt_len - 1 - state.fed))
        replay.check()
    for _ in range(500):
        if state.stop:
            break
        moves = [lambda: replay.draft(random.random() < acceptance)]
        if len(state.in_flight) < depth:
            moves.append(replay.enter)
        if state.in_flight:
            moves.append(replay.conclude)
        random.choice(moves)()
        replay.check()
    assert state.stop
    assert state.committed == state.total_len
    assert (state.drafted, state.fed) == (state.total_len, state.total_len - 1)
    assert not state.in_flight


def test_the_chunk_after_a_restart_is_one_token_and_judges_the_first_drafted_one() -> None:
    """Pre-verify (paper, section 4.1): the prompt alone first, then the last committed token alone."""
    replay = Replay(SequenceState(5, 50, 50))
    assert replay.enter() == Chunk(1, 0, 5, 5)
    replay.draft(is_right=False)
    replay.conclude()
    assert (replay.state.committed, replay.state.fed) == (6, 5)
    assert replay.enter() == Chunk(2, 5, 6, 6)


def test_a_later_chunk_takes_all_that_was_drafted_and_not_fed() -> None:
    """Post-verify (paper, section 4.2): its last row judges the first token drafted after it."""
    replay = Replay(SequenceState(5, 50, 50))
    replay.enter()
    for _ in range(3):
        replay.draft(is_right=True)
    chunk = replay.enter()
    assert chunk == Chunk(2, 5, 8, 6)
    assert chunk.num_judged == 3
    assert replay.state.num_drafted_for(chunk) == 2, "nothing is drafted yet for the last row: a bonus row"
    replay.draft(is_right=True)
    assert replay.state.num_drafted_for(chunk) == 3


def test_a_rejection_cancels_every_chunk_in_flight() -> None:
    replay = Replay(SequenceState(1, 50, 50))
    for is_right in (True, False, True):
        replay.enter()
        replay.draft(is_right)
    replay.conclude()
    assert len(replay.state.in_flight) == 2
    assert replay.state.committed == 2
    replay.conclude()
    state = replay.state
    assert not state.in_flight
    assert (state.committed, state.drafted, state.fed) == (3, 3, 2)


def test_the_last_token_of_all_is_judged_and_never_fed() -> None:
    replay = Replay(SequenceState(2, 4, 9))
    replay.enter()
    for _ in range(5):
        replay.draft(is_right=True)
    assert replay.state.drafted == 4
    assert replay.enter() == Chunk(2, 2, 3, 3)
    assert replay.enter() is None


def test_pieces_of_the_prompt_are_fed_and_judge_nothing() -> None:
    """The chunk with the prompt's last token is the first that is judged."""
    state = SequenceState(9, 20, 20)
    assert [state.take_piece(slot, 4) for slot in (1, 2)] == [Chunk(1, 0, 4, 5), Chunk(2, 4, 8, 9)]
    last = state.take_chunk(3)
    assert last == Chunk(3, 8, 9, 9)
    state.retire()
    state.retire()
    assert list(state.in_flight) == [last]
    assert (state.committed, state.drafted) == (9, 9)


@pytest.mark.parametrize("size", [9, 10])
def test_a_piece_with_the_prompts_last_token_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"before the prompt's last token, not at {size} of 9"):
        SequenceState(9, 20, 20).take_piece(1, size)


@pytest.mark.parametrize(("prompt_len", "total_len"), [(0, 5), (5, 5), (6, 5)])
def test_a_state_without_prompt_or_room_is_refused(prompt_len: int, total_len: int) -> None:
    with pytest.raises(ValueError, match=f"prompt_len {prompt_len} must be in"):
        SequenceState(prompt_len, total_len, total_len)
