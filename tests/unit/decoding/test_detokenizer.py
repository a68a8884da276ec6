"""Text comes out piece by piece, whole characters only, and adds up to the tokenizer's own decoding."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pearl_pp.decoding.detokenizer import UNREADABLE, Detokenizer
from tests.unit.decoding.toy_tokenizers import byte_level, with_byte_tokens

BYTE_IDS = st.lists(st.integers(0, len(byte_level()) - 1), max_size=60)


def decode(tokenizer: object, token_ids: Sequence[int]) -> str:
    return tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def portions(ids: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    bounds = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    return [ids[start:end] for start, end in pairwise(bounds)]


@given(BYTE_IDS, st.lists(st.integers(0, 100), max_size=5))
def test_the_pieces_add_up_to_the_whole_however_ids_are_portioned(ids: list[int], cuts: list[int]) -> None:
    tokenizer = byte_level()
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(portion) for portion in portions(ids, cuts)]
    whole = decode(tokenizer, ids)
    assert "".join(pieces) + detokenizer.flush() == whole
    assert detokenizer.flush() == ""


@given(BYTE_IDS)
def test_what_was_returned_never_has_to_be_taken_back(ids: list[int]) -> None:
    tokenizer = byte_level()
    detokenizer = Detokenizer(tokenizer)
    text = ""
    for index, token in enumerate(ids):
        text += detokenizer.push([token])
        whole = decode(tokenizer, ids[: index + 1])
        assert whole.startswith(text)
        assert not whole[len(text) :].rstrip(UNREADABLE), "readable text was held back"


@given(st.text(max_size=40))
def test_characters_appear_whole_and_at_once(text: str) -> None:
    detokenizer = Detokenizer(byte_level())
    shown = ""
    for char in text:
        *first, last = char.encode(errors="replace")
        assert detokenizer.push(first) == "" or len(first) == 0
        shown += detokenizer.push([last])
        assert shown.endswith(char) or char == UNREADABLE or not char.isprintable()


WORDS = ["▁hello", "▁", "▁world", "END", "o", "▁▁", "é", "日", "🙂", "<eos>"]


@given(st.lists(st.sampled_from(WORDS), max_size=50), st.lists(st.integers(0, 200), max_size=5))
@example(["▁hello"] * 6 + ["日", "🙂", "日", "é"], [])
def test_byte_tokens_and_leading_spaces_decode_as_a_whole_text_does(words: list[str], cuts: list[int]) -> None:
    tokenizer = with_byte_tokens()
    vocab = tokenizer.get_vocab()
    ids = [token for word in words for token in ([vocab[word]] if word in vocab else list(word.encode()))]
    detokenizer = Detokenizer(tokenizer)
    text = "".join(detokenizer.push(portion) for portion in portions(ids, cuts))
    assert text == decode(tokenizer, ids), "all characters are complete, so nothing is left for flush()"
    assert detokenizer.flush() == ""


@pytest.mark.parametrize("character", ["é", "日", "🙂"])
@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_a_long_run_of_byte_tokens_is_cut_between_characters(character: str, before: int) -> None:
    ids = list(("a" * before + character * 100).encode())
    detokenizer = Detokenizer(with_byte_tokens())
    assert "".join(detokenizer.push([token]) for token in ids) == "a" * before + character * 100


@given(
    st.lists(st.integers(0, len(with_byte_tokens()) - 1), max_size=40),
    st.lists(st.integers(0, 40), max_size=4),
)
def test_any_byte_tokens_give_the_same_text_however_portioned(ids: list[int], cuts: list[int]) -> None:
    one_by_one, portioned = Detokenizer(with_byte_tokens()), Detokenizer(with_byte_tokens())
    expected = "".join(one_by_one.push([token]) for token in ids) + one_by_one.flush()
    assert "".join(portioned.push(part) for part in portions(ids, cuts)) + portioned.flush() == expected


def test_unfinished_characters_come_at_the_end_only() -> None:
    detokenizer = Detokenizer(byte_level())
    first, second, third = "日".encode()
    assert detokenizer.push([*b"a", first, second]) == "a"
    assert detokenizer.push([third]) == "日"
    assert detokenizer.push([first]) == ""
    assert detokenizer.flush() == UNREADABLE


@pytest.mark.parametrize("tokenizer", [byte_level(), with_byte_tokens()])
def test_special_tokens_are_left_out(tokenizer: object) -> None:
    detokenizer = Detokenizer(tokenizer)
    special = tokenizer.eos_token_id
    assert detokenizer.push([special, 72 + 32, special, 72 + 33, special]) == "hi"


def test_special_tokens_do_not_push_the_context_out() -> None:
    tokenizer = with_byte_tokens()
    vocab = tokenizer.get_vocab()
    ids = [vocab["▁hello"], *[tokenizer.eos_token_id] * 40, vocab["▁world"]]
    assert Detokenizer(tokenizer).push(ids) == decode(tokenizer, ids) == "hello world"


def test_bytes_that_can_become_no_character_any_more_are_not_waited_for() -> None:
    detokenizer = Detokenizer(byte_level())
    assert detokenizer.push([0x80] * 10) == UNREADABLE * 7
    assert detokenizer.flush() == UNREADABLE * 3
