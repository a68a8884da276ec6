"""Scores are those of transformers' own processors, row by row, each row with its own prefix."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pearl_pp.decoding.sampling import LogitsPipeline, token_logprobs
from pearl_pp.decoding.sampling_params import SamplingParams, sampling_params
from pearl_pp.decoding.verification import GreedyRule, RejectionRule, make_rule
from tests.plain_decoding import processors

EOS = frozenset({3, 5})
INF = float("inf")


def rows_of(num_rows: int, vocab_size: int, seed: int = 1, sharpness: float = 3.0) -> Tensor:
    return sharpness * torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed))


def transformers_scores(params: SamplingParams, logits: Tensor, prefix: list[int], prompt_len: int) -> Tensor:
    """What `generate` does to one row of logits."""
    return processors(params, prompt_len, EOS)(torch.tensor([prefix]), logits[None].clone())[0]


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.1, 0.7, 1.0, 2.0]),
        "top_k": st.integers(1, 60),
        "top_p": st.floats(0.01, 0.99),
        "min_p": st.floats(0.01, 1.0),
        "repetition_penalty": st.sampled_from([0.7, 1.3, 2.0]),
        "min_new_tokens": st.integers(0, 8),
    },
)
TOKENS = st.lists(st.integers(0, 49), max_size=6)


@pytest.mark.case("S4")
@given(OPTIONS, TOKENS, TOKENS, st.booleans(), st.integers(0, 10**6))
def test_scores_equal_those_of_transformers(
    options: dict[str, float], generated: list[int], drafted: list[int], bonus: bool, seed: int
) -> None:
    params = sampling_params(**options)
    prompt = [8, 9, 8]
    context = prompt + generated
    logits = rows_of(len(drafted) + bonus, 50, seed)
    before = logits.clone()
    scores = LogitsPipeline(params, 50, EOS, len(prompt)).scores(logits, context, drafted)
    assert torch.equal(logits, before), "the caller's logits were changed"
    for row in range(len(logits)):
        expected = transformers_scores(params, logits[row], context + drafted[:row], len(prompt))
        torch.testing.assert_close(scores[row], expected, rtol=0, atol=0)


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("sharpness", [0.0001, 1.0, 3.0])
def test_top_p_over_a_large_vocabulary_however_flat(top_p: float, sharpness: float) -> None:
    params = sampling_params(temperature=1.0, top_p=top_p)
    logits = rows_of(3, 3_000, sharpness=sharpness)
    scores = LogitsPipeline(params, 3_000, EOS, 1).scores(logits, [0], [1, 2])
    for row in range(3):
        expected = transformers_scores(params, logits[row], [0], 1)
        probs, order = logits[row].double().softmax(-1).sort(descending=True)
        from_border = (probs.cumsum(-1) - probs - top_p)[order.argsort()]
        # The border is off by rounding, more so in transformers, which adds in float32 from the small end.
        sure, ours = from_border.abs() > 1e-5, from_border.abs() > 2e-6
        assert torch.equal(scores[row][sure], expected[sure])
        assert torch.equal((scores[row] == -INF)[ours], (from_border >= 0)[ours])


def test_ties_at_the_border_are_cut_as_transformers_cuts_them() -> None:
    logits = rows_of(4, 200, sharpness=1.0).to(torch.bfloat16)  # many equal values
    for options in ({"top_k": 20}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 50, "top_p": 0.8}):
        params = sampling_params(temperature=1.0, **options)
        scores = LogitsPipeline(params, 200, EOS, 1).scores(logits, [0], [1, 2, 3])
        assert scores.dtype == torch.float32
        for row in range(4):
            expected = transformers_scores(params, logits[row].float(), [0], 1)
            assert torch.equal(scores[row].sort().values, expected.sort().values)


def test_greedy_with_nothing_to_process_is_a_view() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        logits = rows_of(3, 50).to(dtype)
        scores = LogitsPipeline(sampling_params(), 40, EOS, 1).scores(logits, [0, 1], [1, 2])
        assert scores.data_ptr() == logits.data_ptr() and scores.shape == (3, 40)


def test_the_eos_ban_ends_row_by_row() -> None:
    params = sampling_params(min_new_tokens=4, max_new_tokens=9)
    scores = LogitsPipeline(params, 50, frozenset({3, 77}), 2).scores(rows_of(5, 50), [1, 1, 1, 1], [0] * 4)
    assert (scores[:, 3] == -INF).tolist() == [True, True, False, False, False]


@pytest.mark.case("S4")
@pytest.mark.parametrize("verify", ["rejection", "coupled"])
def test_a_draft_that_repeats_itself_meets_the_penalty_on_every_row(verify: str) -> None:
    """Without the penalty token 0 always wins; with it each token drafted before makes way for another."""
    params = sampling_params(temperature=0.01, repetition_penalty=1.5, min_p=0.3)
    logits = torch.tensor([[10.0, 9.0, 8.0, 7.0]]).repeat(4, 1)
    scores = LogitsPipeline(params, 4, frozenset(), 1).scores(logits, [3], [0, 0, 0])
    q = torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(3, 1)
    assert make_rule(verify, params, 1).judge(scores, [0, 0, 0], q, 1).token_ids == (0, 1)
    assert scores.argmax(-1).tolist() == [0, 1, 1, 1]


@pytest.mark.case("V1", "V2")
def test_ids_beyond_the_tokenizer_are_never_drawn_or_chosen() -> None:
    logits = rows_of(2, 136)
    logits[:, 130] = 1_000.0
    for options in (
        {},
        {"temperature": 1.0},
        {"repetition_penalty": 1.3},
        {"temperature": 2.0, "top_p": 0.9},
    ):
        scores = LogitsPipeline(sampling_params(**options), 120, EOS, 1).scores(logits, [0], [1])
        assert scores.shape == (2, 120) and scores.isfinite().any()
    assert GreedyRule().draft(LogitsPipeline(sampling_params(), 120, EOS, 1).scores(logits[:1], [0])[0], 1)[0] < 120


@pytest.mark.case("V3")
def test_two_thousand_tokens_at_temperature_two_are_real_ids() -> None:
    pipeline = LogitsPipeline(sampling_params(temperature=2.0), 120, EOS, 1)
    scores = pipeline.scores(rows_of(1, 136), [0])
    rule = RejectionRule(1)
    drawn = {rule.judge(scores, [], None, position).token_ids[0] for position in range(2_000)}
    assert max(drawn) < 120 and len(drawn) > 50


@pytest.mark.case("V5")
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"temperature": 1.0, "repetition_penalty": 1.3}])
def test_a_model_with_fewer_rows_than_ids_never_gives_the_missing_ones(options: dict[str, float]) -> None:
    scores = LogitsPipeline(sampling_params(**options), 53, EOS, 1).scores(rows_of(1, 50), [0, 51])
    assert scores.shape == (1, 53) and (scores[:, 50:] == -INF).all() and scores[:, :50].isfinite().all()


def test_more_rows_than_drafted_tokens_allow_is_an_error() -> None:
    with pytest.raises(ValueError, match="3 rows"):
        LogitsPipeline(sampling_params(), 50, EOS, 1).scores(rows_of(3, 50), [0], [1])


def test_logprobs_are_the_targets_raw_ones() -> None:
    logits = rows_of(4, 60)
    values = token_logprobs(logits, [3, 49, 0], 50)
    expected = logits[:3, :50].log_softmax(-1)[[0, 1, 2], [3, 49, 0]]
    assert values == pytest.approx(expected.tolist())
    assert token_logprobs(logits[:0], [], 50) == []
    assert token_logprobs(logits.to(torch.bfloat16), [3], 50) == pytest.approx([values[0]], abs=0.05)
