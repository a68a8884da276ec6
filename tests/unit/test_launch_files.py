"""The templates in launch/: shell that parses, and Slurm's that start what they say, with a stand-in for Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "launch"
SCRIPTS = sorted(path for path in LAUNCH.iterdir() if path.suffix in (".sh", ".sbatch"))

# What a rank 0 would write, and the command that Slurm was to start on every node.
SRUN = """#!/bin/sh
printf '%s\\n' "$*" >>"$LOG"
for argument; do
    case $previous in --json) printf '{"totals": {"decode_tokens_per_s": 12.5}}' >"$argument" ;; esac
    previous=$argument
done
"""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_parses(script: Path) -> None:
    finished = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")


class Slurm:
    """A folder that jobs are submitted from, and programs in the place of Slurm's."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        programs = {"srun": SRUN, "scontrol": "#!/bin/sh\necho node-7\necho node-8\n"}
        (folder / "bin").mkdir()
        (folder / ".venv" / "bin").mkdir(parents=True)
        (folder / ".venv" / "bin" / "python").symlink_to(sys.executable)
        (folder / "launch").symlink_to(LAUNCH)
        for name, text in programs.items():
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        self._environment = os.environ | {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "LOG": str(self._log),
            "SLURM_SUBMIT_DIR": str(folder),
            "SLURM_JOB_NODELIST": "node-[7-8]",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_GPUS_ON_NODE": "4",
            "SLURM_JOB_ID": "123456",
        }

    def run(self, template: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(LAUNCH / template), *arguments],
            env=self._environment | settings, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip

    @property
    def started(self) -> list[str]:
        return self._log.read_text().splitlines()


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


def test_a_job_starts_torchrun_on_every_node(slurm: Slurm) -> None:
    finished = slurm.run("slurm.sbatch", "--prompt", "x")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert slurm.started == [
        ".venv/bin/python -m torch.distributed.run --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-id 123456 "
        "--rdzv-endpoint node-7:23456 -m pearl_pp.run --prompt x"
    ]


def test_the_bench_is_started_once(slurm: Slurm) -> None:
    finished = slurm.run("slurm_bench.sbatch", "--config", "a.yaml", "--out", "o")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert slurm.started == [".venv/bin/python -m pearl_pp.cli bench retained --config a.yaml --out o"]


def test_rows_run_one_after_another_with_the_same_options(slurm: Slurm, tmp_path: Path) -> None:
    out = tmp_path / "rows"
    finished = slurm.run("slurm_rows.sbatch", "--max-new-tokens", "64", OUT=str(out))
    assert (finished.returncode, finished.stderr) == (0, "")
    tails = [line.partition("-m pearl_pp.run ")[2] for line in slurm.started]
    rows = {"ar": "--strategy ar", "sd": "--strategy sd"}
    rows |= {name: f"--placement {name}" for name in ("dedicated", "single", "hop", "pipelined", "auto")}
    assert tails == [f"--max-new-tokens 64 {options} --json {out / name}.json" for name, options in rows.items()]
    assert "single       12.50 tokens/s" in finished.stdout
    assert all(json.loads((out / f"{name}.json").read_text()) for name in rows)


def test_rows_of_ones_own(slurm: Slurm, tmp_path: Path) -> None:
    finished = slurm.run("slurm_rows.sbatch", OUT=str(tmp_path / "o"), ROWS="a=--gamma 3 --placement hop;b=--gamma 5")
    assert finished.returncode == 0
    assert [line.split(" --json")[0].partition("pearl_pp.run ")[2] for line in slurm.started] == [
        "--gamma 3 --placement hop",
        "--gamma 5",
    ]


def test_rows_need_a_place_for_their_records(slurm: Slurm) -> None:
    finished = slurm.run("slurm_rows.sbatch")
    assert finished.returncode != 0
    assert "say where the records go" in finished.stderr
