"""A run of real ranks in which something goes wrong, and what became of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.integration.commands import MARK, ROOT, still_running

TIMEOUT_S = 8.0
NUM_PROMPTS = 60
NUM_TOKENS = 24
FINISHED_BEFORE = 2

MODULE = "tests.faults.faulty_rank"
LAUNCH = """
import sys
from pearl_pp.console import launching
sys.exit(launching.launch(int(sys.argv[1]), sys.argv[3:], sys.argv[2]))
"""
LAUNCHERS: dict[str, Callable[[int], list[str]]] = {
    "pearl-pp run": lambda ranks: ["-c", LAUNCH, str(ranks), MODULE],
    "torchrun": lambda ranks: [
        "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m", MODULE,
    ],
    "deepspeed": lambda ranks: deepspeed(ranks, free_port()),
}  # fmt: skip


def deepspeed(num_ranks: int, port: int) -> list[str]:
    return [
        "-m", "deepspeed.launcher.runner", "--num_gpus", str(num_ranks), "--master_addr", "127.0.0.1",
        "--master_port", str(port), "--module", MODULE,
    ]  # fmt: skip


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@dataclass(frozen=True)
class Outcome:
    """What a run left behind.

    Args:
        lines: what was said on stderr (deepspeed: and stdout), each line with the seconds from the fault to it.
        ended_s: from the fault (before one: from the start) to the end of the last process, seconds.
        finished: the requests in the record. num_before: how many of them were there when the fault was let happen.
        left_running: processes that outlived the launcher.
    """

    exit_code: int
    lines: list[tuple[float, str]]
    ended_s: float
    finished: list[dict]
    num_before: int
    left_running: int
    port_is_free: bool

    @property
    def stderr(self) -> str:
        return "".join(line for _, line in self.lines)

    @property
    def errors(self) -> list[str]:
        return [line.rstrip("\n") for _, line in self.lines if line.startswith("error")]

    def told_s(self, text: str) -> float | None:
        """From the fault to the first line with `text` in it, seconds; None: none came, or no text."""
        return next((seconds for seconds, line in self.lines if text and text in line), None)


class Scene:
    """Starts a run whose rank `rank` does `what`, some slots after its first requests are on disk."""

    def __init__(
        self,
        folder: Path,
        what: str,
        rank: int,
        after: int = 0,
        options: Sequence[str] = (),
        launcher: str | Sequence[str] = "pearl-pp run",
        num_ranks: int = 2,
        num_prompts: int = NUM_PROMPTS,
    ) -> None:
        self.folder = folder
        self.record = folder / "record.json"
        self._mark = uuid.uuid4().hex
        self._started = time.time()
        prompts = folder / "prompts.txt"
        prompts.write_text("".join(f"def function_{i}(self):\n" for i in range(num_prompts)))
        launched = LAUNCHERS[launcher](num_ranks) if isinstance(launcher, str) else launcher
        fault = json.dumps({"what": what, "rank": rank, "after": after})
        own = {"FAULT": fault, "FAULT_FOLDER": str(folder), MARK: self._mark}
        logs_on_stdout = launcher == "deepspeed"
        self.process = subprocess.Popen(
            [
                sys.executable, *launched, "--prompts", str(prompts), "--json", str(self.record),
                "--max-new-tokens", str(NUM_TOKENS), "--gamma", "4", "--timeout", f"{TIMEOUT_S:g}", "--quiet",
                *options,
            ],
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | own,
            cwd="/", stdin=subprocess.DEVNULL, text=True, start_new_session=True,
            stdout=subprocess.PIPE if logs_on_stdout else subprocess.DEVNULL,
            stderr=subprocess.STDOUT if logs_on_stdout else subprocess.PIPE,
        )  # fmt: skip
        self._num_before = 0
        self._lines: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr or self.process.stdout or ():
            self._lines.append((time.time(), line))

    def arm(self) -> None:
        """Once the first requests are on disk, let the fault happen; returns when it has, or the run is over."""
        deadline = time.monotonic() + 90
        while len(self.finished()) < FINISHED_BEFORE and self.process.poll() is None:
            assert time.monotonic() < deadline, "the run does not get going"
            time.sleep(0.05)
        self._num_before = len(self.finished())
        (self.folder / "armed").touch()
        while not (self.folder / "fired").exists() and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)

    def finished(self) -> list[dict]:
        """The requests on disk: what is there can be read at any time."""
        return json.loads(self.record.read_text())["requests"] if self.record.exists() else []

    def ranks(self) -> list[psutil.Process]:
        """The processes of the ranks; the launchers above them are left out."""
        started = psutil.Process(self.process.pid).children(recursive=True)
        return [process for process in started if "RANK" in process.environ()]

    def interrupt(self) -> None:
        """Ctrl-C: the terminal sends it to the launcher and to every rank."""
        os.killpg(self.process.pid, signal.SIGINT)

    def outcome(self, within_s: float = 60.0) -> Outcome:
        """Wait for the end; kills what is left."""
        try:
            exit_code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            exit_code = -1
        ended = time.time()
        left = still_running(self._mark)
        for process in left:
            process.kill()
        self._reader.join(10)
        fired = self.folder / "fired"
        since = float(fired.read_text() or 0) if fired.exists() else self._started
        lines = [(when - since, line) for when, line in self._lines]
        finished = self.finished()
        return Outcome(exit_code, lines, ended - since, finished, self._num_before, len(left), self._port_is_free())

    def _port_is_free(self) -> bool:
        port = int((self.folder / "port-0").read_text())
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            return False
        return True
