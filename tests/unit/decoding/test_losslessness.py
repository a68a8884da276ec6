"""The output's distribution is the target's, shown on Markov chains that PEARL's windows run over.

Every run is fixed by its seed, so the p-values are constants; the wrong loops show what the tests can see.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from pearl_pp.decoding import noise, verification
from pearl_pp.decoding.noise import Purpose
from pearl_pp.decoding.sampling_params import sampling_params
from pearl_pp.decoding.verification import CoupledRule, GreedyRule, Judgement, RejectionRule, make_rule
from tests.unit.decoding.chi_square import p_value_of_blocks, p_value_of_chain
from tests.unit.decoding.toy_pearl import chain, independent, pearl, plain, processed, random_chain

EVEN = independent(0.5, 0.5)
SKEWED = independent(0.9, 0.1)
FITS = 1e-3
WRONG = 1e-8


class GreedyDraft(RejectionRule):
    """A draft that takes its argmax at any temperature; it says so (one-hot) or it lies."""

    def __init__(self, seed: int, honest: bool) -> None:
        super().__init__(seed)
        self.honest = honest

    def draft(self, scores: Tensor, position: int) -> tuple[int, Tensor]:
        token = int(scores.argmax())
        one_hot = torch.nn.functional.one_hot(torch.tensor(token), len(scores)).float()
        return token, one_hot if self.honest else scores.softmax(-1)


class UnverifiedTail(RejectionRule):
    """Lets the last drafted token of each window pass without a test."""

    def judge(self, scores: Tensor, drafted: list[int], probs: Tensor | None, position: int) -> Judgement:
        judgement = super().judge(scores, drafted, probs, position)
        if judgement.rejected and judgement.num_accepted == len(drafted) - 1:
            return Judgement(tuple(drafted), len(drafted), False)
        return judgement


def one_draw_for_a_window(seed: int, position: int, count: int) -> np.ndarray:
    draws = noise.uniforms(seed, position, count).copy()
    draws[:, Purpose.ACCEPT] = draws[0, Purpose.ACCEPT]
    return draws


def one_draw_for_test_and_replacement(seed: int, position: int, count: int) -> np.ndarray:
    draws = noise.uniforms(seed, position, count).copy()
    draws[:, Purpose.RESIDUAL] = draws[:, Purpose.ACCEPT]
    return draws


@pytest.mark.case("S1")
@pytest.mark.timeout(300)
def test_pairs_and_triples_have_the_targets_frequencies() -> None:
    run = pearl(RejectionRule(seed=1), EVEN, SKEWED, 200_000, windows=(2,))
    assert run.rejected > 50_000
    for size in (1, 2, 3):
        assert p_value_of_blocks(run.text, (0.5, 0.5), size) > FITS


@pytest.mark.case("S1")
@pytest.mark.parametrize(("windows", "in_flight"), [((2,), 1), ((3, 0, 1), 1), ((1,), 3), ((2, 1, 0, 4), 2)])
def test_transitions_of_a_chain_are_the_targets(windows: tuple[int, ...], in_flight: int) -> None:
    target, draft = random_chain(4, seed=1, sharpness=1.0), random_chain(4, seed=2, sharpness=1.0)
    run = pearl(RejectionRule(seed=2), target, draft, 10_000, windows, in_flight)
    assert 0.2 < run.acceptance_rate < 0.9
    assert p_value_of_chain(run.text, target, order=1) > FITS
    assert p_value_of_chain(run.text, target, order=2) > FITS


def test_tokens_of_probability_zero_never_appear_and_are_never_kept() -> None:
    target = chain((0.5, 0.5, 0.0, 0.0), (0.0, 0.3, 0.7, 0.0), (1.0, 0.0, 0.0, 0.0), (0.25, 0.25, 0.25, 0.25))
    draft = chain((0.0, 0.5, 0.0, 0.5), (0.5, 0.0, 0.5, 0.0), (0.0, 0.0, 0.0, 1.0), (1.0, 0.0, 0.0, 0.0))
    run = pearl(RejectionRule(seed=3), target, draft, 10_000, windows=(3, 0))
    assert p_value_of_chain(run.text, target) > FITS


@pytest.mark.case("S1")
@pytest.mark.parametrize("draws", [one_draw_for_a_window, one_draw_for_test_and_replacement])
def test_control_one_draw_used_for_two_tests_is_seen(
    monkeypatch: pytest.MonkeyPatch, draws: Callable[[int, int, int], np.ndarray]
) -> None:
    target, draft = independent(0.1, 0.3, 0.3, 0.3), independent(0.7, 0.1, 0.1, 0.1)
    good = pearl(RejectionRule(seed=4), target, draft, 8_000, windows=(3,)).text
    monkeypatch.setattr(verification, "uniforms", draws)
    bad = pearl(RejectionRule(seed=4), target, draft, 8_000, windows=(3,)).text
    assert p_value_of_chain(good, target) > FITS
    assert p_value_of_chain(bad, target) < WRONG


@pytest.mark.case("S1")
def test_control_an_unverified_tail_is_seen() -> None:
    bad = pearl(UnverifiedTail(seed=5), EVEN, SKEWED, 5_000, windows=(3,)).text
    assert p_value_of_blocks(bad, (0.5, 0.5), 2) < WRONG


@pytest.mark.case("S2")
def test_a_draft_forced_to_its_argmax_is_exact_if_q_says_so() -> None:
    target, draft = random_chain(5, seed=3), random_chain(5, seed=4)
    run = pearl(GreedyDraft(seed=6, honest=True), target, draft, 15_000, windows=(2,))
    assert p_value_of_chain(run.text, target, order=1) > FITS
    assert p_value_of_chain(run.text, target, order=2) > FITS


@pytest.mark.case("S2")
def test_control_a_q_that_was_not_drawn_from_is_seen() -> None:
    target, draft = random_chain(5, seed=3), random_chain(5, seed=4)
    bad = pearl(GreedyDraft(seed=6, honest=False), target, draft, 5_000, windows=(2,)).text
    assert p_value_of_chain(bad, target, order=1) < WRONG


@pytest.mark.case("S3")
def test_acceptance_is_the_overlap_of_the_distributions() -> None:
    p, q = (0.4, 0.3, 0.2, 0.1, 0.0), (0.1, 0.2, 0.3, 0.3, 0.1)
    overlap = sum(map(min, p, q))
    run = pearl(RejectionRule(seed=7), independent(*p), independent(*q), 15_000, windows=(2,))
    sigma = (overlap * (1 - overlap) / (run.accepted + run.rejected)) ** 0.5
    assert abs(run.acceptance_rate - overlap) < 3 * sigma


@pytest.mark.case("S3")
def test_coupled_acceptance_is_what_shared_gumbel_noise_gives() -> None:
    """P(both draw x) = 1 / sum_y max(p_y / p_x, q_y / q_x), by the Gumbel race of Daliri et al. 2024."""
    p, q = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)
    expected = sum(
        1 / sum(max(py / px, qy / qx) for py, qy in zip(p, q, strict=True)) for px, qx in zip(p, q, strict=True)
    )
    run = pearl(CoupledRule(seed=8), independent(*p), independent(*q), 15_000, windows=(2,))
    sigma = (expected * (1 - expected) / (run.accepted + run.rejected)) ** 0.5
    assert abs(run.acceptance_rate - expected) < 3 * sigma


@pytest.mark.case("S6")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_draft_equal_to_the_target_is_always_accepted(dtype: torch.dtype) -> None:
    logits = random_chain(8, seed=5, sharpness=4.0).to(dtype)
    run = pearl(RejectionRule(seed=9), logits, logits, 20_000, windows=(4, 3))
    assert run.rejected == 0
    assert p_value_of_chain(run.text, logits.double()) > FITS


@pytest.mark.case("S7")
@pytest.mark.parametrize("verify", ["rejection", "coupled"])
@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_verification_uses_the_requests_temperature(verify: str, temperature: float) -> None:
    params = sampling_params(temperature=temperature)
    target = processed(torch.tensor([[0.3, 0.2, 0.0, -0.5]]).repeat(4, 1), params)
    draft = processed(torch.tensor([[0.0, 0.3, -0.2, 0.1]]).repeat(4, 1), params)
    run = pearl(make_rule(verify, params, seed=10), target, draft, 4_000, windows=(2, 0))
    assert p_value_of_chain(run.text, target, order=1) > FITS
    other = processed(torch.tensor([[0.3, 0.2, 0.0, -0.5]]).repeat(4, 1), sampling_params(temperature=0.3))
    assert p_value_of_chain(run.text, other, order=1) < WRONG


@pytest.mark.case("S7")
@pytest.mark.parametrize("verify", ["rejection", "coupled"])
def test_every_likely_token_appears_over_300_seeds(verify: str) -> None:
    params = sampling_params(temperature=1.0)
    target, draft = independent(0.9, 0.05, 0.05), independent(0.98, 0.01, 0.01)
    first = [pearl(make_rule(verify, params, seed), target, draft, 1).text[0] for seed in range(300)]
    counts = np.bincount(first, minlength=3)
    assert p_value_of_blocks(first, (0.9, 0.05, 0.05), 1) > FITS and counts.min() >= 5


@pytest.mark.case("S8")
def test_coupled_text_is_plain_sampling_whatever_the_draft_and_the_windows() -> None:
    target = random_chain(8, seed=6)
    text = plain(CoupledRule(seed=11), target, 300)
    for draft in (target, random_chain(8, seed=7), -target, torch.full((8, 8), float("nan"))):
        for windows, in_flight in [((1,), 1), ((3,), 1), ((8,), 1), ((2, 0, 5), 1), ((2,), 3)]:
            assert pearl(CoupledRule(seed=11), target, draft, 300, windows, in_flight).text == text
    assert plain(CoupledRule(seed=12), target, 300) != text


@pytest.mark.case("S8")
def test_coupled_sampling_is_exact() -> None:
    target = random_chain(5, seed=8, sharpness=1.0)
    assert p_value_of_chain(plain(CoupledRule(seed=13), target, 20_000), target) > FITS


def test_without_bonus_tokens_a_rejection_text_does_not_depend_on_the_windows() -> None:
    target, draft = random_chain(6, seed=9), random_chain(6, seed=10)
    texts = [
        pearl(RejectionRule(seed=14), target, draft, 500, windows, in_flight).text
        for windows, in_flight in [((1,), 1), ((4,), 1), ((2, 7), 1), ((1, 2), 3)]
    ]
    assert all(text == texts[0] for text in texts)


@pytest.mark.case("S6")
def test_a_broken_draft_costs_speed_and_nothing_else() -> None:
    target, broken = random_chain(4, seed=11), torch.full((4, 4), float("nan"))
    run = pearl(RejectionRule(seed=15), target, broken, 6_000, windows=(2, 0))
    assert run.accepted == 0
    assert p_value_of_chain(run.text, target, order=1) > FITS


@pytest.mark.case("N2")
def test_greedy_text_is_the_targets_whatever_the_draft() -> None:
    target = random_chain(8, seed=12)
    text, last = [], 0
    for _ in range(200):
        last = int(target[last].argmax())
        text.append(last)
    for draft in (target, -target, random_chain(8, seed=13)):
        for windows, in_flight in [((1,), 1), ((5,), 1), ((2, 0), 2), ((3,), 3)]:
            assert pearl(GreedyRule(), target, draft, 200, windows, in_flight).text == text


@pytest.mark.case("S5")
@pytest.mark.parametrize("verify", ["rejection", "coupled"])
def test_the_seed_decides_when_sampling_and_not_when_greedy(verify: str) -> None:
    target, draft = random_chain(8, seed=14), random_chain(8, seed=15)

    def text(temperature: float, seed: int) -> list[int]:
        rule = make_rule(verify, sampling_params(temperature=temperature), seed)
        return pearl(rule, target, draft, 100).text

    assert text(1.0, 1) == text(1.0, 1) != text(1.0, 2)
    assert text(0.0, 1) == text(0.0, 2)
