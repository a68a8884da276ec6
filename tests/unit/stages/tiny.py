"""Tiny random models on disk, and what one-process transformers makes of them."""

import itertools
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from pearl_pp.stages.source import ModelSource, open_model
from pearl_pp.stages.stage import Stage, build_stage

VOCAB = 128
BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny_config(family: str, **changes: Any) -> PreTrainedConfig:
    return AutoConfig.for_model(family, **{**BASE, **changes})


def save_model(folder: Path, config: PreTrainedConfig, shard_size: str = "50GB") -> PreTrainedModel:
    """Random weights large enough for logits to differ, norms and large biases among them."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * (1.0 if name.endswith("bias") else 0.1))
            else:
                parameter.mul_(3)
    model.save_pretrained(folder, max_shard_size=shard_size)
    return model


def full_logits(model: PreTrainedModel, token_ids: torch.Tensor) -> torch.Tensor:
    """[n, vocab], one pass without a cache."""
    with torch.inference_mode():
        return model(input_ids=token_ids[None], use_cache=False).logits[0]


def cut(num_layers: int, num_stages: int) -> list[tuple[int, int]]:
    edges = [num_layers * i // num_stages for i in range(num_stages + 1)]
    return list(itertools.pairwise(edges))


class Pipeline:
    """Stages one after the other, in one process."""

    def __init__(
        self,
        source: ModelSource | Path,
        ranges: list[tuple[int, int]],
        dtype: torch.dtype = torch.float32,
        max_len: int = 64,
    ) -> None:
        if isinstance(source, Path):
            source = open_model(source, "--target")
            source.check()
        self.stages: list[Stage] = [
            build_stage(source, start, end, dtype=dtype, device="cpu", max_len=max_len) for start, end in ranges
        ]

    def run(self, token_ids: torch.Tensor, start: int, num_logits: int | None = None) -> torch.Tensor:
        output = token_ids
        for stage in self.stages:
            output = stage.run(output, start, num_logits=len(token_ids) if num_logits is None else num_logits)
        return output


def worst_difference(pipeline: Pipeline, expected: torch.Tensor, token_ids: torch.Tensor) -> float:
    """Largest difference over a script of passes that rolls back nothing, one, several and all positions.

    `token_ids` [32] and their logits `expected` [32, vocab]. Other tokens are fed in between and dropped.
    """
    wrong = torch.full((5,), 7)
    script = [(0, 12), (12, 17), (12, 17), (16, 21), (21, 22), (0, 14), (14, 22), (22, 23), (22, 24)]
    script += [(i, i + 1) for i in range(24, 32)]
    worst = 0.0
    for start, end in script:
        logits = pipeline.run(token_ids[start:end], start)
        assert all(stage.cache.length == end for stage in pipeline.stages)
        assert torch.equal(logits.argmax(-1), expected[start:end].argmax(-1))
        worst = max(worst, (logits - expected[start:end]).abs().max().item())
        pipeline.run(wrong, end)
    return worst
