"""Commands in processes of their own, as users type them; nothing that they start may outlive them."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
MARK = "PEARL_PP_TEST_RUN"


@dataclass(frozen=True)
class Finished:
    """A command that has ended, with every process it started."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def errors(self) -> list[str]:
        return [line for line in self.stderr.splitlines() if line.startswith("error")]


def command(*arguments: str, timeout_s: float = 110) -> Finished:
    """Runs `python -m <arguments>` from a folder that is not the project's."""
    mark = uuid.uuid4().hex
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", MARK: mark}
    run = subprocess.run(
        [sys.executable, "-m", *arguments],
        env=environment, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s,
    )  # fmt: skip
    assert not still_running(mark), "processes were left behind"
    return Finished(run.returncode, run.stdout, run.stderr)


def still_running(mark: str) -> list[psutil.Process]:
    def is_ours(process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == mark
        except (psutil.Error, OSError):
            return False

    _, alive = psutil.wait_procs([p for p in psutil.process_iter() if is_ours(p)], timeout=2)
    return alive


def torchrun(num_ranks: int, *arguments: str) -> Finished:
    return command("torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}", *arguments)


def pearl_pp_run(num_ranks: int, *arguments: str, timeout_s: float = 110) -> Finished:
    return command("pearl_pp.cli", "run", "-n", str(num_ranks), *arguments, timeout_s=timeout_s)
