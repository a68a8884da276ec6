"""What has arrived and what is under way: any order of arrival, of verdicts and of restarts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pearl_pp.runtime.mailbox import Mailbox, TokenTape
from pearl_pp.schedule.instructions import Kind, Transfer


class Message:
    """A posted receive; remembers whether it was waited for."""

    def __init__(self, *values: int) -> None:
        self.values = values
        self.waits = 0

    def wait(self) -> torch.Tensor:
        self.waits += 1
        return torch.tensor(self.values, dtype=torch.int64)


def transfer(kind: Kind, start: int, end: int, replica: int = -1) -> Transfer:
    return Transfer(kind, 0, 1, start, end, replica)


def drafted(tape: TokenTape, start: int, *ids: int) -> Message:
    message = Message(*ids)
    tape.expect(transfer(Kind.TOKENS, start, start + len(ids)), message)
    return message


class TestTokenTape:
    def test_reading_waits_for_no_more_than_it_needs(self) -> None:
        tape = TokenTape((10, 11))
        first, second = drafted(tape, 2, 12, 13), drafted(tape, 4, 14)
        assert tape.read(0, 2) == [10, 11]
        assert (first.waits, second.waits) == (0, 0)
        assert tape.read(1, 4) == [11, 12, 13]
        assert (first.waits, second.waits) == (1, 0)
        assert tape.prefix(5) == [10, 11, 12, 13, 14]
        assert tape.prefix(3) == [10, 11, 12]
        assert (first.waits, second.waits) == (1, 1)

    def test_a_position_nobody_announced_is_an_error_not_a_short_answer(self) -> None:
        tape = TokenTape((10,))
        drafted(tape, 1, 11)
        with pytest.raises(RuntimeError, match=r"position 3 was never announced to this rank \(2 ids known\)"):
            tape.read(2, 4)

    def test_a_token_drawn_here_goes_behind_those_on_their_way(self) -> None:
        tape = TokenTape((10,))
        drafted(tape, 1, 11, 12)
        tape.append(3, 13)
        assert tape.ids == [10, 11, 12, 13]

    @pytest.mark.parametrize("position", [0, 2, 5])
    def test_a_token_drawn_for_another_position_is_an_error(self, position: int) -> None:
        with pytest.raises(RuntimeError, match=f"drafted position {position}, but 1 ids are known"):
            TokenTape((10,)).append(position, 99)

    def test_a_verdict_may_come_before_the_tokens_it_accepts(self) -> None:
        tape = TokenTape((10,))
        message = drafted(tape, 1, 11, 12, 13)
        assert tape.commit(1, (11, 12), restarts=False) == []
        assert tape.read(0, 3) == [10, 11, 12]
        assert message.waits == 0
        assert tape.read(0, 4) == [10, 11, 12, 13]

    def test_a_rank_that_gets_no_drafted_tokens_learns_them_from_verdicts(self) -> None:
        tape = TokenTape((10,))
        tape.commit(1, (11, 12), restarts=False)
        tape.commit(3, (13,), restarts=False)
        assert tape.read(0, 4) == [10, 11, 12, 13]

    def test_a_restart_drops_what_lies_beyond_and_hands_back_what_is_under_way(self) -> None:
        tape = TokenTape((10,))
        arrived, coming, later = drafted(tape, 1, 11, 12), drafted(tape, 3, 13), drafted(tape, 4, 14)
        tape.read(0, 3)
        dropped = tape.commit(1, (11, 99), restarts=True)
        assert dropped == [coming, later], "they are still to be received"
        assert (arrived.waits, coming.waits, later.waits) == (1, 0, 0)
        assert tape.ids == [10, 11, 99]
        drafted(tape, 3, 23)
        assert tape.read(3, 4) == [23]

    @given(st.data())
    def test_every_order_of_events_gives_the_same_ids(self, data: st.DataObject) -> None:
        """Position i holds the id 100 * restart + i: what an older draft said is told apart."""
        prompt_len = data.draw(st.integers(1, 4))
        tape = TokenTape(tuple(range(prompt_len)))
        expected, committed, restarts = list(range(prompt_len)), prompt_len, 0
        announces = data.draw(st.booleans())
        under_way: list[Message] = []
        for _ in range(data.draw(st.integers(0, 25))):
            move = data.draw(st.sampled_from(["announce", "draw", "read", "commit", "restart"]))
            if move == "announce" and announces:
                ids = [100 * restarts + len(expected) + i for i in range(data.draw(st.integers(1, 3)))]
                under_way.append(drafted(tape, len(expected), *ids))
                expected += ids
            elif move == "draw" and announces:
                tape.append(len(expected), 100 * restarts + len(expected))
                expected.append(100 * restarts + len(expected))
            elif move == "read":
                start = data.draw(st.integers(0, len(expected)))
                end = data.draw(st.integers(start, len(expected)))
                assert tape.read(start, end) == expected[start:end]
                assert tape.prefix(end) == expected[:end]
            elif move == "commit":
                if not announces:
                    expected += [100 * restarts + len(expected) + i for i in range(2)]
                end = data.draw(st.integers(committed, len(expected))) if announces else len(expected)
                assert tape.commit(committed, tuple(expected[committed:end]), restarts=False) == []
                committed = end
            elif move == "restart":
                end = data.draw(st.integers(committed, len(expected)))
                restarts += 1
                ids = (*expected[committed:end], 100 * restarts + end)
                unread = [message for message in under_way if not message.waits]
                assert tape.commit(committed, ids, restarts=True) == unread
                under_way.clear()
                expected = expected[:committed] + list(ids)
                committed = len(expected)
        assert tape.prefix(len(expected)) == expected


class TestMailbox:
    def test_messages_of_a_kind_and_replica_come_first_in_first_out(self) -> None:
        mailbox = Mailbox()
        mailbox.post(transfer(Kind.ACTIVATION, 0, 4), Message(1))
        mailbox.post(transfer(Kind.DRAFT_ACTIVATION, 0, 4, replica=1), Message(2))
        mailbox.post(transfer(Kind.DRAFT_ACTIVATION, 0, 4, replica=0), Message(3))
        mailbox.post(transfer(Kind.ACTIVATION, 4, 5), Message(4))
        assert mailbox.take(Kind.DRAFT_ACTIVATION, 0, 4, replica=0).tolist() == [3]
        assert mailbox.take(Kind.ACTIVATION, 0, 4).tolist() == [1]
        assert mailbox.take(Kind.ACTIVATION, 4, 5).tolist() == [4]
        assert mailbox.take(Kind.DRAFT_ACTIVATION, 0, 4, replica=1).tolist() == [2]

    def test_another_message_than_expected_is_named(self) -> None:
        mailbox = Mailbox()
        mailbox.post(transfer(Kind.ACTIVATION, 4, 7), Message(1))
        with pytest.raises(RuntimeError, match=r"ACTIVATION holds positions \(4, 7\) where \(4, 8\) were expected"):
            mailbox.take(Kind.ACTIVATION, 4, 8)

    def test_taking_all_leaves_the_other_replicas_messages(self) -> None:
        mailbox = Mailbox()
        for number in range(3):
            mailbox.post(transfer(Kind.KV, number, number + 1, replica=number % 2), Message(number))
        taken = mailbox.take_all(Kind.KV, 0)
        assert [(t.start, tensor.tolist()) for t, tensor in taken] == [(0, [0]), (2, [2])]
        assert mailbox.take_all(Kind.KV, 0) == []
        assert len(mailbox.take_all(Kind.KV, 1)) == 1

    def test_what_is_dropped_is_received_once_and_never_given_out(self) -> None:
        mailbox = Mailbox()
        old, aside, new = Message(1), Message(2), Message(3)
        mailbox.post(transfer(Kind.ACTIVATION, 0, 1), old)
        mailbox.drop_all([aside])
        assert (old.waits, aside.waits) == (0, 0), "a restart does not wait for messages of no use"
        mailbox.post(transfer(Kind.ACTIVATION, 0, 1), new)
        assert mailbox.take(Kind.ACTIVATION, 0, 1).tolist() == [3]
        mailbox.drop_all()
        assert (old.waits, aside.waits) == (1, 1), "the next restart frees what the one before has dropped"
        mailbox.drain()
        assert (old.waits, aside.waits, new.waits) == (1, 1, 1)
