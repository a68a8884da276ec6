"""A pass over many positions goes through a stage in parts, and gives what one pass would."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pearl_pp.stages import stage as stage_module
from tests.unit.stages.tiny import Pipeline, cut, full_logits, save_model, tiny_config

NUM_TOKENS = 32
CONFIGS = {"llama": tiny_config("llama"), "windows": tiny_config("mistral", sliding_window=8)}


@pytest.mark.parametrize("num_logits", [0, 1, 5, 9, 17, NUM_TOKENS])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_parts_give_the_numbers_of_the_whole(
    config: object, num_logits: int, tmp_path: Path, token_ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = full_logits(save_model(tmp_path, config), token_ids)
    pipeline = Pipeline(tmp_path, cut(4, 2))
    rows: list[int] = []
    for stage in pipeline.stages:
        run = stage._pass
        monkeypatch.setattr(stage, "_pass", lambda x, *rest, run=run: rows.append(len(x)) or run(x, *rest))
    monkeypatch.setattr(stage_module, "LONGEST_PASS", 8)
    for _ in range(2):  # again after a rollback to the start
        found = pipeline.run(token_ids, 0, num_logits)
        assert found.shape == (num_logits, expected.shape[1])
        assert torch.allclose(found, expected[NUM_TOKENS - num_logits :], atol=1e-5)
        assert [stage.cache.length for stage in pipeline.stages] == [NUM_TOKENS] * 2
    assert sum(rows) == 4 * NUM_TOKENS
    assert rows[:4] == [8] * 4, "hidden states in parts"
    last = {0: 8, 1: 8, 5: 8, 9: 16, 17: 24, NUM_TOKENS: NUM_TOKENS}[num_logits]
    assert rows[-1] == last, "the rows whose logits are wanted are in one part"
