"""`pearl-pp bench retained` as users start it: killed at any moment it goes on, and nothing it started outlives it."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from itertools import product
from pathlib import Path

import psutil
import pytest
import yaml

from tests.integration.commands import MARK, ROOT, command, still_running

pytestmark = pytest.mark.alone

RANKS_ARE_GONE_S = 20.0
EXPERIMENT = {
    "title": "Tiny",
    "num_ranks": 2,
    "rounds": 2,
    "warm_up": 1,
    "options": {"emulate": str(ROOT / "configs" / "profiles" / "even_c8.yaml"), "max_new_tokens": 10},
    "workload": {"name": "tokens", "num_prompts": 2},
    "rows": ["ar", "hop", {"name": "dedicated", "like": "dedicated", "sweep": {"gamma": [4, 8]}}],
    "cases": [{"name": "fast", "target": {"pass_ms": 16}, "draft": {"pass_ms": 2}}],
}
NUM_RUNS = 3 * 2 * 2


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(EXPERIMENT))
    return path


def arguments(experiment: Path, out: Path) -> tuple[str, ...]:
    return ("pearl_pp.cli", "bench", "retained", "--config", str(experiment), "--out", str(out))


def runs(out: Path) -> list[tuple[str, ...]]:
    """What has been recorded, by name; a row has one variant that counts."""
    keys = [json.loads(line)["key"] for line in (out / "results.jsonl").read_text().splitlines()]
    assert {key["phase"] for key in keys} == {"measure"}
    assert len({(key["row"], key["variant"]) for key in keys}) == len({key["row"] for key in keys})
    return [(key["case"], key["row"], key["round"], key["prompt"]) for key in keys]


def num_lines(out: Path) -> int:
    path = out / "results.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def interrupted(experiment: Path, out: Path, after: int, number: signal.Signals) -> int:
    """Starts the command, and sends it a signal some time after it has recorded `after` runs; its exit code."""
    mark = uuid.uuid4().hex
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", MARK: mark}
    with subprocess.Popen(
        [sys.executable, "-m", *arguments(experiment, out)],
        env=environment, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 60
        while num_lines(out) < after and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.5))
        process.send_signal(number)
        exit_code = process.wait(40)
    psutil.wait_procs(still_running(mark), timeout=RANKS_ARE_GONE_S)
    assert not still_running(mark), "ranks outlived the bench"
    return exit_code


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_killed_at_random_moments_it_ends_up_with_the_same_runs(experiment: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert interrupted(experiment, out, random.randrange(3), signal.SIGKILL) == -signal.SIGKILL
    assert interrupted(experiment, out, num_lines(out) + 3, signal.SIGINT) == 130
    assert (out / "table.md").exists(), "what there is is shown"
    assert num_lines(out) < NUM_RUNS
    finished = command(*arguments(experiment, out))
    assert finished.exit_code == 0, finished.stderr
    assert "Emulated: " in finished.stdout and "Every text equals" in finished.stdout
    assert len(runs(out)) == len(set(runs(out))) == NUM_RUNS
    prompts = {prompt for *_, prompt in runs(out)}
    assert len(prompts) == 2
    assert set(runs(out)) == set(product(["fast"], ["ar", "hop", "dedicated"], range(2), prompts))
    for name in ("table.md", "table.csv", "retained.png", "timeline.png"):
        assert (out / name).stat().st_size > 0
    assert len(list((out / "traces").glob("*.json"))) == 3
    experiment.write_text(yaml.safe_dump(EXPERIMENT | {"num_ranks": 3}))
    refused = command(*arguments(experiment, out))
    assert refused.exit_code == 2
    assert refused.errors[0].startswith(f"error: --out {out}: holds results of another experiment")
