"""The rule of emulated runs: what travelled decides, with the chosen acceptance."""

from __future__ import annotations

import pytest
import torch

from pearl_pp.decoding.emulated import EmulatedRule
from pearl_pp.decoding.noise import is_right

RIGHT, WRONG = 7, 9
SCORES = torch.zeros(()).expand(10, 32)


def rule(acceptance: float = 0.5, seed: int = 0, needs_probs: bool = False) -> EmulatedRule:
    return EmulatedRule(acceptance, seed, RIGHT, WRONG, needs_probs)


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.7, 1.0])
def test_so_many_drafted_tokens_are_right(acceptance: float) -> None:
    drafted = [rule(acceptance, seed=3).draft(SCORES[0], position)[0] for position in range(4000)]
    assert set(drafted) <= {RIGHT, WRONG}
    assert drafted.count(RIGHT) / 4000 == pytest.approx(acceptance, abs=0.03)
    assert [token == RIGHT for token in drafted] == [is_right(acceptance, 3, p) for p in range(4000)]


def test_positions_and_seeds_are_independent() -> None:
    streams = {tuple(is_right(0.5, seed, p) for p in range(100)) for seed in range(20)}
    assert len(streams) == 20


@pytest.mark.parametrize(
    ("drafted", "rows", "num_ids", "num_accepted", "rejected"),
    [
        ([RIGHT, RIGHT], 2, 2, 2, False),
        ([RIGHT, RIGHT], 3, 3, 2, False),
        ([RIGHT, WRONG, RIGHT], 3, 2, 1, True),
        ([WRONG], 2, 1, 0, True),
        ([], 1, 1, 0, False),
    ],
)
def test_tokens_are_accepted_up_to_the_first_wrong_one(
    drafted: list[int], rows: int, num_ids: int, num_accepted: int, rejected: bool
) -> None:
    judgement = rule().judge(SCORES[:rows], drafted, None, 5)
    assert judgement == ((RIGHT,) * num_ids, num_accepted, rejected)


def test_probabilities_travel_only_where_the_emulated_rule_needs_them() -> None:
    assert rule().draft(SCORES[0], 1)[1] is None
    probs = rule(needs_probs=True).draft(SCORES[0], 1)[1]
    assert probs is not None and (probs.shape, probs.dtype) == ((32,), torch.float32)
