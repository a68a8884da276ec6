"""A stage reads its own tensors and no others."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers.utils import logging

from pearl_pp.stages import checkpoint
from pearl_pp.stages.source import open_model
from pearl_pp.stages.stage import build_stage
from tests.unit.stages.tiny import Pipeline, cut, full_logits, save_model, tiny_config, worst_difference


@pytest.mark.parametrize("tied", [False, True])
def test_each_tensor_is_read_once_by_the_stages_that_need_it(
    tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, tiny_config("llama", tie_word_embeddings=tied))
    source = open_model(tmp_path, "--target")
    reads: list[str] = []
    read = checkpoint.StoredTensor.read
    monkeypatch.setattr(checkpoint.StoredTensor, "read", lambda self: reads.append(self.name) or read(self))
    source.check()
    assert reads == []
    names = set(source.tensors)
    in_layers = {name for name in names if ".layers." in name}
    expected = {
        0: {"model.embed_tokens.weight"},
        1: set(),
        2: {"model.norm.weight", "model.embed_tokens.weight" if tied else "lm_head.weight"},
    }
    for number, (start, end) in enumerate(cut(4, 3)):
        reads.clear()
        build_stage(source, start, end, dtype=torch.float32, device="cpu", max_len=16)
        layers = {name for name in in_layers if start <= int(name.split(".")[2]) < end}
        assert sorted(reads) == sorted(layers | expected[number])


def test_a_stage_needs_only_its_own_shards(tmp_path: Path, token_ids: torch.Tensor) -> None:
    expected = full_logits(save_model(tmp_path, tiny_config("llama"), shard_size="60KB"), token_ids)
    source = open_model(tmp_path, "--target")
    source.check()
    pipeline = Pipeline(source, cut(4, 4))
    assert worst_difference(pipeline, expected, token_ids) <= 1e-5
    for file in sorted({tensor.file for tensor in source.tensors.values()}):
        with safe_open(file, framework="pt") as handle:
            if not any(".layers.2." in name for name in handle.keys()):  # noqa: SIM118
                file.unlink()
    build_stage(source, 2, 3, dtype=torch.float32, device="cpu", max_len=16)
    with pytest.raises(Exception, match="No such file"):
        build_stage(source, 0, 1, dtype=torch.float32, device="cpu", max_len=16)


def test_a_mixtures_experts_are_read_layer_by_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path, tiny_config("mixtral", num_local_experts=4))
    source = open_model(tmp_path, "--target")
    reads: list[str] = []
    read = checkpoint.StoredTensor.read
    monkeypatch.setattr(checkpoint.StoredTensor, "read", lambda self: reads.append(self.name) or read(self))
    build_stage(source, 1, 2, dtype=torch.float32, device="cpu", max_len=16)
    assert sorted(reads) == sorted(name for name in source.tensors if ".layers.1." in name)


def test_progress_ends_at_the_bytes_of_the_stage(llama_dir: Path) -> None:
    calls: list[tuple[int, int]] = []
    source = open_model(llama_dir, "--target")
    stage = build_stage(
        source, 0, 2, dtype=torch.bfloat16, device="cpu", max_len=16, progress=lambda *a: calls.append(a)
    )
    assert calls == sorted(calls)
    assert calls[-1] == (stage.weight_bytes, stage.weight_bytes)


def test_weights_do_not_live_in_the_file(llama_dir: Path, token_ids: torch.Tensor, tmp_path: Path) -> None:
    import shutil

    folder = Path(shutil.copytree(llama_dir, tmp_path / "model"))
    stage = build_stage(open_model(folder, "--target"), 0, 4, dtype=torch.float32, device="cpu", max_len=32)
    before = stage.run(token_ids, 0, num_logits=32)
    file = folder / "model.safetensors"
    file.write_bytes(bytes(file.stat().st_size))
    assert torch.equal(stage.run(token_ids, 0, num_logits=32), before)


@pytest.mark.filterwarnings("ignore:Cannot enable progress bars")
def test_loading_is_silent(llama_dir: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "_tqdm_active", True)
    source = open_model(llama_dir, "--target")
    source.check()
    build_stage(source, 1, 2, dtype=torch.float32, device="cpu", max_len=16)
    assert logging.is_progress_bar_enabled()
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


MEASURE = """
import re, sys
from pathlib import Path
import torch
from pearl_pp.stages.source import open_model
from pearl_pp.stages.stage import build_stage

def memory(what):
    return int(re.search(what + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

source = open_model(sys.argv[1], "--target")
source.check()
build_stage(source, 0, 1, dtype=torch.float32, device="cpu", max_len=16)  # libraries, thread pools
for dtype in (torch.bfloat16, torch.float32):
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = memory("VmRSS")
    stage = build_stage(source, 2, 4, dtype=dtype, device="cpu", max_len=16)
    print(stage.weight_bytes, memory("VmHWM") - before)
    del stage
"""


@pytest.mark.case("M2")
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's peak memory")
def test_peak_memory_is_the_own_layers_and_a_shard(tmp_path: Path) -> None:
    config = tiny_config("llama", num_hidden_layers=8, hidden_size=512, intermediate_size=1536, vocab_size=64)
    save_model(tmp_path, config, shard_size="12MB")
    result = subprocess.run([sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for line in result.stdout.splitlines():
        own, grown = (int(number) for number in line.split())
        assert own >= 12_000_000
        assert grown <= own + 12_000_000
