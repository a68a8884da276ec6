"""The verification rules: how a token is drafted, and how drafted tokens are judged against the target.

Three rules keep the target's output: `greedy` (its argmax), `rejection` (speculative sampling: Leviathan et
al. 2023, Chen et al. 2023; PEARL takes it over) and `coupled` (Gumbel noise shared by draft and target:
Daliri et al. 2024). All randomness comes from `noise`, so a position's may be used again after a rollback
(see there).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from pearl_pp.decoding.noise import Purpose, gumbel, uniform, uniforms
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError


class Judgement(NamedTuple):
    """What the target says of some drafted tokens.

    token_ids: the accepted ids, then the recovered id (after a rejection) or the bonus id, if there is one.
    num_accepted: how many drafted tokens were accepted. rejected: whether one was rejected.
    """

    token_ids: tuple[int, ...]
    num_accepted: int
    rejected: bool


class NoDistribution(ArithmeticError):
    """The target's logits for `position`, which was to be judged next, say nothing: NaN, inf or all -inf."""

    def __init__(self, position: int) -> None:
        super().__init__(no_distribution(position))
        self.position = position


def no_distribution(position: int) -> str:
    """What a user reads where the target's logits for `position` cannot be used."""
    return f"the target's logits for position {position} give no distribution (NaN, inf or all -inf)"


class VerificationRule(Protocol):
    """One way to draft and to judge that leaves the target's distribution as it is."""

    @property
    def needs_probs(self) -> bool:
        """Whether judging needs the distributions the drafted tokens were drawn from."""
        ...

    def draft(self, scores: Tensor, position: int) -> tuple[int, Tensor | None]:
        """Draw the token of `position` from scores [vocab].

        Returns its id and, where needs_probs, the float32 [vocab] distribution it was really drawn from.
        """
        ...

    def judge(self, scores: Tensor, drafted: Sequence[int], probs: Tensor | None, position: int) -> Judgement:
        """Judge the tokens drafted at position, position + 1, .. by the target's scores [rows, vocab].

        rows is len(drafted), or len(drafted) + 1: then the last row gives one more token if all are accepted
        (with nothing drafted, a plain draw from the target). probs: float32 [len(drafted), vocab], where
        needs_probs. One copy to the host, two where `rejection` draws a token itself. Raises NoDistribution where
        a row of the target that is needed has none (NaN, inf, all -inf); every token drafted before its position
        was accepted.
        """
        ...


class GreedyRule:
    """Accept the target's argmax; ties go to the lowest id, as in transformers."""

    needs_probs = False

    def draft(self, scores: Tensor, position: int) -> tuple[int, Tensor | None]:
        return _argmax(scores[None])[0], None

    def judge(self, scores: Tensor, drafted: Sequence[int], probs: Tensor | None, position: int) -> Judgement:
        _check_rows(scores, drafted)
        chosen, values = _argmax_and_value(scores)
        judgement = _compare(drafted, chosen)
        _require(judgement, position, values)
        return judgement


class CoupledRule:
    """Draft and target draw with the same Gumbel noise; accept where they drew the same token.

    The target's token is argmax(log p + noise of the position), whatever was drafted: the text is the one of
    plain sampling with that seed. Scores are log p up to a constant per row, which changes no argmax.
    """

    needs_probs = False

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def draft(self, scores: Tensor, position: int) -> tuple[int, Tensor | None]:
        return _argmax(self._perturbed(scores[None], position))[0], None

    def judge(self, scores: Tensor, drafted: Sequence[int], probs: Tensor | None, position: int) -> Judgement:
        _check_rows(scores, drafted)
        chosen, values = _argmax_and_value(self._perturbed(scores, position))
        judgement = _compare(drafted, chosen)
        _require(judgement, position, values)
        return judgement

    def _perturbed(self, scores: Tensor, position: int) -> Tensor:
        rows, vocab_size = scores.shape
        noise = np.stack([gumbel(self.seed, position + row, vocab_size) for row in range(rows)])
        # float64: at a low temperature scores are large, and float32 would round the noise away.
        return torch.from_numpy(noise).to(scores.device).add_(scores)


class RejectionRule:
    """Accept a drafted token y with probability min(1, p(y)/q(y)), else draw from norm(max(0, p - q)).

    Acceptance, replacement and bonus have draws of their own: one draw used for two tests gives other text
    than the target's. Where q is broken (NaN) the token is rejected and p itself drawn from: still exact.
    """

    needs_probs = True

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def draft(self, scores: Tensor, position: int) -> tuple[int, Tensor | None]:
        probs = scores.softmax(-1, dtype=torch.float32)
        return int(_inverse_cdf(probs, uniform(self.seed, position, Purpose.DRAFT))), probs

    def judge(self, scores: Tensor, drafted: Sequence[int], probs: Tensor | None, position: int) -> Judgement:
        _check_rows(scores, drafted)
        target = scores.softmax(-1, dtype=torch.float32)
        rows, num_drafted, num_accepted = scores.shape[0], len(drafted), 0
        draws = uniforms(self.seed, position, rows)
        if drafted:
            if probs is None:
                raise ValueError("the rejection rule needs the probabilities of the drafted tokens")
            num_accepted = _num_accepted(target, drafted, probs, draws[:, Purpose.ACCEPT].tolist())
        if num_accepted == rows:
            return Judgement(tuple(drafted), num_accepted, False)
        weights, purpose = target[num_accepted], Purpose.TARGET
        if probs is not None and num_accepted < num_drafted:
            weights, purpose = _residual(weights, probs[num_accepted]), Purpose.RESIDUAL
        token = _certain_draw(weights, float(draws[num_accepted, purpose]), position + num_accepted)
        return Judgement((*drafted[:num_accepted], token), num_accepted, num_accepted < num_drafted)


_RULES: dict[str, Callable[[int], VerificationRule]] = {"rejection": RejectionRule, "coupled": CoupledRule}


def make_rule(verify: str, params: SamplingParams, seed: int) -> VerificationRule:
    """The rule of one request: `verify` says how to sample, greedy needs no noise. Raises UserError."""
    if verify not in _RULES:
        raise UserError("--verify", verify, f"must be one of {', '.join(sorted(_RULES))}")
    return GreedyRule() if params.greedy else _RULES[verify](seed)


def _check_rows(scores: Tensor, drafted: Sequence[int]) -> None:
    rows = scores.shape[0]
    if rows - len(drafted) not in (0, 1) or not rows:
        raise ValueError(f"{rows} rows of scores cannot judge {len(drafted)} drafted tokens")


def _argmax(scores: Tensor) -> list[int]:
    """The best id of each row, the lowest where several are best: one argmax and one host copy."""
    if scores.device.type == "cpu" and scores.dtype in (torch.float32, torch.float64):
        # The same ids, but vectorised: ten times as fast as torch's argmax.
        return scores.numpy().argmax(-1).tolist()
    return scores.argmax(-1).tolist()


def _argmax_and_value(scores: Tensor) -> tuple[list[int], list[float]]:
    """The best id of each row, as `_argmax` has it, and its score; one host copy."""
    if scores.device.type == "cpu":
        best = _argmax(scores)
        return best, scores[range(len(best)), best].tolist()
    tokens = scores.argmax(-1, keepdim=True)
    # float64 holds every id and every score exactly.
    chosen, values = torch.cat([tokens.double(), scores.gather(-1, tokens).double()], -1).t().tolist()
    return [int(token) for token in chosen], values


def _require(judgement: Judgement, position: int, best_scores: Sequence[float]) -> None:
    """Raise NoDistribution for the first row that `judgement` took an id from and whose best score is no number."""
    for row, best in enumerate(best_scores[: len(judgement.token_ids)]):
        if not math.isfinite(best):
            raise NoDistribution(position + row)


def _compare(drafted: Sequence[int], chosen: Sequence[int]) -> Judgement:
    """Accept drafted tokens while they are what the target chose."""
    for accepted, (token, right) in enumerate(zip(drafted, chosen, strict=False)):
        if token != right:
            return Judgement((*drafted[:accepted], right), accepted, True)
    return Judgement(tuple(chosen), len(drafted), False)


def _num_accepted(target: Tensor, drafted: Sequence[int], probs: Tensor, draws: Sequence[float]) -> int:
    """How many drafted tokens pass their tests before the first that does not; one copy to the host."""
    tokens = torch.tensor(drafted, device=target.device)[:, None]
    p_and_q = torch.cat([target[: len(drafted)].gather(-1, tokens), probs.gather(-1, tokens)], 1).tolist()
    tests = (draw * q < p for draw, (p, q) in zip(draws, p_and_q, strict=False))
    return next((index for index, passed in enumerate(tests) if not passed), len(drafted))


def _residual(p: Tensor, q: Tensor) -> Tensor:
    """max(0, p - q), unnormalised; p itself where nothing is left (p == q up to rounding) or q is NaN."""
    residual = (p - q).clamp_(min=0)
    return torch.where(residual.sum() > 0, residual, p)


def _inverse_cdf(weights: Tensor, draw: float) -> Tensor:
    """The id drawn from unnormalised weights [vocab] by a uniform draw in [0, 1): int64 [1], a valid id.

    The first id whose cumulated weight exceeds draw * total: never one of weight 0.
    """
    cdf = weights.cumsum(-1, dtype=torch.float64)
    return torch.searchsorted(cdf, cdf[-1:] * draw, right=True).clamp_(max=weights.shape[0] - 1)


def _certain_draw(weights: Tensor, draw: float, position: int) -> int:
    """The id drawn from weights [vocab]. Raises NoDistribution where they are none."""
    token = _inverse_cdf(weights, draw)
    token_id, drawable = torch.cat([token, (weights.gather(0, token) > 0).long()]).tolist()
    if not drawable:  # no distribution at all, or the rounding of a device's parallel cumsum
        token_id = int(weights.nan_to_num(0.0).argmax())
        if not weights[token_id] > 0:
            raise NoDistribution(position)
    return token_id
