"""A model folder from anybody: no code of it runs unasked, and it reads no file but its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from pearl_pp.errors import UserError
from pearl_pp.runtime.vocabulary import load_tokenizer
from pearl_pp.stages.source import open_model
from tests.pairs import save, tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tiny_model(), tmp_path / "model")


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def put_code(folder: Path, made: Path) -> None:
    (folder / "own.py").write_text(f"open({str(made)!r}, 'w').close()\nclass Own: ...\n")


@pytest.mark.parametrize("model_type", ["llama", "never-heard-of"])
def test_code_that_comes_with_a_model_does_not_run(model_type: str, folder: Path, tmp_path: Path) -> None:
    put_code(folder, tmp_path / "made")
    auto_map = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}
    change_config(folder, model_type=model_type, auto_map=auto_map)
    try:
        open_model(folder, "--target").check()
    except UserError as error:
        assert "\n" not in str(error)
    assert not (tmp_path / "made").exists()


def test_code_that_comes_with_a_tokenizer_does_not_run(folder: Path, tmp_path: Path) -> None:
    put_code(folder, tmp_path / "made")
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(own))
    with pytest.raises(UserError, match="its tokenizer cannot be read"):
        load_tokenizer(open_model(folder, "--target"))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("elsewhere", ["../other.safetensors", "/tmp/other.safetensors", "a/b.safetensors", "..", ""])
def test_a_checkpoint_names_its_own_files_only(elsewhere: str, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    save_file({}, folder.parent / "other.safetensors")
    index = {"weight_map": {"lm_head.weight": elsewhere}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"is not a file of this folder|cannot be read|is missing"):
        open_model(folder, "--target").check()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickled_weights_are_never_read(name: str, folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(UserError, match=f"no model.safetensors; {name} is not read"):
        open_model(folder, "--target").check()


@pytest.mark.parametrize(
    "content",
    ["", "[]", "null", "{", "[" * 100_000, '{"model_type": 5}', '{"model_type": "llama", "hidden_size": "x"}'],
)
def test_an_odd_config_is_one_line(content: str, folder: Path) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(UserError) as caught:
        open_model(folder, "--target").check()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1300
