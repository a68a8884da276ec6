"""The launcher: whose exit code it returns, and that nothing outlives it, whatever state it is in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from pearl_pp.console import launching
from pearl_pp.errors import UserError

pytestmark = pytest.mark.alone

ROOT = Path(__file__).resolve().parents[3]

# A rank: what it does is in the argument of its number; rank 0 holds the socket at which all meet.
RANK = """
import os, signal, socket, sys, time
rank = int(os.environ["RANK"])
listener = socket.socket(fileno=int(os.environ["PEARL_PP_LISTEN_FD"])) if rank == 0 else None
assert listener is None or listener.getsockname() == ("127.0.0.1", int(os.environ["MASTER_PORT"]))
with open(os.path.join(sys.argv[1], f"{rank}.pid"), "w") as file:
    file.write(str(os.getpid()))
exec(sys.argv[2 + rank])
"""
SLEEP = "time.sleep(60)"
IS_KILLED = "time.sleep(0.5); os.kill(os.getpid(), signal.SIGKILL)"
IS_STOPPED = "os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)"
LEAVES_WITH_THE_STOPPED = (
    "time.sleep(1.5); from pearl_pp.console import leaving; leaving.end_stopped_ranks(); time.sleep(0.2); os._exit(4)"
)
IS_DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "a_rank.py").write_text(RANK)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    return tmp_path


def launch(folder: Path, *bodies: str) -> int:
    return launching.launch(len(bodies), [str(folder), *bodies], "a_rank")


def all_gone(folder: Path, num_ranks: int) -> bool:
    return no_longer_there([int((folder / f"{rank}.pid").read_text() or 0) for rank in range(num_ranks)])


def no_longer_there(pids: Sequence[int]) -> bool:
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.case("P4")
@pytest.mark.parametrize(
    ("bodies", "expected", "said"),
    [
        (("pass", "pass"), 0, ""),
        ((SLEEP, "time.sleep(0.5); sys.exit(2)"), 2, ""),
        (("time.sleep(1.5); sys.exit(1)", IS_KILLED), 137, "rank 1 was ended by SIGKILL"),
        ((SLEEP, IS_STOPPED, "time.sleep(1.5); sys.exit(3)"), 3, ""),
        ((SLEEP, "time.sleep(0.5); os.kill(os.getpid(), signal.SIGTERM)"), 143, "rank 1 was ended by SIGTERM"),
        ((SLEEP, "time.sleep(0.5); os.kill(os.getpid(), 40)"), 168, "rank 1 was ended by signal 40\n"),
        ((LEAVES_WITH_THE_STOPPED, IS_STOPPED), 4, ""),
    ],
)  # fmt: skip
def test_the_first_rank_to_fail_ends_all(
    bodies: tuple[str, ...], expected: int, said: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    assert launch(folder, *bodies) == expected
    assert time.monotonic() - started < 5, "a stopped rank is woken, not waited for"
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"error: {said}" if said else "")
    assert shown.err.count("\n") == bool(said)
    assert all_gone(folder, len(bodies))


def test_more_ranks_than_can_be_started_are_one_line_and_leave_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def start_two(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        if len(started) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(start(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(launching.subprocess, "Popen", start_two)
    with pytest.raises(UserError) as caught:
        launch(folder, SLEEP, SLEEP, SLEEP, SLEEP)
    assert str(caught.value) == "-n 4: rank 2 cannot be started on this machine: Resource temporarily unavailable"
    assert [rank.poll() for rank in started] == [-signal.SIGTERM] * 2


def test_a_rank_that_does_not_listen_is_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_GRACE_S", 0.5)
    assert launch(folder, IS_DEAF, "time.sleep(1.5); sys.exit(1)") == 1
    assert all_gone(folder, 2)


@pytest.mark.case("P4")
@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)  # fmt: skip
def test_a_launcher_that_is_asked_to_end_takes_its_ranks_along(
    number: signal.Signals, expected: int, folder: Path
) -> None:
    code = "import sys\nfrom pearl_pp.console import launching\n"
    code += "print(launching.launch(2, sys.argv[1:], 'a_rank'), flush=True)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder), IS_STOPPED, SLEEP], stdout=subprocess.PIPE, text=True
    )
    while len(list(folder.glob("*.pid"))) < 2:
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(number)
    assert process.communicate(timeout=10)[0] == f"{expected}\n"
    assert all_gone(folder, 2)


def test_the_launcher_does_not_load_torch() -> None:
    code = "import sys, pearl_pp.cli; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "False\n"


@pytest.mark.case("P4")
def test_a_rank_that_leaves_with_a_failure_ends_the_stopped_ranks_of_its_job_alone(tmp_path: Path) -> None:
    """Whoever started them: a launcher would wait half a minute for a stopped rank."""
    stopped = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); input()"]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "12345", "RANK": "1"}
    ours, theirs = (
        subprocess.Popen(stopped, env=os.environ | place | {"MASTER_PORT": port}, stdin=subprocess.PIPE)
        for port in ("12345", "54321")
    )
    try:
        while not all(psutil.Process(p.pid).status() == psutil.STATUS_STOPPED for p in (ours, theirs)):
            time.sleep(0.02)
        leaves = [sys.executable, "-c", "from pearl_pp.console import leaving; leaving.leave(1)"]
        done = subprocess.run(leaves, env=os.environ | place | {"RANK": "0"}, cwd=ROOT, check=False)
        assert done.returncode == 1
        assert ours.wait(timeout=5) == -signal.SIGTERM
        assert psutil.Process(theirs.pid).status() == psutil.STATUS_STOPPED
    finally:
        for process in (ours, theirs):
            process.kill()
            process.wait()


LAUNCHES_AND_GOES = """
import os, subprocess, sys
place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(os.getpid()), "PEARL_PP_JOB": "a job"}
for rank, body in enumerate(sys.argv[1:]):
    command = [sys.executable, "-c", body]
    process = subprocess.Popen(command, env=os.environ | place | {"RANK": str(rank)}, stdout=subprocess.PIPE)
    process.stdout.read(1)
    print(process.pid, flush=True)
"""
WATCHES = """
import os, time
from pearl_pp.console import leaving
leaving.BETWEEN_LOOKS_AT_LAUNCHER = 0.3
leaving.watch_launcher()
os.write(1, b"+")
time.sleep(60)
"""
STOPS = """
import os, signal
os.write(1, b"+")
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.case("P4")
@pytest.mark.parametrize("bodies", [(STOPS, WATCHES, WATCHES), (WATCHES, WATCHES, STOPS)])
def test_a_launcher_that_has_gone_is_told_once_and_stopped_ranks_go_too(bodies: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", LAUNCHES_AND_GOES, *bodies]
    launcher = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    pids = [int(launcher.stdout.readline()) for _ in bodies]
    try:
        assert launcher.communicate(timeout=20)[1] == "error: the launcher of this rank has gone\n"
        assert no_longer_there(pids)
    finally:
        for pid in filter(psutil.pid_exists, pids):
            os.kill(pid, signal.SIGKILL)
