"""A rank that is stopped is named by all others in time, however long they would wait for it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from pearl_pp.transport.base import SilentPeer, Transport, TransportError
from pearl_pp.transport.heartbeat import Heartbeat
from pearl_pp.transport.inprocess import InProcessGroup
from tests.rank_pool import RankPool

pytestmark = pytest.mark.alone


def beat(transport: Transport, timeout_s: float, ends_after_s: float, silent: int) -> list[TransportError]:
    failures: list[TransportError] = []
    if transport.rank == silent:
        time.sleep(ends_after_s)
        return failures
    heartbeat = Heartbeat(transport, timeout_s, failures.append)
    time.sleep(ends_after_s * (1 + transport.rank / 4))  # they end one after another
    if silent < 0:
        heartbeat.stop()
    return failures


def test_ranks_that_live_and_end_one_after_another_are_not_missed() -> None:
    assert InProcessGroup(3).run(beat, 0.5, 1.5, -1) == [[], [], []]


def test_a_silent_rank_is_found_in_time_and_named() -> None:
    failures = InProcessGroup(3).run(beat, 0.8, 1.2, 1)
    assert [len(found) for found in failures] == [1, 0, 1]
    first = next(
        found[0] for found in failures if found and isinstance(found[0], SilentPeer)
    )  # the other may follow it
    assert str(first) == f"rank {first.rank}: no sign of life from rank 1 for 0.6 s: stopped, or cut off"


def stop_in_a_long_wait(transport: Transport, folder: str, who: int) -> tuple[str, float]:
    """Ranks wait an hour for rank 0's word, as between two prompts; rank `who` is stopped meanwhile."""
    Path(folder, str(transport.rank)).write_text(str(os.getpid()))
    transport.barrier()
    if transport.rank == who:
        os.kill(os.getpid(), signal.SIGSTOP)
        return "", 0.0  # never: it is killed
    started = time.monotonic()
    try:
        if transport.rank == 0:
            time.sleep(6)
            transport.gather_bytes(b"", 0, timeout_s=3600.0)
        else:
            transport.broadcast_bytes(None, 0, timeout_s=3600.0)
    except TransportError as error:
        seconds = time.monotonic() - started
        if transport.rank == min({0, 1, 2} - {who}):  # the last to tell
            time.sleep(2)
            os.kill(int(Path(folder, str(who)).read_text()), signal.SIGKILL)
        return str(error), seconds
    raise AssertionError("nobody missed the stopped rank")


@pytest.mark.case("P4")
@pytest.mark.parametrize("who", [0, 2])
def test_over_gloo_a_wait_of_an_hour_ends_when_a_rank_is_stopped(who: int, tmp_path: Path) -> None:
    pool = RankPool(3, timeout_s=4.0)
    told: dict[int, tuple[str, float]] = {}
    try:
        with pytest.raises(RuntimeError, match=f"rank-{who} died with exit code -9"):
            pool.run(_telling, str(tmp_path), who, timeout_s=30.0)
        for rank in {0, 1, 2} - {who}:
            text, seconds = (tmp_path / f"told-{rank}").read_text().split("|")
            told[rank] = text, float(seconds)
    finally:
        pool.close()
    silent = f"no sign of life from rank {who} for 3 s: stopped, or cut off"
    assert any(silent in text for text, _ in told.values()), "the first to find it; others may miss that one"
    for rank, (_, seconds) in told.items():
        assert seconds < (7.0 if rank == 0 else 5.0)


def _telling(transport: Transport, folder: str, who: int) -> None:
    text, seconds = stop_in_a_long_wait(transport, folder, who)
    Path(folder, f"told-{transport.rank}").write_text(f"{text}|{seconds}")
