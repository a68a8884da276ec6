"""A rank needs memory for its own layers, and for one file of the checkpoint at most while it reads them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parents[2]
MB = 10**6
NUM_SHARDS = 8  # of 50 MB
NUM_RANKS = 4
# Everything that is no weight: KV cache, rotary tables, gloo's buffers and threads, Python objects.
SLACK_BYTES = 15 * MB
CONFIG = LlamaConfig(
    num_hidden_layers=8,
    hidden_size=1024,
    intermediate_size=2688,
    num_attention_heads=8,
    num_key_value_heads=8,
    vocab_size=512,
    max_position_embeddings=64,
    tie_word_embeddings=False,
    dtype=torch.float32,
)


def shapes() -> dict[str, torch.Size]:
    """Names and shapes of all tensors, in the order of the layers."""
    with torch.device("meta"):
        model = LlamaForCausalLM(CONFIG)
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def num_bytes(names: list[str]) -> int:
    return sum(4 * shape.numel() for name, shape in shapes().items() if name in names)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A random Llama of 400 MB in 8 files; their borders are not those of the layers."""
    folder = tmp_path_factory.mktemp("checkpoint")
    CONFIG.save_pretrained(folder)
    files: list[dict[str, torch.Size]] = [{} for _ in range(NUM_SHARDS)]
    total, filled = sum(shape.numel() for shape in shapes().values()), 0
    for name, shape in shapes().items():
        middle = filled + shape.numel() // 2
        files[middle * NUM_SHARDS // total][name] = shape
        filled += shape.numel()
    weight_map = {}
    torch.manual_seed(0)
    for number, tensors in enumerate(files, start=1):
        file = f"model-{number:05}-of-{NUM_SHARDS:05}.safetensors"
        content = {name: torch.randn(shape).mul_(shape[-1] ** -0.5) for name, shape in tensors.items()}
        save_file(content, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.case("M2")
@pytest.mark.skipif(sys.platform != "linux", reason="anonymous memory is read from /proc")
def test_a_rank_takes_its_own_layers_and_at_most_one_file(checkpoint: Path, tmp_path: Path) -> None:
    sizes = [file.stat().st_size for file in checkpoint.glob("*.safetensors")]
    assert len(sizes) == NUM_SHARDS
    assert 380 * MB < sum(sizes) < 420 * MB
    script = str(Path(__file__).with_name("measured_load.py"))
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={NUM_RANKS}"]
    run = subprocess.run(
        [sys.executable, *launch, script, str(checkpoint), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    figures = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(NUM_RANKS)]
    own = own_bytes()
    print(f"\nanonymous memory above what imports took, in MB; {NUM_SHARDS} files of {max(sizes) / MB:.1f} at most")
    for rank, figure in enumerate(figures):
        print(
            f"rank {rank}: own layers {own[rank] / MB:.1f}, peak {figure['peak'] / MB:.1f}, "
            f"after loading {figure['loaded'] / MB:.1f}"
        )
    for rank, figure in enumerate(figures):
        assert figure["peak"] > 0.9 * own[rank], "the layers are in memory of the process, not in the file's pages"
        assert figure["peak"] <= own[rank] + max(sizes) + SLACK_BYTES
    assert all(len(figure["token_ids"]) == 4 for figure in figures)


def own_bytes() -> list[int]:
    """Weights of each rank: two layers, the embedding on the first, norm and head on the last."""
    own: list[list[str]] = [[] for _ in range(NUM_RANKS)]
    for name in shapes():
        layer = int(name.split(".")[2]) if name.startswith("model.layers.") else None
        if layer is not None:
            own[layer * NUM_RANKS // CONFIG.num_hidden_layers].append(name)
        else:
            own[0 if name.startswith("model.embed_tokens") else -1].append(name)
    return [num_bytes(names) for names in own]
