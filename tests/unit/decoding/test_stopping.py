"""A text ends at the right token, for the right reason, however its tokens are portioned."""

import codecs
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl_pp.decoding.detokenizer import Detokenizer
from pearl_pp.decoding.sampling_params import SamplingParams, sampling_params
from pearl_pp.decoding.stopping import StopChecker, StopReason, finish_reason
from tests.unit.decoding.test_detokenizer import portions
from tests.unit.decoding.toy_tokenizers import byte_level

PROMPT = [1, 2, 3]
EOS = frozenset({7})


def checker(
    params: SamplingParams, eos: frozenset[int] = EOS, max_total_len: int = 10**6, text: bool = True
) -> StopChecker:
    detokenizer = Detokenizer(byte_level()) if text else None
    return StopChecker(params, eos, max_total_len, PROMPT, detokenizer)


def feed(stop_checker: StopChecker, parts: Sequence[Sequence[int]]) -> tuple[list[int], StopReason]:
    kept: list[int] = []
    for part in parts:
        num_kept, reason = stop_checker.feed(part)
        kept.extend(part[:num_kept])
        assert num_kept == len(part) or reason is not StopReason.NONE
    return kept, stop_checker.reason


def ids_of(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.case("E1")
@pytest.mark.parametrize("gamma", range(1, 9))
def test_the_cut_is_at_the_first_eos_wherever_in_a_window_it_falls(gamma: int) -> None:
    for place in range(3 * gamma):
        ids = [100] * place + [7] + [100, 7, 100]
        parts = [ids[start : start + gamma] for start in range(0, len(ids), gamma)]
        kept, reason = feed(checker(sampling_params(), text=False), parts)
        assert kept == ids[: place + 1]
        assert reason is StopReason.EOS and finish_reason(reason) == "stop"


@pytest.mark.case("E4")
def test_every_eos_id_counts_unless_ignored() -> None:
    for token in (5, 9):
        assert checker(sampling_params(), frozenset({5, 9})).feed([4, token, 4]) == (2, StopReason.EOS)
    ignoring = checker(sampling_params(ignore_eos=True, max_new_tokens=3))
    assert ignoring.feed([7, 7, 7, 7]) == (3, StopReason.LENGTH)


@pytest.mark.case("E6")
def test_no_tokens_and_one_token() -> None:
    none = checker(sampling_params(max_new_tokens=0))
    assert none.reason is StopReason.LENGTH
    assert none.feed([100]) == (0, StopReason.LENGTH) and none.text() == ""
    assert checker(sampling_params(max_new_tokens=1)).feed([100, 100]) == (1, StopReason.LENGTH)
    assert checker(sampling_params(max_new_tokens=1)).feed([7, 100]) == (1, StopReason.EOS)
    assert checker(sampling_params()).feed([7]) == (1, StopReason.EOS)


@pytest.mark.case("E3", "E5")
@given(st.integers(0, 20), st.integers(0, 25), st.integers(1, 6))
def test_the_length_limit_is_exact(max_new: int, max_total: int, gamma: int) -> None:
    stop_checker = checker(sampling_params(max_new_tokens=max_new), max_total_len=max_total, text=False)
    kept, reason = feed(stop_checker, [[100] * gamma] * 30)
    assert len(kept) == max(0, min(max_new, max_total - len(PROMPT)))
    assert reason is StopReason.LENGTH and finish_reason(reason) == "length"


@pytest.mark.case("E2")
@pytest.mark.parametrize("stop", ["END", "日本", "é", "🙂!", "E"])
def test_a_stop_string_over_tokens_and_windows_is_cut_out(stop: str) -> None:
    ids = ids_of(f"before {stop} after {stop}")
    for gamma in range(1, len(ids)):
        stop_checker = checker(sampling_params(stop=stop))
        parts = [ids[start : start + gamma] for start in range(0, len(ids), gamma)]
        kept, reason = feed(stop_checker, parts)
        assert bytes(kept).decode() == f"before {stop}"
        assert stop_checker.text() == "before "
        assert reason is StopReason.STOP_STRING and finish_reason(reason) == "stop"


@pytest.mark.case("E2")
def test_the_token_that_completes_a_stop_string_is_kept_whole() -> None:
    tokenizer = byte_level()
    vocab = {tokenizer.decode([index]): index for index in range(256, len(tokenizer) - 1)}
    stop_checker = checker(sampling_params(stop="END"))
    assert stop_checker.feed([104, vocab["EN"], vocab["D."], 104]) == (3, StopReason.STOP_STRING)
    assert stop_checker.text() == "h"
    half_character = "日本".encode()[:4]  # completes the stop string and begins another character
    cut = 256 + 6
    stop_checker = checker(sampling_params(stop="日"))
    assert tokenizer.decode([cut]) == half_character.decode(errors="replace")
    assert stop_checker.feed([104, cut, 104]) == (2, StopReason.STOP_STRING)
    assert stop_checker.text() == "h"


def test_the_earliest_of_several_stop_strings_cuts() -> None:
    stop_checker = checker(sampling_params(stop=("ell", "hello", "zz")))
    assert stop_checker.feed([120, 256, 120]) == (2, StopReason.STOP_STRING)
    assert stop_checker.text() == "x"


@pytest.mark.case("E2")
def test_text_that_may_begin_a_stop_string_is_not_shown_yet() -> None:
    stop_checker = checker(sampling_params(stop=("END", "é")))
    shown = []
    for token in ids_of("xENEx"):
        stop_checker.feed([token])
        shown.append(stop_checker.new_text())
    assert shown == ["x", "", "", "EN", "Ex"]
    stop_checker.feed(ids_of("EN"))
    assert stop_checker.new_text() == ""
    stop_checker.feed(ids_of("D"))
    assert stop_checker.new_text() == "" and stop_checker.text() == "xENEx"


def test_before_min_new_tokens_no_stop_string_ends_the_text() -> None:
    stop_checker = checker(sampling_params(stop="ab", min_new_tokens=4))
    assert stop_checker.feed(ids_of("abcabab")) == (5, StopReason.STOP_STRING)
    assert stop_checker.text() == "abc"
    exact = checker(sampling_params(stop="ab", min_new_tokens=2))
    assert exact.feed(ids_of("abcab")) == (2, StopReason.STOP_STRING)


def test_eos_at_the_last_place_is_a_stop_and_a_stop_string_there_too() -> None:
    assert checker(sampling_params(max_new_tokens=2)).feed([100, 7]) == (2, StopReason.EOS)
    assert checker(sampling_params(max_new_tokens=2, stop="ab")).feed(ids_of("ab")) == (
        2,
        StopReason.STOP_STRING,
    )


def test_nothing_is_kept_after_the_end() -> None:
    stop_checker = checker(sampling_params())
    stop_checker.feed([100, 7])
    assert stop_checker.feed([100, 100]) == (0, StopReason.EOS)
    assert stop_checker.feed([]) == (0, StopReason.EOS)


def test_the_rest_of_a_broken_character_shows_at_the_end() -> None:
    stop_checker = checker(sampling_params(max_new_tokens=2))
    first, second, _ = "日".encode()
    stop_checker.feed([first])
    assert stop_checker.text() == "" and stop_checker.new_text() == ""
    stop_checker.feed([second])
    assert stop_checker.text() == "\ufffd" == stop_checker.new_text()


def test_an_end_that_the_tokens_do_not_show() -> None:
    stop_checker = checker(sampling_params(stop="END"))
    assert stop_checker.feed(ids_of("xEN"), StopReason.NO_DISTRIBUTION) == (3, StopReason.NO_DISTRIBUTION)
    assert stop_checker.text() == stop_checker.new_text() == "xEN", "nothing is held back any more"
    assert stop_checker.feed([100]) == (0, StopReason.NO_DISTRIBUTION)
    assert checker(sampling_params()).feed([100, 7, 100], StopReason.NO_DISTRIBUTION) == (2, StopReason.EOS)
    assert checker(sampling_params()).feed([100, 7], StopReason.NO_DISTRIBUTION) == (2, StopReason.EOS)
    with pytest.raises(ValueError, match="failed"):
        finish_reason(StopReason.NO_DISTRIBUTION)


def test_stop_strings_need_a_detokenizer() -> None:
    with pytest.raises(ValueError, match="detokenizer"):
        checker(sampling_params(stop="x"), text=False)
    with pytest.raises(ValueError, match="not ended"):
        finish_reason(StopReason.NONE)


TOKENS = st.sampled_from([*b"ab", 7, *"é".encode(), 256, 258, 259, 262])
STOPS = st.lists(st.sampled_from(["ab", "aba", "END", "é", "日", "hello", "bb"]), max_size=3)


def expected_end(ids: Sequence[int], params: SamplingParams) -> tuple[int, str | None]:
    """How many ids are kept, and the text if a stop string cut it: by decoding every beginning of it anew."""
    for length in range(1, len(ids) + 1):
        before, now = readable(ids[: length - 1]), readable(ids[:length])
        starts = [now.find(stop, max(0, len(before) - len(stop) + 1)) for stop in params.stop]
        starts = [start for start in starts if start >= 0]
        if starts and length >= params.min_new_tokens and now != before:
            return length, now[: min(starts)]
        if ids[length - 1] == 7 or length == params.max_new_tokens:
            return length, None
    return len(ids), None


def readable(ids: Sequence[int]) -> str:
    return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(bytes_of(ids))


def bytes_of(ids: Sequence[int]) -> bytes:
    pieces = {256: b"hello", 258: b"EN", 259: b"ND", 262: "日本".encode()[:4]}
    return b"".join(pieces.get(token, bytes([token % 256])) for token in ids)


@given(
    st.lists(TOKENS, max_size=25),
    STOPS,
    st.integers(0, 5),
    st.integers(6, 20),
    st.lists(st.integers(0, 50), max_size=6),
)
def test_any_portions_end_where_one_by_one_ends(
    ids: list[int], stops: list[str], min_new: int, max_new: int, cuts: list[int]
) -> None:
    params = sampling_params(stop=stops, min_new_tokens=min_new, max_new_tokens=max_new)
    portioned, one_by_one = checker(params), checker(params)
    shown = ""
    kept: list[int] = []
    for part in portions(ids, cuts):
        num_kept, _ = portioned.feed(part)
        kept.extend(part[:num_kept])
        shown += portioned.new_text()
        assert portioned.text().startswith(shown), "text was shown that a stop string took back"
    assert (kept, portioned.reason) == feed(one_by_one, [[token] for token in ids])
    assert portioned.text() == one_by_one.text()
    if portioned.reason is not StopReason.NONE:
        assert shown == portioned.text()
    num_kept, cut_text = expected_end(ids, params)
    assert len(kept) == num_kept
    if cut_text is not None:
        assert portioned.text() == cut_text
