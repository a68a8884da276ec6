"""Families beyond Llama's: which work through the generic path, and which are refused by name."""

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaModel

from pearl_pp.errors import UserError
from pearl_pp.stages import families
from pearl_pp.stages.source import open_model
from tests.families import FAMILIES, LONGROPE, REFUSED, rope
from tests.unit.stages.tiny import Pipeline, cut, full_logits, save_model, tiny_config, worst_difference


@pytest.mark.case("A3")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_cut_model_gives_the_numbers_of_the_whole(name: str, tmp_path: Path, token_ids: torch.Tensor) -> None:
    family = FAMILIES[name]
    expected = full_logits(save_model(tmp_path, family.config), token_ids)
    pipeline = Pipeline(tmp_path, cut(4, 3))
    assert worst_difference(pipeline, expected, token_ids) <= 1e-5
    assert pipeline.stages[1].is_lean == family.lean
    source = open_model(tmp_path, "--draft")
    assert source.kv_bytes_per_token(torch.float32) == sum(s.cache.bytes_per_token for s in pipeline.stages)


@pytest.mark.case("A5")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """From the config alone where that says it; else before any weight is read."""
    refused = REFUSED[name]
    save_model(tmp_path, refused.config) if refused.weights else refused.config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"^--target .*: .*{refused.reason}"):
        source = open_model(tmp_path, "--target")
        assert refused.weights
        source.check()


def test_layers_that_run_twice_are_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that loops over its layers would lose the loop when they are cut apart."""
    right = LlamaModel.forward

    def twice(self: LlamaModel, *arguments: Any, **options: Any) -> Any:
        right(self, *arguments, **options)
        return right(self, *arguments, **options)

    twice.__signature__ = inspect.signature(right)  # the cache is passed by the name that a forward has for it

    save_model(tmp_path, tiny_config("llama"))
    open_model(tmp_path, "--target").check()
    monkeypatch.setattr(LlamaModel, "forward", twice)
    with pytest.raises(UserError, match=r"llama cannot be cut .* its layers do not run once each, in their order"):
        open_model(tmp_path, "--target").check()


def test_a_forward_that_scales_hidden_states_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "ENTRY_FACTORS", {})
    save_model(tmp_path, tiny_config("granite", embedding_multiplier=12.0))
    with pytest.raises(UserError, match=r"granite .* changes hidden states before the first layer"):
        open_model(tmp_path, "--target").check()


@pytest.mark.case("A4")
@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rope_that_depends_on_the_length_ends_at_the_original_length(kind: str, tmp_path: Path) -> None:
    more = LONGROPE if kind == "longrope" else {}
    tiny_config("llama", **rope(kind, 64, **more)).save_pretrained(tmp_path)
    source = open_model(tmp_path, "--target")
    assert source.max_positions == 64
    assert source.context_note is not None and source.context_note.startswith(f"rope type {kind} changes")


@pytest.mark.parametrize("kind", ["llama3", "linear", "yarn", "default"])
def test_other_ropes_leave_the_context_as_it_is(kind: str, tmp_path: Path) -> None:
    more = {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    tiny_config("llama", **rope(kind, 64, **more)).save_pretrained(tmp_path)
    source = open_model(tmp_path, "--target")
    assert (source.max_positions, source.context_note) == (4 * 64, None)


def test_tensor_names_move_by_their_first_number() -> None:
    name = "model.layers.11.mlp.experts.3.up_proj.weight"
    assert families.layer_number(name) == 11
    assert families.renumbered(name, 9) == "model.layers.2.mlp.experts.3.up_proj.weight"
    assert families.layer_number("model.norm.weight") is None
    assert families.renumbered("lm_head.weight", 9) == "lm_head.weight"
