"""What a model folder says of itself, and what is found wrong before anything is loaded."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import ViTConfig

from pearl_pp.errors import UserError
from pearl_pp.stages.source import ModelSource, open_model
from tests.unit.stages.tiny import Pipeline, save_model, tiny_config


@pytest.fixture
def folder(llama_dir: Path, tmp_path: Path) -> Path:
    """A copy of the model to spoil."""
    return Path(shutil.copytree(llama_dir, tmp_path / "model"))


def change_tensors(folder: Path, drop: tuple[str, ...] = (), **more: torch.Tensor) -> None:
    file = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(file).items() if name not in drop}
    save_file({**tensors, **more}, file, metadata={"format": "pt"})


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        open_model(folder, "--draft").check()
    message = str(caught.value)
    assert message.startswith(f"--draft {folder}: ") and "\n" not in message
    return message.removeprefix(f"--draft {folder}: ")


def test_a_good_folder(folder: Path) -> None:
    source = open_model(folder, "--target")
    source.check()
    assert (source.num_layers, source.hidden_size, source.vocab_size) == (4, 64, 128)
    assert source.max_positions == 256
    assert source.dtype == torch.float32
    assert not source.tied


@pytest.mark.parametrize("saved", [torch.bfloat16, torch.float16])
def test_the_dtype_is_that_of_the_tensors_not_of_the_config(folder: Path, saved: torch.dtype) -> None:
    change_tensors(folder, **{name: t.to(saved) for name, t in load_file(folder / "model.safetensors").items()})
    assert open_model(folder, "--target").dtype == saved


def test_config_json_is_enough_for_planning(tmp_path: Path) -> None:
    tiny_config("llama", tie_word_embeddings=True, dtype=torch.bfloat16).save_pretrained(tmp_path)
    source = open_model(tmp_path, "--target")
    assert source.tied
    assert source.dtype == torch.bfloat16
    assert source.kv_bytes_per_token(source.dtype) == 4 * 2 * 2 * 16 * 2
    assert "no model.safetensors" in refusal(tmp_path)


@pytest.mark.case("E4")
@pytest.mark.parametrize(
    ("generation", "expected"), [([5, 9], {2, 5, 9}), (7, {2, 7}), (None, {2})], ids=["list", "one", "none"]
)
def test_eos_ids_are_those_of_both_configs(
    folder: Path, generation: int | list[int] | None, expected: set[int]
) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    assert open_model(folder, "--target").eos_token_ids == expected


def test_no_folder_no_config_no_weights(tmp_path: Path, folder: Path) -> None:
    assert refusal(tmp_path / "nowhere") == "no such folder"
    assert refusal(tmp_path) == "no config.json in this folder"
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert refusal(folder) == "no model.safetensors; pytorch_model.bin is not read"


@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "no-such-family"}', "{}"])
def test_a_config_that_is_none(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    assert refusal(folder).startswith("its configs cannot be used (transformers ")


def test_missing_tensors_are_named(folder: Path) -> None:
    change_tensors(folder, drop=("model.layers.3.mlp.up_proj.weight",))
    assert refusal(folder) == "tensors missing from the checkpoint: model.layers.3.mlp.up_proj.weight"
    change_tensors(folder, drop=tuple(f"model.layers.{i}.input_layernorm.weight" for i in range(4)))
    assert refusal(folder).endswith("model.layers.2.input_layernorm.weight and 2 more")


def test_fewer_layers_in_the_config_leave_tensors_unused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    assert refusal(folder).startswith("tensors in the checkpoint but not in the model: model.layers.3.input_lay")


@pytest.mark.case("A2")
def test_unused_tensors_are_an_error_but_for_those_that_transformers_ignores(folder: Path) -> None:
    change_tensors(folder, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    open_model(folder, "--draft").check()
    change_tensors(folder, **{"model.layers.0.self_attn.q_proj.bias": torch.ones(64)})
    assert refusal(folder) == "tensors in the checkpoint but not in the model: model.layers.0.self_attn.q_proj.bias"


def test_a_wrong_shape_is_named(folder: Path) -> None:
    change_tensors(folder, **{"lm_head.weight": torch.ones(120, 64)})
    assert refusal(folder) == (
        "tensors of another shape than the config says: lm_head.weight [120, 64] instead of [128, 64]"
    )


def test_a_missing_or_damaged_shard_is_named(tmp_path: Path) -> None:
    save_model(tmp_path, tiny_config("llama"), shard_size="100KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[2]
    content = shard.read_bytes()
    shard.write_bytes(content[:-10])
    assert refusal(tmp_path).startswith(f"{shard.name} cannot be read: ")
    shard.unlink()
    assert refusal(tmp_path) == f"{shard.name} is missing"


def test_a_source_is_not_changed_by_building_from_it(folder: Path) -> None:
    source: ModelSource = open_model(folder, "--target")
    before = source.config.to_dict()
    Pipeline(source, [(0, 1), (1, 4)], dtype=torch.bfloat16)
    assert source.config.to_dict() == before
    assert len(source.meta_model.model.layers) == 4


def test_no_causal_language_model(tmp_path: Path) -> None:
    ViTConfig().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"--draft .*: vit: Unrecognized configuration class"):
        _ = open_model(tmp_path, "--draft").tied


REMOTE_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OddConfig(LlamaConfig):
    model_type = "odd"

class OddForCausalLM(LlamaForCausalLM):
    config_class = OddConfig
"""


def test_code_in_the_folder_runs_only_when_trusted(
    folder: Path, token_ids: torch.Tensor, llama_logits: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    (folder / "odd.py").write_text(REMOTE_CODE)
    config = json.loads((folder / "config.json").read_text())
    classes = {"AutoConfig": "odd.OddConfig", "AutoModelForCausalLM": "odd.OddForCausalLM"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "odd", "auto_map": classes}))
    assert "--trust-remote-code" in refusal(folder)
    source = open_model(folder, "--target", trust_remote_code=True)
    source.check()
    logits = Pipeline(source, [(0, 1), (1, 4)]).run(token_ids, 0)
    torch.testing.assert_close(logits, llama_logits, rtol=0, atol=1e-5)
