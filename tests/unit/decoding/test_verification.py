"""What one call of a rule does: shapes, edges, broken rows; distributions are tested in test_losslessness."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pearl_pp.decoding import verification
from pearl_pp.decoding.sampling_params import sampling_params
from pearl_pp.decoding.verification import CoupledRule, GreedyRule, Judgement, NoDistribution, RejectionRule, make_rule
from pearl_pp.errors import UserError
from tests.unit.decoding.chi_square import p_value_of_blocks

INF, NAN = float("inf"), float("nan")


def one_hot_scores(*tokens: int, vocab_size: int = 5) -> Tensor:
    scores = torch.full((len(tokens), vocab_size), -1.0)
    scores[range(len(tokens)), list(tokens)] = 1.0
    return scores


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8), st.booleans(), st.integers(0, 4))
def test_greedy_accepts_up_to_the_first_difference(pairs: list[tuple[int, int]], bonus: bool, last: int) -> None:
    drafted, right = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if not pairs and not bonus:
        return
    judgement = GreedyRule().judge(one_hot_scores(*right, *[last] * bonus), drafted, None, 0)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    ids = (*right[: same + 1], *([last] if bonus and same == len(pairs) else []))
    assert judgement == Judgement(ids, same, same < len(pairs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_greedy_ties_go_to_the_lowest_id(dtype: torch.dtype) -> None:
    scores = torch.zeros(2, 40, dtype=dtype)
    scores[1, [7, 9, 33]] = 2.0
    assert GreedyRule().judge(scores, [0], None, 0) == Judgement((0, 7), 1, False)
    assert GreedyRule().draft(scores[1], 0) == (7, None)


@pytest.mark.parametrize("rule", [GreedyRule(), RejectionRule(1), CoupledRule(1)])
def test_rows_and_drafted_tokens_must_fit(rule: verification.VerificationRule) -> None:
    for rows, drafted in [(0, []), (1, [0, 1]), (3, [0])]:
        with pytest.raises(ValueError, match="rows"):
            rule.judge(torch.zeros(rows, 4), drafted, torch.full((len(drafted), 4), 0.25), 0)


def test_rejection_needs_q() -> None:
    with pytest.raises(ValueError, match="probabilities"):
        RejectionRule(1).judge(torch.zeros(1, 4), [0], None, 0)


def test_the_draft_hands_over_the_distribution_it_drew_from() -> None:
    scores = torch.tensor([0.0, 1.0, -INF, 2.0])
    draws = [RejectionRule(1).draft(scores, position) for position in range(4_000)]
    probs = draws[0][1]
    assert probs is not None and probs.dtype == torch.float32
    assert torch.equal(probs, scores.softmax(-1))
    drawn = np.bincount([token for token, _ in draws], minlength=4)
    assert drawn[2] == 0
    kept = probs[[0, 1, 3]].tolist()
    tokens = [[0, 1, -1, 2][token] for token, _ in draws]
    assert p_value_of_blocks(tokens, [value / sum(kept) for value in kept], 2) > 1e-3


@pytest.mark.parametrize("rule", [RejectionRule(1), CoupledRule(1)])
def test_accepted_recovered_and_bonus(rule: verification.VerificationRule) -> None:
    sure = 200.0 * one_hot_scores(1, 2, 3)
    probs = sure.softmax(-1)
    assert rule.judge(sure, [1, 2], probs[:2], 9) == Judgement((1, 2, 3), 2, False)
    assert rule.judge(sure[:2], [1, 2], probs[:2], 9) == Judgement((1, 2), 2, False)
    q = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]])
    assert rule.judge(sure, [1, 4], q, 9) == Judgement((1, 2), 1, True)
    assert rule.judge(sure[:1], [], None, 9) == Judgement((1,), 0, False)


@pytest.mark.case("S6")
def test_where_nothing_is_left_of_p_minus_q_the_token_comes_from_p() -> None:
    scores = torch.tensor([[0.0, 1.0, 2.0, -INF]])
    q = 2 * scores.softmax(-1)  # as rounding may make it: nowhere below p, so a rejection leaves nothing
    judgements = [RejectionRule(2).judge(scores, [2], q, position) for position in range(6_000)]
    recovered = [judgement.token_ids[0] for judgement in judgements if judgement.rejected]
    assert 2_700 < len(recovered) < 3_300
    assert p_value_of_blocks(recovered, scores[0, :3].double().softmax(-1).tolist(), 1) > 1e-3


@pytest.mark.case("S6")
@pytest.mark.parametrize("rule", [RejectionRule(1), CoupledRule(1), GreedyRule()])
@pytest.mark.parametrize("bad", [NAN, -INF, INF])
def test_a_broken_row_of_the_target_is_an_error_that_names_the_position(
    rule: verification.VerificationRule, bad: float
) -> None:
    scores = torch.cat([100.0 * one_hot_scores(1), torch.full((1, 5), bad)])
    q = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0]] * 2)
    for drafted in ([1], [1, 1]):
        with pytest.raises(NoDistribution, match="position 8") as caught:
            rule.judge(scores, drafted, q[: len(drafted)], 7)
        assert caught.value.position == 8
    assert rule.judge(scores, [2, 1], q[[0, 0]].roll(1, 1), 7).token_ids == (1,), "a row that is not used"


def test_a_draw_never_hits_weight_zero() -> None:
    weights = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    draws = [0.0, 0.25, 0.5, 1 - 2.0**-53]
    assert [int(verification._inverse_cdf(weights, draw)) for draw in draws] == [1, 1, 3, 3]
    assert int(verification._inverse_cdf(weights * 0, 0.5)) < 5


@given(st.integers(1, 2**53 - 1), st.lists(st.floats(0, 1, width=32), min_size=1, max_size=20))
def test_a_draw_has_weight_whatever_the_rounding(numerator: int, weights: list[float]) -> None:
    if max(weights) > 0:
        token = int(verification._inverse_cdf(torch.tensor(weights), numerator * 2.0**-53))
        assert weights[token] > 0


@pytest.mark.case("S6")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_scores_are_drawn_from_in_float32(dtype: torch.dtype) -> None:
    scores = torch.randn(3, 50, generator=torch.Generator().manual_seed(1)).to(dtype)
    rule = RejectionRule(3)
    token, q = rule.draft(scores[0], 5)
    assert q is not None and q.dtype == torch.float32
    assert torch.equal(q, scores[0].float().softmax(-1))
    assert rule.judge(scores[:1], [token], q[None], 5) == Judgement((token,), 1, False)


def test_coupled_noise_survives_large_scores() -> None:
    """Near 1e7 the steps of float32 are as large as the noise, which must still break the tie."""
    scores = torch.full((1, 4), 1e7)
    tokens = [CoupledRule(4).judge(scores, [], None, position).token_ids[0] for position in range(2_000)]
    assert p_value_of_blocks(tokens, [0.25] * 4, 2) > 1e-3


def test_make_rule() -> None:
    sampled, greedy = sampling_params(temperature=1.0), sampling_params()
    assert isinstance(make_rule("rejection", sampled, 1), RejectionRule)
    assert isinstance(make_rule("coupled", sampled, 1), CoupledRule)
    assert isinstance(make_rule("coupled", greedy, 1), GreedyRule)
    assert [make_rule(name, sampled, 1).needs_probs for name in ("rejection", "coupled")] == [True, False]
    with pytest.raises(UserError, match="--verify gumbel: must be one of coupled, rejection"):
        make_rule("gumbel", sampled, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("rule", [GreedyRule(), RejectionRule(6), CoupledRule(6)])
def test_a_gpu_gives_the_same_tokens(rule: verification.VerificationRule) -> None:
    generator = torch.Generator().manual_seed(2)
    for position in range(0, 500, 10):
        scores = 3 * torch.randn(6, 1_000, generator=generator)
        noisy = scores + 0.3 * torch.randn(6, 1_000, generator=generator)
        drafted, probs = zip(*(rule.draft(noisy[row], position + row) for row in range(5)), strict=True)
        q = torch.stack(probs) if rule.needs_probs else None
        on_gpu = rule.judge(scores.cuda(), drafted, None if q is None else q.cuda(), position)
        assert on_gpu == rule.judge(scores, drafted, q, position)
        assert rule.draft(noisy[0].cuda(), position)[0] == drafted[0]
    with pytest.raises(ArithmeticError, match="position 3"):
        CoupledRule(1).judge(torch.full((1, 5), NAN).cuda(), [], None, 3)
