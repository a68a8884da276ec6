"""Whole runs on models with known statistics: pairs and triples of tokens against the target's, by chi-square.

Every run is fixed by its seed, so the p-values are constants. The known wrong loops must be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from torch import Tensor

from pearl_pp.decoding import verification
from pearl_pp.runtime import pair as pair_module
from tests.chains import save_chains
from tests.inprocess import Cluster
from tests.integration.test_lossless import PLACEMENTS
from tests.unit.decoding.chi_square import p_value_of_chain
from tests.unit.decoding.test_losslessness import (
    FITS,
    WRONG,
    GreedyDraft,
    UnverifiedTail,
    one_draw_for_a_window,
    one_draw_for_test_and_replacement,
)
from tests.unit.decoding.toy_pearl import independent, random_chain

STRATEGIES = ("sd", "hop ship", "pipelined p=1", "pipelined F=3 p=2", "pipelined p=3")
CONTROL = "hop of two"
NUM_TOKENS = 1_000

CHAINS: dict[str, tuple[Tensor, Tensor]] = {
    "random": (random_chain(4, seed=1, sharpness=1.0), random_chain(4, seed=2, sharpness=1.0)),
    # What a wrong loop does to the text is large here.
    "two tokens": (independent(0.5, 0.5), independent(0.9, 0.1)),
    "two likely tokens": (independent(0.5, 0.5), independent(0.6, 0.4)),
    "three tokens": (independent(0.45, 0.275, 0.275), independent(0.9, 0.05, 0.05)),
}

Sampled = Callable[..., list[int]]


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    """`sampled("sd", "random", "coupled", seed=1)` -> a long text; the draft is right and wrong in it."""

    @cache
    def cluster(name: str, chains: str, verify: str) -> Cluster:
        num_ranks, options = PLACEMENTS[name]
        folders = save_chains(Path(tmp_path_factory.mktemp("chains")), *CHAINS[chains], num_layers=num_ranks)
        return Cluster(*folders, num_ranks, verify=verify, **options)

    def run(name: str, chains: str, verify: str, seed: int) -> list[int]:
        outcome = cluster(name, chains, verify).run(
            [0], max_new_tokens=NUM_TOKENS, ignore_eos=True, temperature=1.0, seed=seed
        )
        assert outcome.metrics["num_accepted_tokens"] > 50
        return outcome.ids

    return run


@pytest.mark.case("S1")
@pytest.mark.parametrize(
    ("name", "verify"), [*((name, "rejection") for name in STRATEGIES), ("pipelined F=3 p=2", "coupled")]
)
def test_pairs_and_triples_are_the_targets(name: str, verify: str, sampled: Sampled) -> None:
    text = sampled(name, "random", verify, seed=2)
    for order in (1, 2):
        assert p_value_of_chain(text, CHAINS["random"][0], order) > FITS


WRONG_DRAWS = {
    "one draw for a window": one_draw_for_a_window,
    "one draw for test and replacement": one_draw_for_test_and_replacement,
}
WRONG_RULES = {"unverified tail": UnverifiedTail, "a q not drawn from": lambda seed: GreedyDraft(seed, honest=False)}
WRONG_LOOPS = {
    "one draw for a window": "two tokens",
    "one draw for test and replacement": "three tokens",
    "unverified tail": "two tokens",
    "a q not drawn from": "two likely tokens",
}


@pytest.mark.case("S1", "S2")
@pytest.mark.parametrize("wrong", WRONG_LOOPS)
def test_control_a_wrong_loop_is_seen(wrong: str, sampled: Sampled, monkeypatch: pytest.MonkeyPatch) -> None:
    target = CHAINS[WRONG_LOOPS[wrong]][0]
    assert p_value_of_chain(sampled(CONTROL, WRONG_LOOPS[wrong], "rejection", seed=5), target, 1) > FITS
    if wrong in WRONG_DRAWS:
        monkeypatch.setattr(verification, "uniforms", WRONG_DRAWS[wrong])
    else:
        monkeypatch.setattr(pair_module, "make_rule", lambda verify, params, seed: WRONG_RULES[wrong](seed))
    assert p_value_of_chain(sampled(CONTROL, WRONG_LOOPS[wrong], "rejection", seed=5), target, 1) < WRONG
