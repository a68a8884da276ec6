"""A model cut into stages gives what the model in one piece gives."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AutoModelForCausalLM

from pearl_pp.errors import UserError
from pearl_pp.stages import attention, kv_cache, stage
from pearl_pp.stages.source import open_model
from pearl_pp.stages.stage import build_stage
from tests.unit.stages.tiny import Pipeline, cut, full_logits, save_model, tiny_config, worst_difference

TOLERANCE = 1e-5
MODELS = {
    "llama": tiny_config("llama"),
    "llama, tied": tiny_config("llama", tie_word_embeddings=True),
    "qwen2 with biases": tiny_config("qwen2"),
    "qwen3, tied": tiny_config("qwen3", head_dim=16, tie_word_embeddings=True),
    "mistral, window 8": tiny_config("mistral", sliding_window=8),
    "8 query heads on one": tiny_config("llama", num_attention_heads=8, num_key_value_heads=1),
}


@pytest.mark.case("A1")
@pytest.mark.case("A2")
@pytest.mark.case("A3")
@pytest.mark.case("C3")
@pytest.mark.parametrize("name", MODELS)
def test_every_cut_gives_the_logits_of_the_whole_model(name: str, tmp_path: Path, token_ids: torch.Tensor) -> None:
    model = save_model(tmp_path, MODELS[name])
    expected = full_logits(model, token_ids)
    for num_stages in (1, 2, 3, 4):
        pipeline = Pipeline(tmp_path, cut(4, num_stages))
        assert worst_difference(pipeline, expected, token_ids) <= TOLERANCE
        assert all(s.is_lean for s in pipeline.stages)


@pytest.mark.case("A1")
@pytest.mark.parametrize("held", ["model.embed_tokens.weight", "lm_head.weight"])
def test_tied_stages_hold_the_matrix_once_each_whichever_name_it_has(
    held: str, tmp_path: Path, token_ids: torch.Tensor
) -> None:
    from safetensors.torch import load_file, save_file

    expected = full_logits(save_model(tmp_path, MODELS["llama, tied"]), token_ids)
    tensors = load_file(tmp_path / "model.safetensors")
    assert "lm_head.weight" not in tensors
    tensors[held] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})

    matrix = 128 * 64 * 4
    pipeline = Pipeline(tmp_path, cut(4, 2))
    assert worst_difference(pipeline, expected, token_ids) <= TOLERANCE
    whole, middle = Pipeline(tmp_path, [(0, 4)]), Pipeline(tmp_path, cut(4, 4)).stages[1]
    assert sum(s.weight_bytes for s in pipeline.stages) == whole.stages[0].weight_bytes + matrix
    layer_bytes = middle.weight_bytes
    assert whole.stages[0].weight_bytes == 4 * layer_bytes + matrix + 64 * 4  # and the final norm


def test_an_untied_model_is_held_once_over_all_stages(llama_dir: Path) -> None:
    whole = Pipeline(llama_dir, [(0, 4)]).stages[0].weight_bytes
    assert sum(s.weight_bytes for s in Pipeline(llama_dir, cut(4, 4)).stages) == whole


def test_outside_the_lean_path_the_numbers_are_the_same(
    llama_dir: Path, token_ids: torch.Tensor, llama_logits: torch.Tensor
) -> None:
    pipeline = Pipeline(llama_dir, cut(4, 3))
    for one in pipeline.stages:
        one._calls = None
    assert worst_difference(pipeline, llama_logits, token_ids) <= TOLERANCE


def test_a_family_that_the_lean_path_gets_wrong_does_not_take_it(
    llama_dir: Path,
    token_ids: torch.Tensor,
    llama_logits: torch.Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = stage.LayerCalls.run
    monkeypatch.setattr(stage.LayerCalls, "run", lambda *arguments: right(*arguments) * 1.001)
    pipeline = Pipeline(llama_dir, cut(4, 2))
    assert not any(s.is_lean for s in pipeline.stages)
    assert worst_difference(pipeline, llama_logits, token_ids) <= TOLERANCE


@pytest.mark.parametrize("place", ["LayerCalls.run", "record_calls"])
def test_a_device_without_room_is_no_reason_to_leave_the_lean_path(
    place: str, llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(f"pearl_pp.stages.stage.{place}", no_room)
    with pytest.raises(torch.OutOfMemoryError):
        Pipeline(llama_dir, [(0, 4)])


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_room_and_tables_grow_with_the_text(
    family: str, tmp_path: Path, token_ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_cache, "FIRST_CAPACITY", 8)
    monkeypatch.setattr(stage, "FIRST_POSITIONS", 16)
    config = tiny_config(family, **({"sliding_window": 20} if family == "mistral" else {}))
    expected = full_logits(save_model(tmp_path, config), token_ids)
    pipeline = Pipeline(tmp_path, cut(4, 2))
    assert pipeline.stages[0].cache.capacity < 32
    assert worst_difference(pipeline, expected, token_ids) <= TOLERANCE
    assert all(s.is_lean and 32 <= s.cache.capacity <= 64 for s in pipeline.stages)


def test_only_the_last_rows_get_logits(llama_dir: Path, token_ids: torch.Tensor, llama_logits: torch.Tensor) -> None:
    pipeline = Pipeline(llama_dir, cut(4, 2))
    for num_logits in (0, 1, 3, 8):
        logits = pipeline.run(token_ids[:8], 0, num_logits)
        assert logits.shape == (num_logits, 128)
        torch.testing.assert_close(logits, llama_logits[8 - num_logits : 8], rtol=0, atol=TOLERANCE)


def test_a_new_sequence_remembers_nothing(llama_dir: Path, token_ids: torch.Tensor, llama_logits: torch.Tensor) -> None:
    pipeline = Pipeline(llama_dir, cut(4, 2), max_len=24)
    pipeline.run(token_ids.flip(0)[:20], 0)
    for one in pipeline.stages:
        one.reset(max_len=32)
        assert one.cache.length == 0
    logits = pipeline.run(token_ids, 0)
    torch.testing.assert_close(logits, llama_logits, rtol=0, atol=TOLERANCE)


def test_positions_that_are_not_there_are_refused(llama_dir: Path, token_ids: torch.Tensor) -> None:
    first = Pipeline(llama_dir, [(0, 2)], max_len=20).stages[0]
    first.run(token_ids[:10], 0)
    with pytest.raises(ValueError, match="10 positions to 11"):
        first.run(token_ids[:1], 11)
    with pytest.raises(ValueError, match="21 positions do not fit"):
        first.run(token_ids[:11], 10)
    assert first.cache.length == 10


@pytest.mark.case("N1")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_in_its_dtype_and_near_the_whole_model(
    dtype: torch.dtype, llama_dir: Path, token_ids: torch.Tensor
) -> None:
    model = AutoModelForCausalLM.from_pretrained(llama_dir, dtype=dtype)
    expected = full_logits(model, token_ids).float()
    pipeline = Pipeline(llama_dir, cut(4, 2), dtype=dtype)
    hidden = pipeline.stages[0].run(token_ids, 0)
    logits = pipeline.stages[1].run(hidden, 0, num_logits=32)
    assert hidden.dtype == logits.dtype == pipeline.stages[0].cache.entries.dtype == dtype
    tables = [b for b in pipeline.stages[0].model.buffers() if b.is_floating_point()]
    assert tables and all(table.dtype == torch.float32 for table in tables)
    assert (logits.float() - expected).abs().max() <= 0.02 * expected.abs().max()


def test_buffers_are_what_transformers_computes(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    model = save_model(tmp_path, tiny_config("llama", rope_parameters=rope))
    last = build_stage(open_model(tmp_path, "--target"), 2, 4, dtype=torch.bfloat16, device="cpu", max_len=16)
    for name, buffer in model.named_buffers():
        assert torch.equal(last.model.get_buffer(name), buffer), name


@pytest.mark.parametrize("fault", ["wrong numbers", "an error", "no number"])
def test_a_family_that_our_attention_gets_wrong_does_not_take_it(
    fault: str, llama_dir: Path, token_ids: torch.Tensor, llama_logits: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = attention.grouped_attention

    def wrong(*arguments: Any, **options: Any) -> tuple[torch.Tensor, None]:
        if fault == "an error":
            raise RuntimeError("sizes do not match")
        output, _ = right(*arguments, **options)
        return output * (2.0 if fault == "wrong numbers" else float("nan")), None

    AttentionInterface.register(attention.ATTENTION, wrong)
    try:
        pipeline = Pipeline(llama_dir, cut(4, 2))
    finally:
        AttentionInterface.register(attention.ATTENTION, right)
    assert [one.model.config._attn_implementation for one in pipeline.stages] == ["sdpa"] * 2
    assert worst_difference(pipeline, llama_logits, token_ids) <= TOLERANCE


def test_layers_without_kv_entries_are_refused(llama_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache._KVLayer, "update", lambda self, keys, values, *_, **__: (keys, values))
    with pytest.raises(UserError, match="llama cannot be rolled back: its layers keep no KV cache"):
        build_stage(open_model(llama_dir, "--target"), 0, 4, dtype=torch.float32, device="cpu", max_len=16)
