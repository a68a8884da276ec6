"""Models whose next token depends on the last one alone, with chosen probabilities: texts of known statistics."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.pairs import save, tiny_config


def chain_model(scores: Tensor, num_layers: int) -> LlamaForCausalLM:
    """A Llama whose logits after token i are `scores[i]` (float [vocab, vocab]), whatever came before it.

    The layers add nothing, so the last hidden state is the embedding: a unit vector for each token.
    """
    vocab_size = len(scores)
    hidden = max(8, vocab_size + -vocab_size % 4)
    model = LlamaForCausalLM(
        tiny_config(
            num_hidden_layers=num_layers, hidden_size=hidden, intermediate_size=8, num_attention_heads=2,
            num_key_value_heads=1, vocab_size=vocab_size, bos_token_id=0, eos_token_id=vocab_size - 1,
        )
    ).eval()  # fmt: skip
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(vocab_size, hidden))
        model.model.norm.weight.fill_(hidden**-0.5)  # RMSNorm makes sqrt(hidden) of the single 1
        model.lm_head.weight.zero_()
        model.lm_head.weight[:, :vocab_size] = scores.float().T
    return model


def save_chains(root: Path, target: Tensor, draft: Tensor, num_layers: int) -> tuple[Path, Path]:
    """Target and draft folders; every rank of a placement has a layer of both."""
    folders = root / "target", root / "draft"
    for folder, scores in zip(folders, (target, draft), strict=True):
        save(chain_model(scores, num_layers), folder)
    return folders
