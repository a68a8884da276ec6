"""What has to hold on a machine with GPUs, and cannot be tried on one without. Each check yields table rows.

On the CPU the same checks can be rehearsed: then they only show that they run.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from pearl_pp import builtin
from pearl_pp.stages.source import open_model
from pearl_pp.stages.stage import build_stage
from tests.contract import exchanges
from tests.gpu.links import measure_links
from tests.rank_pool import RankPool

ROOT = Path(__file__).resolve().parents[2]
MAX_RANKS = 4
DTYPES = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest difference of two logits allowed between devices, as a part of the largest logit."""


class Row(NamedTuple):
    name: str
    status: Literal["pass", "fail", "skipped"]
    detail: str


def versions(device: str) -> Iterator[Row]:
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "none"
    libraries = f"torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}"
    detail = f"{libraries}, Python {sys.version.split()[0]}"
    yield Row("versions", "pass", detail)
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        yield Row(f"cuda:{index}", "pass", f"{card.name}, {card.total_memory / 2**30:.0f} GiB")


def planes(device: str) -> Iterator[tuple[str, Callable[[], RankPool]]]:
    """The tensor planes that this machine can have: their names, and how to start ranks on them."""
    yield "gloo, staged", lambda: RankPool(2, device, use_nccl=False)
    num_ranks = min(torch.cuda.device_count(), MAX_RANKS)
    if device == "cuda" and num_ranks >= 2:
        yield "nccl", lambda: RankPool(num_ranks, device, use_nccl=True)


def links(device: str) -> Iterator[Row]:
    """Latency and bandwidth of every ordered pair and channel."""
    for name, start in planes(device):
        with closing(start()) as pool:
            for (src, dst), channels in pool.run(measure_links)[0].items():
                yield Row(f"link {src} -> {dst}, {name}", "pass", "; ".join(map(str, channels)))
    if device == "cpu" or torch.cuda.device_count() < 2:
        yield Row("links, nccl", "skipped", "NCCL needs two cards")


def messages(device: str) -> Iterator[Row]:
    """Pinned staging and NCCL carry every shape and dtype unchanged, and random programs finish."""
    shapes = [(5, 7), (3,), (), (0, 8), (2, 3, 4, 5), (64, 8192)]
    for name, start in planes(device):
        with closing(start()) as pool:
            wrong = pool.run(exchanges.shapes_and_dtypes, shapes)[0]
            yield _row(f"shapes and dtypes, {name}", not wrong, f"wrong: {wrong or 'none'}")
            wrong = any(pool.run(exchanges.both_directions, 4_000_000))
            yield _row(f"both directions at once, {name}", not wrong, "16 MB each way")
            wrong = any(any(pool.run(exchanges.random_program, seed, 200)) for seed in range(5))
            yield _row(f"random programs, {name}", not wrong, "5 of 200 messages")


def stages(device: str) -> Iterator[Row]:
    """Two stages on the device give the logits of two stages on the CPU, also after a rollback."""
    for dtype, limit in DTYPES.items():
        expected, got = (_logits(place, dtype).float() for place in ("cpu", device))
        difference = ((got - expected).abs().max() / expected.abs().max()).item()
        name = f"stages against the CPU, {str(dtype).removeprefix('torch.')}"
        yield _row(name, difference <= limit, f"largest difference {difference:.1e}, allowed {limit:.0e}")


def _logits(device: str, dtype: torch.dtype) -> torch.Tensor:
    """Logits [12, vocab] of the embedded target: a prompt, a feed, a rollback by 3, another feed."""
    source = open_model(builtin.TARGET_DIR, "--target")
    middle = source.num_layers // 2
    halves = [
        build_stage(source, start, end, dtype=dtype, device=torch.device(device), max_len=64)
        for start, end in ((0, middle), (middle, source.num_layers))
    ]
    ids = torch.arange(30) * 7 % source.vocab_size
    rows = []
    for start, end, position in ((0, 12, 0), (12, 17, 12), (20, 24, 14)):
        hidden = halves[0].run(ids[start:end], position)
        rows.append(halves[1].run(hidden, position, num_logits=4).cpu())
    return torch.cat(rows)


def whole_runs(device: str) -> Iterator[Row]:
    """The main job on the device gives the ids of plain decoding on the CPU (fp32, greedy)."""
    expected = _run("cpu", 1, "--strategy", "ar")
    rank_counts = {MAX_RANKS} | ({torch.cuda.device_count()} - {0, 1})
    for num_ranks in sorted(count for count in rank_counts if count <= 8):
        cards = min(num_ranks, torch.cuda.device_count())
        got = _run(device, num_ranks, "--strategy", "pearl")
        same = got == expected
        detail = f"{num_ranks} ranks on {cards} cards, {sum(map(len, expected))} ids of {len(expected)} prompts"
        yield _row(f"whole run, {num_ranks} ranks", same, detail if same else f"{detail}: ids differ")


def _run(device: str, num_ranks: int, *options: str) -> list[list[int]]:
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks), "-m"]
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        command = [sys.executable, "-m", *launcher, "pearl_pp.run", *options, "--device", device]
        command += ["--dtype", "float32", "--max-new-tokens", "48", "--quiet", "--json", str(record)]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
        if run.returncode:
            raise RuntimeError(f"exit code {run.returncode}: {run.stderr.strip()[-300:]}")
        return [request["token_ids"] for request in json.loads(record.read_text())["requests"]]


def _row(name: str, passed: bool, detail: str) -> Row:
    return Row(name, "pass" if passed else "fail", detail)


CHECKS: list[Callable[[str], Iterator[Row]]] = [versions, links, messages, stages, whole_runs]


def rows_of(check: Callable[[str], Iterator[Row]], device: str) -> list[Row]:
    """The rows of a check; an error becomes a row that failed, and the other checks go on."""
    rows: list[Row] = []
    try:
        rows.extend(check(device))
    except Exception as error:
        text = str(error).splitlines() or [""]
        rows.append(Row(check.__name__, "fail", f"{type(error).__name__}: {text[0]}"))
    return rows
