"""Runs of synthetic pairs: the command line and the engine take them as they take folders."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import torch

from pearl_pp import run
from pearl_pp.config import RunConfig
from pearl_pp.errors import UserError
from pearl_pp.runtime.byte_tokenizer import ByteTokenizer
from pearl_pp.runtime.intake import make_request
from pearl_pp.runtime.loading import open_pair
from pearl_pp.runtime.request import Prompt
from tests.inprocess import Cluster
from tests.unit.runtime.word_models import save_with_words

SHAPE = """\
name: small
hidden_size: 64
intermediate_size: 96
num_layers: 6
num_heads: 4
num_kv_heads: 2
vocab_size: 256
max_positions: 512
eps: 0.08
draft: {num_layers: 2}
"""


@pytest.fixture
def small(tmp_path: Path) -> str:
    (tmp_path / "small.yaml").write_text(SHAPE)
    return f"synthetic:{tmp_path / 'small.yaml'}"


def refusal(target: str, draft: str | None, **options: str) -> str:
    with pytest.raises(UserError) as caught:
        open_pair(RunConfig(target=target, draft=draft, **options), 2, torch.device("cpu"))
    return str(caught.value)


def test_ranks_write_what_one_process_writes(small: str) -> None:
    alone = Cluster(small, None, 1, strategy="ar").run("Once", max_new_tokens=80)
    hop = Cluster(small, small, 4, placement="hop", gamma=3).run("Once", max_new_tokens=80)
    sd = Cluster(small, small, 2, strategy="sd", gamma=3).run("Once", max_new_tokens=80)
    assert alone.ids == hop.ids == sd.ids
    assert len(set(alone.ids[40:])) > 12, "the text loops"
    assert 0.5 < hop.metrics["acceptance_rate"] < 1.0


def test_text_goes_in_as_bytes_and_comes_out_as_ids(small: str) -> None:
    cluster = Cluster(small, None, 2, strategy="ar")
    text, ids = cluster.run("né", max_new_tokens=30), cluster.run([110, 195, 169], max_new_tokens=30)
    assert text.ids == ids.ids
    assert text.text == " ".join(map(str, text.ids))
    assert ByteTokenizer(100)("né") == {"input_ids": [10, 95, 69]}


def test_a_run_from_the_command_line(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    models = ["--target", small, "--draft", small, "--device", "cpu"]
    assert run.main([*models, "--prompt", "a b", "--max-new-tokens", "8", "--max-model-len", "64"]) == 0
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("target    synthetic llama, 6 layers, hidden 64")
    assert "note      small: random weights, agreement not measured (eps 0.08)" in lines
    answer = lines[lines.index("[1/1] a b") + 1]
    assert len(answer.split()) == 8 and all(0 <= int(token_id) < 256 for token_id in answer.split())


def test_the_draft_must_be_its_targets(small: str, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(SHAPE.replace("eps: 0.08", "eps: 0.2"))
    folder = str(save_with_words(tmp_path / "folder"))
    reason = f"is the first layers of its own target: give --target synthetic:{other}"
    assert refusal(small, f"synthetic:{other}") == f"--draft {other}: {reason}"
    assert refusal(folder, f"synthetic:{other}") == f"--draft {other}: {reason}"
    assert refusal(small, folder).startswith(f"--draft {folder}: no tokenizers to compare")


def test_ranks_with_different_weights_have_different_fingerprints(small: str, tmp_path: Path) -> None:
    def fingerprint() -> object:
        return open_pair(RunConfig(target=small, strategy="ar"), 2, torch.device("cpu")).header()["target"]

    before = fingerprint()
    assert fingerprint() == before
    (tmp_path / "small.yaml").write_text(SHAPE + "seed: 1\n")
    assert fingerprint() != before


def test_mistakes_are_one_line(small: str, tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    assert refusal(f"synthetic:{missing}", None, strategy="ar") == f"--target {missing}: no such file"
    unknown = refusal("synthetic:cpu_smal", None, strategy="ar")
    assert unknown == "--target synthetic:cpu_smal: no such shape; did you mean cpu_small?"
    pair = open_pair(RunConfig(target=small, strategy="ar"), 2, torch.device("cpu"))
    with pytest.raises(UserError, match=r"^--chat: the tokenizer of .*small.yaml has no chat template"):
        make_request(Prompt(text="a", chat=True), pair)
