"""The fitted acceptances of the delivered profiles give the speeds that were published."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from pearl_pp.config import RunConfig, read_profile
from pearl_pp.planning.presets import resolve_placement
from pearl_pp.schedule.schedule import speculative
from pearl_pp.simulation.costs import ProfileCosts
from pearl_pp.simulation.simulator import Simulator
from pearl_pp.simulation.verdicts import independent

PROFILES = Path(__file__).parents[3] / "configs" / "profiles"
NUM_TOKENS = 15_000


# Tokens per second of PEARL in the paper; gamma = c, four stages and a card for the draft.
@pytest.mark.parametrize(
    ("name", "gamma", "published"),
    [
        ("a100_llama2_7b_70b", 5, 24.28),
        ("a100_llama31_8b_70b", 5, 32.14),
        ("a100_deepseek_1b_33b", 4, 57.76),
    ],
)
def test_dedicated_is_as_fast_as_published(name: str, gamma: int, published: float) -> None:
    profile = read_profile(str(PROFILES / f"{name}.yaml"))
    assert profile.ratio == pytest.approx(gamma)
    options = RunConfig(placement="dedicated", gamma=gamma)
    placement = resolve_placement(options, 5, profile.target.num_layers, profile.draft.num_layers)
    speeds = []
    for seed in (0, 1):
        judge = independent(profile.acceptance, seed)
        simulator = Simulator(speculative(placement, gamma), ProfileCosts(profile, placement), judge)
        speeds.append(simulator.run(1, 1 + NUM_TOKENS).decode_tokens_per_s)
    assert mean(speeds) == pytest.approx(published, rel=0.02)
