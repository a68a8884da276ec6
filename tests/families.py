"""Tiny random models of the decoder families that the suite runs, and of those that must be refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    GPT2Config,
    MambaConfig,
    OpenAIGPTConfig,
    PreTrainedConfig,
    RwkvConfig,
    T5Config,
)

from tests.pairs import noisy
from tests.unit.stages.tiny import tiny_config

ORIGINAL_POSITIONS = 64  # where rope types that depend on the length change their frequencies
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
WINDOW: dict[str, Any] = {"head_dim": 16, "sliding_window": 8}
LONGROPE: dict[str, Any] = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


def rope(kind: str, original: int = ORIGINAL_POSITIONS, **more: Any) -> dict[str, Any]:
    """Options of a config; dynamic rope takes the model's own length for the original one."""
    scaling: dict[str, Any] = {} if kind == "default" else {"factor": 4.0}
    if kind in ("llama3", "longrope", "yarn"):
        scaling["original_max_position_embeddings"] = original
    length = {"max_position_embeddings": original if kind == "dynamic" else 4 * original}
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **scaling, **more}, **length}


def save_family(folder: Path, family: Family, noise: float = 0.0) -> Path:
    """A random model whose greedy text wanders; with `noise` it is a draft that is right now and then."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(family.config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.ndim > 1:
                weights.normal_(0, 0.15)
            else:
                weights.add_(torch.randn_like(weights) * (family.biases if name.endswith("bias") else 0.1))
        if model.all_tied_weights_keys:
            model.get_input_embeddings().weight.mul_(0.25)  # else every token is followed by itself
    noisy(model, noise).save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Family:
    """`special` is what sets it apart from a plain Llama; `lean`: its middle stages call their layers directly.

    `biases` is the size of its random biases.
    """

    config: PreTrainedConfig
    special: str = ""
    lean: bool = True
    biases: float = 0.1


@dataclass(frozen=True)
class Refused:
    """`reason` is a pattern of what the user reads; `weights`: it is found only when the checkpoint is opened."""

    config: PreTrainedConfig
    reason: str
    weights: bool = False


FAMILIES: dict[str, Family] = {
    "Llama": Family(tiny_config("llama")),
    "Llama, tied": Family(tiny_config("llama", tie_word_embeddings=True), "head and embedding are one matrix"),
    "Llama, one KV head": Family(
        tiny_config("llama", num_attention_heads=8, num_key_value_heads=1), "8 query heads share a KV head"
    ),
    "Llama, rope llama3": Family(
        tiny_config("llama", **rope("llama3", 32, low_freq_factor=1.0, high_freq_factor=4.0)), "rope scaling llama3"
    ),
    "Llama, rope linear": Family(tiny_config("llama", **rope("linear")), "rope scaling linear"),
    "Llama, rope yarn": Family(tiny_config("llama", **rope("yarn", 32)), "rope scaling yarn"),
    "Llama, rope dynamic": Family(tiny_config("llama", **rope("dynamic")), "frequencies change with the length"),
    "Qwen2": Family(tiny_config("qwen2"), "large biases of q, k and v", biases=1.0),
    "Qwen2, windows": Family(
        tiny_config("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=2),
        "window of 8 in the upper layers",
    ),
    "Qwen3": Family(tiny_config("qwen3", head_dim=16, tie_word_embeddings=True), "norms of q and k, tied"),
    "Qwen3-MoE": Family(
        tiny_config("qwen3_moe", head_dim=16, mlp_only_layers=[1], **EXPERTS), "experts, a dense layer between"
    ),
    "Mixtral": Family(tiny_config("mixtral", num_local_experts=4), "experts"),
    "Mistral": Family(tiny_config("mistral", sliding_window=8), "window of 8"),
    "Gemma 2": Family(
        tiny_config("gemma2", query_pre_attn_scalar=16, **WINDOW), "window of 8 in every other layer, soft caps", False
    ),
    "Gemma 3": Family(
        tiny_config("gemma3_text", query_pre_attn_scalar=16, sliding_window_pattern=2, **WINDOW),
        "window of 8 and a rope of its own in every other layer",
    ),
    "Cohere2": Family(
        tiny_config("cohere2", sliding_window_pattern=2, logit_scale=0.5, **WINDOW),
        "window of 8, layers without rope, scaled logits",
    ),
    "gpt-oss": Family(
        tiny_config("gpt_oss", num_local_experts=4, num_experts_per_tok=2, **WINDOW, **rope("default")),
        "attention sinks, window of 8, experts",
        False,
    ),
    "OLMo": Family(tiny_config("olmo"), "norms without weights"),
    "OLMo 2": Family(tiny_config("olmo2"), "norms behind attention and MLP"),
    "OLMo 3": Family(tiny_config("olmo3", sliding_window=8), "window of 8 in three of four layers"),
    "Phi-3": Family(tiny_config("phi3"), "fused projections"),
    "Phi-3, rope longrope": Family(
        tiny_config("phi3", original_max_position_embeddings=ORIGINAL_POSITIONS, **rope("longrope", **LONGROPE)),
        "frequencies change with the length",
    ),
    "GPT-NeoX (Pythia)": Family(tiny_config("gpt_neox", num_key_value_heads=4), "rope on a quarter of a head"),
    "GPT-2": Family(
        GPT2Config(n_embd=64, n_layer=4, n_head=4, vocab_size=128, n_positions=256), "learnt positions, tied", False
    ),
    "Falcon": Family(
        FalconConfig(hidden_size=64, num_hidden_layers=4, num_attention_heads=4, vocab_size=128),
        "one KV head, attention and MLP side by side",
        False,
    ),
    "StarCoder2": Family(tiny_config("starcoder2", sliding_window=8), "window of 8, biases"),
    "Granite": Family(
        tiny_config("granite", embedding_multiplier=12.0, logits_scaling=3.0, residual_multiplier=0.5),
        "factors on embedding, residual and logits",
    ),
    "SmolLM3": Family(tiny_config("smollm3", no_rope_layer_interval=2), "every other layer without rope"),
    "Llama 4 (text)": Family(
        tiny_config(
            "llama4_text",
            head_dim=16,
            num_local_experts=2,
            attention_chunk_size=8,
            intermediate_size_mlp=64,
            floor_scale=8,
        ),
        "chunks of 8, attention scaled by position, experts",
        False,
    ),
}

REFUSED: dict[str, Refused] = {
    "Mamba": Refused(MambaConfig(hidden_size=64, num_hidden_layers=2, vocab_size=128), "mamba.*rolled back"),
    "RWKV": Refused(RwkvConfig(hidden_size=64, num_hidden_layers=2, vocab_size=128), "rwkv.*rolled back", True),
    "Jamba": Refused(tiny_config("jamba"), "jamba.*rolled back"),
    "Bamba": Refused(tiny_config("bamba"), "bamba.*rolled back"),
    "Falcon-H1": Refused(tiny_config("falcon_h1"), "falcon_h1.*rolled back"),
    "Qwen3-Next": Refused(tiny_config("qwen3_next", head_dim=16, **EXPERTS), "qwen3_next.*rolled back"),
    "LFM2": Refused(
        tiny_config("lfm2", layer_types=["conv", "full_attention"] * 2), "lfm2 has layers of type conv.*rolled back"
    ),
    "Gemma 3n": Refused(tiny_config("gemma3n_text", num_kv_shared_layers=2), "gemma3n_text.*shares KV"),
    "Gemma 3, bidirectional": Refused(
        tiny_config("gemma3_text", head_dim=16, use_bidirectional_attention=True), "gemma3_text attends to later tokens"
    ),
    "OpenAI GPT": Refused(
        OpenAIGPTConfig(n_embd=64, n_layer=4, n_head=4, vocab_size=128, n_positions=256), "keep no KV cache", True
    ),
    "BERT": Refused(tiny_config("bert"), "bert .* does not run without layers", True),
    "nanochat": Refused(tiny_config("nanochat"), "nanochat .* norm works before the last layer", True),
    "OPT": Refused(tiny_config("opt", ffn_dim=96, word_embed_proj_dim=64), "opt .* final_layer_norm", True),
    "BLOOM": Refused(tiny_config("bloom", n_head=4, n_layer=4), "bloom .* word_embeddings_layernorm", True),
    "T5": Refused(T5Config(), "t5 is an encoder-decoder"),
    "GPTQ weights": Refused(
        tiny_config("llama", quantization_config={"quant_method": "gptq", "bits": 4}), r"quantised \(gptq\)"
    ),
}
