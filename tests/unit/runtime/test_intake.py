"""From a prompt to a request: ids, seed, limits, and prompts that cannot be run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError
from pearl_pp.runtime.intake import make_request, prompt_text
from pearl_pp.runtime.pair import ModelPair
from pearl_pp.runtime.request import Prompt, Request
from pearl_pp.runtime.vocabulary import Vocabulary
from tests.unit.runtime.word_models import CHAT_TEMPLATE, NUM_WORDS, word_tokenizer

CONTEXT = 64


def speaking(pair: ModelPair, **options: object) -> ModelPair:
    return replace(pair, vocabulary=Vocabulary(word_tokenizer(**options), NUM_WORDS))


def refusal(prompt: Prompt, pair: ModelPair) -> str:
    with pytest.raises(UserError) as caught:
        make_request(prompt, pair)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_text_becomes_ids_with_what_the_tokenizer_adds(word_pair: ModelPair) -> None:
    assert make_request(Prompt(text="w4 w7 no"), word_pair).token_ids == (4, 7, 0)
    assert make_request(Prompt(text="w4"), speaking(word_pair, adds_bos=True)).token_ids == (1, 4)


@pytest.mark.case("T2")
@pytest.mark.parametrize("text", ["", "   "])
def test_an_empty_prompt_is_the_bos_where_there_is_one(text: str, word_pair: ModelPair) -> None:
    assert make_request(Prompt(text=text), speaking(word_pair, adds_bos=True)).token_ids == (1,)


@pytest.mark.case("T2")
def test_an_empty_prompt_is_refused_where_the_tokenizer_adds_nothing(word_pair: ModelPair) -> None:
    reason = "is empty, and the tokenizer adds no token to start with"
    assert refusal(Prompt(text=""), word_pair) == f"prompt '': {reason}"
    assert refusal(Prompt(token_ids=()), word_pair) == f"prompt '': {reason}"


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1, 500])
def test_a_prompt_longer_than_the_context_is_refused(length: int, word_pair: ModelPair) -> None:
    message = refusal(Prompt(token_ids=(5,) * length), word_pair)
    assert message == f"prompt of {length} tokens: leaves no room in a context of {CONTEXT}"


@given(st.integers(1, CONTEXT - 1), st.integers(0, 200), st.integers(1, 90))
def test_limits_hold_the_request_to_both_contexts(
    word_pair: ModelPair, length: int, max_new_tokens: int, draft_positions: int
) -> None:
    pair = replace(word_pair, draft=replace(word_pair.draft))
    pair.draft.__dict__["max_positions"] = draft_positions
    params = SamplingParams(max_new_tokens=max_new_tokens)
    request = make_request(Prompt(token_ids=(5,) * length, params=params), pair)
    assert request.total_len == min(length + max_new_tokens, CONTEXT)
    # The draft feeds position i to guess i + 1: the last position of its context may be fed.
    assert request.draft_end == min(draft_positions + 1, request.total_len)
    assert make_request(Prompt(token_ids=(5,), params=params), replace(pair, draft=None)).draft_end == 0


@pytest.mark.parametrize("bad", [-1, NUM_WORDS, 10**6])
def test_a_token_id_the_target_does_not_have_is_refused(bad: int, word_pair: ModelPair) -> None:
    message = refusal(Prompt(token_ids=(5, bad, 6)), word_pair)
    assert message == f"prompt {bad}: is no token id of the target ({NUM_WORDS} ids)"
    every_id = tuple(range(NUM_WORDS))
    assert make_request(Prompt(token_ids=every_id), word_pair).token_ids == every_id


@pytest.mark.case("T1")
def test_a_prompt_is_raw_unless_chat_is_asked_for(word_pair: ModelPair) -> None:
    with_template = speaking(word_pair, chat_template=CHAT_TEMPLATE, adds_bos=True)
    assert make_request(Prompt(text="w4"), with_template).token_ids == (1, 4)
    # user, w4, and the template's start of an answer; no BOS, which is the template's to write.
    assert make_request(Prompt(text="w4", chat=True), with_template).token_ids == (0, 4, 3)
    messages = ({"role": "w5", "content": "w4"}, {"role": "w6", "content": "w7"})
    assert make_request(Prompt(messages=messages, chat=True), with_template).token_ids == (5, 4, 6, 7, 3)


@pytest.mark.case("T1")
def test_chat_without_a_template_says_what_to_do(word_pair: ModelPair) -> None:
    expected = f"--chat: the tokenizer of {word_pair.target.path} has no chat template; leave --chat out"
    assert refusal(Prompt(text="w4", chat=True), word_pair) == expected
    assert refusal(Prompt(messages=({"role": "user", "content": "w4"},)), word_pair) == expected


def test_without_a_tokenizer_prompts_are_token_ids(word_pair: ModelPair) -> None:
    mute = replace(word_pair, vocabulary=Vocabulary(None, NUM_WORDS))
    assert make_request(Prompt(token_ids=(4, 5)), mute).token_ids == (4, 5)
    expected = f"--target {word_pair.target.path}: has no tokenizer: prompts must be token ids"
    assert refusal(Prompt(text="w4"), mute) == expected


def test_without_a_tokenizer_there_are_no_stop_strings(word_pair: ModelPair) -> None:
    mute = replace(word_pair, vocabulary=Vocabulary(None, NUM_WORDS))
    expected = (
        f"--stop ['w4']: {word_pair.target.path} has no tokenizer, so there is no text to look for stop strings in"
    )
    assert refusal(Prompt(token_ids=(4, 5), params=SamplingParams(stop=("w4",))), mute) == expected


def test_a_prompt_that_could_not_be_read_keeps_its_reason(word_pair: ModelPair) -> None:
    assert refusal(Prompt(error="p.jsonl line 3: not JSON"), word_pair) == "prompt: p.jsonl line 3: not JSON"


@pytest.mark.parametrize(
    ("prompt", "line"),
    [
        (Prompt(text="w4", token_ids=(4,)), "prompt: has text and token_ids; give one of text, messages, token_ids"),
        (Prompt(text="w4", messages=()), "prompt: has text and messages; give one of text, messages, token_ids"),
        (Prompt(), "prompt: has nothing; give one of text, messages, token_ids"),
        (Prompt(token_ids=(4,), chat=True), "--chat: token ids are no message to put into a chat template"),
        (Prompt(text=5), "prompt 5: must be text"),  # pyright: ignore[reportArgumentType]
        (Prompt(text="\ud800"), "prompt: is not Unicode text (half a surrogate pair)"),
        (Prompt(messages=()), "messages []: must be a list of objects"),
        (Prompt(messages=("w4",)), 'messages: w4 needs "role" and "content"'),  # pyright: ignore[reportArgumentType]
        (Prompt(messages=({"role": "user"},)), """messages: {'role': 'user'} needs "role" and "content\""""),
        (
            Prompt(messages=({"role": "user", "content": [{"text": "\udc00"}]},)),
            "messages: is not Unicode text (half a surrogate pair)",
        ),
    ],
)
def test_what_is_no_prompt_is_refused(prompt: Prompt, line: str, word_pair: ModelPair) -> None:
    assert refusal(prompt, speaking(word_pair, chat_template=CHAT_TEMPLATE)) == line
    assert isinstance(prompt_text(prompt), object)


@pytest.mark.case("T1")
@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must\\nalternate') }}", "roles must alternate"),
        ("{{ messages[0].content.none.such }}", "'str object' has no attribute 'none'"),
        ("{{ unclosed", "unexpected end of template, expected 'end of print statement'."),
    ],
)
def test_a_conversation_that_the_template_refuses_is_that_prompts_error(
    template: str, reason: str, word_pair: ModelPair
) -> None:
    message = refusal(Prompt(text="w4", chat=True), speaking(word_pair, chat_template=template))
    assert message == f"messages: the tokenizer's chat template refuses them: {reason}"


@pytest.mark.case("T1")
def test_a_conversation_is_what_transformers_makes_of_it(word_pair: ModelPair) -> None:
    """The template's BOS is the only one, also where the tokenizer adds one to plain text."""
    pair = speaking(word_pair, chat_template="{{ bos_token }} " + CHAT_TEMPLATE, adds_bos=True)
    messages = [{"role": "w5", "content": "w4"}, {"role": "w6", "content": "w7"}]
    ids = make_request(Prompt(messages=tuple(messages)), pair).token_ids
    tokenizer = pair.vocabulary.tokenizer
    assert tokenizer is not None
    assert list(ids) == tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids.count(1) == 1 == ids[0]


@pytest.mark.case("S5")
def test_a_request_has_a_seed_its_own_or_a_new_one(word_pair: ModelPair) -> None:
    chosen = Prompt(text="w4", params=SamplingParams(seed=7))
    assert make_request(chosen, word_pair).seed == 7
    assert make_request(Prompt(text="w4", params=SamplingParams(seed=0)), word_pair).seed == 0
    assert len({make_request(Prompt(text="w4"), word_pair).seed for _ in range(8)}) > 1


def test_the_prompt_that_is_shown() -> None:
    assert prompt_text(Prompt(text="w4")) == "w4"
    messages = ({"role": "system", "content": "w4"}, {"role": "user", "content": "w5"})
    assert prompt_text(Prompt(messages=messages)) == "w5"
    assert prompt_text(Prompt(token_ids=(1,))) == ""


@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=8),
    st.integers(0, 2**63 - 1),
    st.text(min_size=1),
    st.lists(st.integers(0, 9), max_size=3),
)
def test_a_request_reaches_the_other_ranks_unchanged(ids: list[int], seed: int, stop: str, reports: list[int]) -> None:
    params = SamplingParams(temperature=0.3, top_p=0.7, seed=seed, stop=(stop,), logprobs=True, ignore_eos=True)
    request = Request(tuple(ids), params, seed, 90, 70, tuple(reports))
    assert Request.from_bytes(request.to_bytes()) == request
