"""Who speaks when a run ends badly, and that every process gets out."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NoReturn

import pytest

from pearl_pp import run
from pearl_pp.console import leaving


def in_a_process(code: str, *, wait_for: str = "") -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if wait_for:
        assert process.stdout.readline().strip() == wait_for
    return process


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that a rank waited before it spoke."""
    seconds: list[float] = []
    monkeypatch.setattr(leaving.time, "sleep", seconds.append)
    return seconds


def test_other_ranks_wait_for_rank_0_to_say_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], slept: list[float]
) -> None:
    assert run.main(["--gamma", "0"]) == 2
    assert slept == []
    monkeypatch.setenv("RANK", "3")
    capsys.readouterr()
    assert run.main(["--gamma", "0"]) == 2
    assert slept == [leaving.BEHIND_RANK_0]
    # Alive after the wait: rank 0 did not have this mistake, so it must not be lost.
    assert capsys.readouterr().err.startswith("error: rank 3: --gamma 0: ")


def test_the_rank_that_failed_speaks_before_the_ranks_that_miss_it(
    make_factory: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    slept: list[float],
) -> None:
    from pearl_pp.transport.base import Channel, PeerLost

    lost = RuntimeError("wrapped")
    lost.__cause__ = PeerLost(0, 2, Channel.CONTROL, "connection reset")
    assert run.main(["-p", "a"], make_factory(fault=lost)) == 1
    monkeypatch.setenv("RANK", "2")

    def broken(*_: object) -> Any:
        raise ValueError("the first error")

    assert run.main([], broken) == 1
    of_peer, of_rank_2 = slept
    assert of_rank_2 < of_peer
    assert "error: rank 2 failed\n" in capsys.readouterr().err


@pytest.mark.parametrize(("num_alive", "is_silent"), [(3, False), (2, True)])
def test_a_rank_is_silent_where_another_one_has_left_already(
    num_alive: int, is_silent: bool, monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    """Its launcher may not have looked yet: deepspeed's does so once a second."""
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(os.getpid()), "WORLD_SIZE": "3"}
    for name, value in {**job, "RANK": "0", "LOCAL_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    code = "print(flush=True); input()"
    with ExitStack() as started:
        for rank in range(1, num_alive):
            other = subprocess.Popen(
                [sys.executable, "-c", code],
                env={**os.environ, "RANK": str(rank)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            started.callback(other.communicate)
            assert other.stdout is not None
            other.stdout.readline()
        leaving.report_failure(ValueError("odd"), 0)
    assert slept == [0.0, leaving.BEHIND_CAUSE] if is_silent else slept == [0.0]


def test_where_other_processes_cannot_be_seen_none_has_left(
    monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    for name, value in {"MASTER_ADDR": "a", "MASTER_PORT": "1", "RANK": "0", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(leaving, "_environment", lambda _: {})
    leaving.report_failure(ValueError("odd"), 0)
    assert slept == [0.0]


def test_a_rank_that_misses_a_peer_and_sees_another_leave_waits_once(
    monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    from pearl_pp.transport.base import Channel, PeerLost

    monkeypatch.setattr(leaving, "_has_another_left", lambda: True)
    leaving.report_failure(PeerLost(0, 2, Channel.CONTROL, "connection reset"), 0)
    assert sum(slept) == leaving.BEHIND_CAUSE


def test_only_rank_0_writes_to_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert run.main([], full) == 2
    assert capsys.readouterr().err == "error: standard output: cannot be written: No space left on device\n"
    monkeypatch.setenv("RANK", "1")
    assert run.main([], full) == 1
    assert capsys.readouterr().err.startswith("error: rank 1 failed\n")


@pytest.mark.case("P4")
@pytest.mark.parametrize(("rank", "gamma"), [("0", "4"), ("2", "0")])
def test_ctrl_c_in_the_silence_before_a_rank_speaks_is_quiet(
    rank: str,
    gamma: str,
    make_factory: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from pearl_pp.transport.base import Channel, PeerLost

    def interrupt(_: float) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(leaving.time, "sleep", interrupt)
    monkeypatch.setenv("RANK", rank)
    lost = PeerLost(0, 2, Channel.CONTROL, "connection reset")
    assert run.main(["-p", "a", "--quiet", "--gamma", gamma], make_factory(fault=lost)) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.case("P4")
def test_ctrl_c_ends_a_process_that_hangs_in_a_library() -> None:
    code = (
        "import ctypes\nfrom pearl_pp.console import leaving\n"
        "leaving.AFTER_INTERRUPT = 0.1\nleaving.watch_for_interrupt()\n"
        "mutex = ctypes.create_string_buffer(128)\nlock = ctypes.CDLL(None).pthread_mutex_lock\n"
        "lock(mutex)\n"
        "import threading\nthreading.Timer(0.5, lambda: print('hangs', flush=True)).start()\nlock(mutex)\n"
    )
    process = in_a_process(code, wait_for="hangs")
    process.send_signal(2)
    assert process.wait(timeout=20) == 130
    assert process.communicate() == ("", "")


def test_another_signal_does_not_end_a_process() -> None:
    code = (
        "import signal, time\nfrom pearl_pp.console import leaving\n"
        "signal.signal(signal.SIGUSR1, lambda *_: None)\n"
        "leaving.AFTER_INTERRUPT = 0.1\nleaving.watch_for_interrupt()\n"
        "print('ready', flush=True)\ntime.sleep(1.5)\n"
        "try:\n    print('alive', flush=True)\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    time.sleep(60)\n"
    )
    process = in_a_process(code, wait_for="ready")
    process.send_signal(signal.SIGUSR1)
    assert process.stdout is not None and process.stdout.readline() == "alive\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130


def test_a_rank_with_a_mistake_of_its_own_speaks_before_those_that_miss_it(
    make_factory: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    from pearl_pp.transport.base import Channel, PeerLost

    assert run.main(["-p", "a"], make_factory(fault=PeerLost(0, 2, Channel.CONTROL, "connection reset"))) == 1
    monkeypatch.setenv("RANK", "2")
    assert run.main(["--gamma", "0"]) == 2
    of_peer, of_rank_2 = slept
    assert of_rank_2 < of_peer


@pytest.mark.parametrize("waited_s", [3.0, 9.0, 130.0])
def test_a_rank_with_a_mistake_of_its_own_speaks_before_those_that_wait_for_it_to_come(
    waited_s: float, make_factory: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    from pearl_pp.transport.base import RanksMissing

    monkeypatch.setattr(leaving, "_STARTED", time.monotonic() - waited_s)
    assert run.main(["-p", "a"], make_factory(fault=RanksMissing("rank 0: not all 3 ranks came"))) == 1
    monkeypatch.setenv("RANK", "2")
    assert run.main(["--gamma", "0"]) == 2
    of_missing, of_rank_2 = slept
    assert of_rank_2 < waited_s + of_missing
    assert of_missing == 0 or waited_s + of_missing == pytest.approx(leaving.BEHIND_CAUSE, abs=1.0)


def test_a_failed_process_does_not_wait_for_its_threads() -> None:
    code = (
        "import threading, time\nfrom pearl_pp.console import leaving\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('said', end='')\nleaving.leave(1)\n"
    )
    process = in_a_process(code)
    assert process.wait(timeout=20) == 1
    assert process.communicate() == ("said", "")
