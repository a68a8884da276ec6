"""Long prompts and answers: right up to the model's limit, and the cache is not copied for each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inprocess import Cluster
from tests.pairs import oracle, save, tiny_model

LIMIT = 2048
PROMPT = [3 + (7 * i * i + i) % 120 for i in range(1900)]


@pytest.mark.case("E5")
@pytest.mark.parametrize("placement", ["pipelined", "sharded"])
def test_a_long_prompt_and_an_answer_up_to_the_limit(placement: str, tmp_path: Path) -> None:
    target, draft = (save(tiny_model(max_position_embeddings=LIMIT), tmp_path / name) for name in "td")
    cluster = Cluster(target, draft, 4, placement=placement, gamma=5)
    moved: list[set[int]] = [set() for _ in range(4)]

    def watch(rank, module, generator, verdict) -> None:
        moved[rank].update(stage.cache.entries.data_ptr() for stage in module.stages)

    outcome = cluster.run(PROMPT, watch, max_new_tokens=1000, ignore_eos=True)
    assert len(PROMPT) + len(outcome.ids) == LIMIT
    assert outcome.ids == oracle(target, PROMPT, LIMIT - len(PROMPT))
    stages = [len(module.stages) for module in cluster.modules]
    assert all(len(places) <= 3 * num for places, num in zip(moved, stages, strict=True)), "entries move rarely"
