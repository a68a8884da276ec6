"""Families beyond Llama's: which work through the generic path, and which are refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import FalconConfig, GPT2Config, MambaConfig, PreTrainedConfig, T5Config

from pearl_pp.errors import UserError
from pearl_pp.stages import families
from pearl_pp.stages.source import open_model
from tests.unit.stages.tiny import Pipeline, cut, full_logits, save_model, tiny_config, worst_difference

EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
WINDOW: dict[str, Any] = {"head_dim": 16, "sliding_window": 8}
ROPE: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
LONG: dict[str, Any] = {"original_max_position_embeddings": 64, "factor": 4.0, "rope_theta": 10000.0}

# Whether the layers behind the first stage are called directly.
FAMILIES: dict[str, tuple[PreTrainedConfig, bool]] = {
    "qwen2 with windows": (
        tiny_config("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=2),
        True,
    ),
    "qwen3_moe with dense layers": (tiny_config("qwen3_moe", head_dim=16, mlp_only_layers=[1], **EXPERTS), True),
    "mixtral": (tiny_config("mixtral", num_local_experts=4), True),
    "gemma3": (tiny_config("gemma3_text", query_pre_attn_scalar=16, **WINDOW), True),
    "phi3": (tiny_config("phi3"), True),
    "phi3 with longrope": (
        tiny_config(
            "phi3",
            rope_parameters={"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8} | LONG,
        ),
        True,
    ),
    "gpt_neox": (tiny_config("gpt_neox", num_key_value_heads=4), True),
    "olmo2": (tiny_config("olmo2"), True),
    "olmo, norms without weights": (tiny_config("olmo"), True),
    "smollm3": (tiny_config("smollm3", no_rope_layer_interval=2), True),
    "granite": (tiny_config("granite", embedding_multiplier=12.0, logits_scaling=3.0), True),
    "cohere2": (tiny_config("cohere2", **WINDOW), True),
    "gemma2, soft caps": (tiny_config("gemma2", query_pre_attn_scalar=16, **WINDOW), False),
    "gpt_oss, sinks": (
        tiny_config("gpt_oss", num_local_experts=4, num_experts_per_tok=2, **WINDOW, **ROPE),
        False,
    ),
    "llama4, chunks": (
        tiny_config("llama4_text", head_dim=16, num_local_experts=2, attention_chunk_size=8, intermediate_size_mlp=64),
        False,
    ),
    "gpt2, learnt positions": (GPT2Config(n_embd=64, n_layer=4, n_head=4, vocab_size=128, n_positions=256), False),
    "falcon": (FalconConfig(hidden_size=64, num_hidden_layers=4, num_attention_heads=4, vocab_size=128), False),
}


@pytest.mark.case("A3")
@pytest.mark.parametrize("name", FAMILIES)
def test_families_that_need_no_entry(name: str, tmp_path: Path, token_ids: torch.Tensor) -> None:
    config, lean = FAMILIES[name]
    expected = full_logits(save_model(tmp_path, config), token_ids)
    pipeline = Pipeline(tmp_path, cut(4, 3))
    assert worst_difference(pipeline, expected, token_ids) <= 1e-5
    assert pipeline.stages[1].is_lean == lean
    source = open_model(tmp_path, "--draft")
    assert source.kv_bytes_per_token(torch.float32) == sum(s.cache.bytes_per_token for s in pipeline.stages)


REFUSED: dict[str, tuple[PreTrainedConfig, str]] = {
    "recurrent": (MambaConfig(hidden_size=64, num_hidden_layers=2, vocab_size=128), "mamba.*rolled back"),
    "hybrid": (tiny_config("jamba"), "jamba.*rolled back"),
    "linear attention": (tiny_config("qwen3_next", head_dim=16, **EXPERTS), "qwen3_next.*rolled back"),
    "shared entries": (tiny_config("gemma3n_text", num_kv_shared_layers=2), "gemma3n_text.*shares KV"),
    "encoder-decoder": (T5Config(), "t5 is an encoder-decoder"),
    "quantised": (
        tiny_config("llama", quantization_config={"quant_method": "gptq", "bits": 4}),
        r"quantised \(gptq\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_by_name_from_its_config(name: str, tmp_path: Path) -> None:
    config, reason = REFUSED[name]
    config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"^--target .*: .*{reason}"):
        open_model(tmp_path, "--target")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (tiny_config("bloom", n_head=4, n_layer=4), r"bloom .* word_embeddings_layernorm"),
        (tiny_config("opt", ffn_dim=96, word_embed_proj_dim=64), r"opt .* final_layer_norm"),
    ],
)
def test_a_norm_before_the_first_layer_is_refused(config: PreTrainedConfig, reason: str, tmp_path: Path) -> None:
    save_model(tmp_path, config)
    with pytest.raises(UserError, match=reason):
        open_model(tmp_path, "--target").check()


def test_a_forward_that_scales_hidden_states_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "ENTRY_FACTORS", {})
    save_model(tmp_path, tiny_config("granite", embedding_multiplier=12.0))
    with pytest.raises(UserError, match=r"granite .* changes hidden states before the first layer"):
        open_model(tmp_path, "--target").check()


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rope_that_depends_on_the_length_ends_at_the_original_length(kind: str, tmp_path: Path) -> None:
    rope: dict[str, Any] = {"rope_type": kind, **LONG}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    tiny_config("llama", rope_parameters=rope).save_pretrained(tmp_path)
    assert open_model(tmp_path, "--target").max_positions == 64


def test_tensor_names_move_by_their_first_number() -> None:
    name = "model.layers.11.mlp.experts.3.up_proj.weight"
    assert families.layer_number(name) == 11
    assert families.renumbered(name, 9) == "model.layers.2.mlp.experts.3.up_proj.weight"
    assert families.layer_number("model.norm.weight") is None
    assert families.renumbered("lm_head.weight", 9) == "lm_head.weight"
