"""Tiny random model pairs (CASES: TINY, SELF, ANTI, NOISY, TOY), saved as ordinary Hugging Face folders."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

EOS = 127


def tiny_config(**changes: Any) -> LlamaConfig:
    """Llama, 4 layers, hidden 64, 4 heads, 2 KV heads, vocabulary 128."""
    options: dict[str, Any] = {
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 128,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": EOS,
        "pad_token_id": 0,
        # Wide enough that greedy text wanders instead of repeating one token.
        "initializer_range": 0.15,
    }
    return LlamaConfig(**(options | changes))


def tiny_model(seed: int = 0, **changes: Any) -> PreTrainedModel:
    torch.manual_seed(seed)
    return LlamaForCausalLM(tiny_config(**changes)).eval()


def save(model: PreTrainedModel, folder: Path) -> Path:
    model.generation_config.do_sample = False
    model.save_pretrained(folder)
    return folder


def negated(model: PreTrainedModel) -> PreTrainedModel:
    """ANTI: the most likely token of the target is this draft's least likely one."""
    with torch.no_grad():
        model.lm_head.weight.neg_()
    return model


def noisy(model: PreTrainedModel, amount: float, seed: int = 1) -> PreTrainedModel:
    """NOISY: the target's weights plus noise, right now and then."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(torch.randn(weights.shape, generator=generator) * weights.std() * amount)
    return model


def save_pair(root: Path, name: str, **changes: Any) -> tuple[Path, Path]:
    """Target and draft folders of one of the named pairs."""
    target = save(tiny_model(**changes), root / "target")
    drafts = {
        "tiny": lambda: tiny_model(seed=7, **(changes | {"num_hidden_layers": 2})),
        "self": lambda: tiny_model(**changes),
        "anti": lambda: negated(tiny_model(**changes)),
        "noisy": lambda: noisy(tiny_model(**changes), 0.1),
    }
    return target, save(drafts[name](), root / "draft")


@cache
def reference(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def oracle(folder: Path, prompt: list[int], max_new_tokens: int, **options: Any) -> list[int]:
    """One-process Hugging Face `generate` on the target, greedy."""
    with torch.inference_mode():
        ids = reference(folder).generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            **({"eos_token_id": None} | options),
        )
    return ids[0, len(prompt) :].tolist()
