"""Whatever goes wrong on a rank: told once with its rank, nobody hangs, nothing is left, answers are kept."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from tests.faults.expected import ALL_GONE_S, WITHOUT_MESSAGE, check, check_kept
from tests.faults.scene import Scene, deepspeed
from tests.faults.table import AddRow, apart

pytestmark = pytest.mark.alone


@pytest.mark.case("P4")
@pytest.mark.parametrize(
    ("what", "rank", "placement", "launcher", "num_ranks"),
    [
        ("raises", 1, "single", "torchrun", 2),
        ("runs_out_of_memory", 0, "sharded", "pearl-pp run", 2),
        ("is_killed", 1, "dedicated", "pearl-pp run", 2),
        ("is_stopped", 0, "hop", "pearl-pp run", 2),
        # torchrun itself would wait half a minute before it kills a rank that does not hear it
        ("is_stopped", 1, "sharded", "torchrun", 2),
        ("sends_another_dtype", 0, "hop", "torchrun", 2),
        ("sends_too_little", 1, "pipelined", "pearl-pp run", 3),
        ("is_killed", 1, "hop", "deepspeed", 2),
    ],
)
def test_a_fault_on_one_rank_ends_all(
    what: str, rank: int, placement: str, launcher: str, num_ranks: int, tmp_path: Path
) -> None:
    after, options = random.randrange(20), ["--placement", placement]
    print(f"{after} slots after the first answers")
    scene = Scene(tmp_path, what, rank, after, options, launcher, num_ranks)
    scene.arm()
    check(scene.outcome(), what, rank, launcher, scene.record)


@pytest.mark.case("P4")
def test_ctrl_c_while_a_rank_is_stopped(tmp_path: Path, table: AddRow) -> None:
    scene = Scene(tmp_path, "is_stopped", 1)
    scene.arm()
    scene.interrupt()
    outcome = scene.outcome()
    assert (outcome.exit_code, outcome.stderr) == (130, "")
    assert outcome.ended_s < WITHOUT_MESSAGE
    check_kept(outcome)
    table(apart("Ctrl-C while a rank is stopped", "pearl-pp run", outcome, rank=1))


@pytest.mark.case("P4")
def test_a_full_disk_under_the_record(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "meets_a_full_disk", 0)
    scene.arm()
    outcome = scene.outcome()
    assert outcome.errors == [f"error: --json {scene.record}: cannot be written: File too large"]
    assert outcome.stderr.count("\n") == 1
    assert outcome.exit_code == 2
    assert os.listdir(tmp_path).count("record.json") == 1 and not list(tmp_path.glob(".record.json*"))
    check_kept(outcome)


@pytest.mark.case("P4")
def test_two_jobs_at_once_one_of_them_with_a_slow_rank(tmp_path: Path, table: AddRow) -> None:
    folders = [tmp_path / "slow", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    short = ["--max-new-tokens", "6"]
    faults = ("is_slow", "waits_for_the_test")
    scenes = [Scene(folder, fault, 1, 0, short, num_prompts=20) for folder, fault in zip(folders, faults, strict=True)]
    for scene in scenes:
        scene.arm()
    for scene in scenes:
        outcome = scene.outcome(110.0)
        assert (outcome.exit_code, outcome.stderr) == (0, "")
        assert len(outcome.finished) == 20
        check_kept(outcome, num_tokens=6)
        table(apart("two jobs at once, one with a slow rank", "pearl-pp run", outcome))


@pytest.mark.case("P4")
@pytest.mark.parametrize(
    ("what", "rank", "row"),
    [
        ("is_stopped_at_its_start", 0, "a rank is stopped at its start"),
        pytest.param("never_comes", 0, "a peer never comes", marks=pytest.mark.long),
        pytest.param("never_comes", 1, "a peer never comes", marks=pytest.mark.long),
    ],
)
def test_a_rank_that_never_comes(what: str, rank: int, row: str, tmp_path: Path, table: AddRow) -> None:
    scene = Scene(tmp_path, what, rank, options=["--timeout", "5"])
    outcome = scene.outcome()
    started = max(port.stat().st_mtime for port in tmp_path.glob("port-*"))
    assert time.time() - started < 5.0 + ALL_GONE_S
    assert outcome.exit_code == 1
    assert len(outcome.errors) == 1 and "not all 2 ranks came to 127.0.0.1:" in outcome.errors[0], outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert outcome.left_running == 0 and outcome.port_is_free
    table(apart(f"{row} (`--timeout 5`)", "pearl-pp run", outcome, "not all 2 ranks came to", rank=rank))


@pytest.mark.case("P4")
def test_a_port_in_use(tmp_path: Path, table: AddRow) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        outcome = Scene(tmp_path, "waits_for_the_test", 0, launcher=deepspeed(2, port)).outcome()
    assert outcome.exit_code == 2
    assert outcome.errors == [f"error: MASTER_PORT {port}: is in use on this machine; choose another port"]
    assert outcome.left_running == 0
    socket.create_server(("127.0.0.1", port)).close()
    table(apart("the port is in use", "deepspeed", outcome, "error: MASTER_PORT"))


@pytest.mark.case("P4")
@pytest.mark.parametrize(
    ("what", "launcher", "row"),
    [
        ("is_stopped", "pearl-pp run", "the launcher is killed while a rank is stopped"),
        pytest.param("waits_for_the_test", "pearl-pp run", "the launcher is killed", marks=pytest.mark.long),
        pytest.param("waits_for_the_test", "deepspeed", "the launcher is killed", marks=pytest.mark.long),
    ],
)
def test_ranks_leave_when_their_launcher_is_killed(
    what: str, launcher: str, row: str, tmp_path: Path, table: AddRow
) -> None:
    scene = Scene(tmp_path, what, 0, launcher=launcher)
    scene.arm()
    ranks = scene.ranks()
    assert len(ranks) == 2
    above = [process for process in psutil.Process(scene.process.pid).children(recursive=True) if process not in ranks]
    for launching in (scene.process, *above):
        launching.kill()
    _, alive = psutil.wait_procs(ranks, timeout=ALL_GONE_S)
    outcome = scene.outcome()  # ends what is left
    assert not alive and outcome.port_is_free
    assert outcome.exit_code == -signal.SIGKILL
    assert outcome.errors == ["error: the launcher of this rank has gone"], outcome.stderr
    assert "Traceback" not in outcome.stderr
    rank = 0 if what == "is_stopped" else None
    table(apart(row, launcher, outcome, "the launcher of this rank has gone", rank))


@pytest.mark.case("P4")
@pytest.mark.parametrize(
    "launcher", ["pearl-pp run", *(pytest.param(name, marks=pytest.mark.long) for name in ("torchrun", "deepspeed"))]
)
def test_strangers_are_not_let_in(launcher: str, tmp_path: Path, table: AddRow) -> None:
    """Ranks listen on the loopback alone, and whoever calls there without being one of them changes nothing."""
    scene = Scene(tmp_path, "waits_for_the_test", 0, launcher=launcher, num_prompts=20)
    scene.arm()
    sockets = [connection for rank in scene.ranks() for connection in rank.net_connections("inet")]
    listening = {
        (connection.laddr.ip, connection.laddr.port) for connection in sockets if connection.status == "LISTEN"
    }
    assert listening and {host for host, _ in listening} <= {"127.0.0.1", "::1"}
    with ExitStack() as kept_open:
        for address in listening:
            for words in (b"", b"GET / HTTP/1.0\r\n\r\n", b"\x00" * 1000, b"\xff" * 1000, random.randbytes(64)):
                stranger = kept_open.enter_context(socket.create_connection(address, timeout=5))
                with suppress(OSError):
                    stranger.sendall(words)
        outcome = scene.outcome()
    assert outcome.exit_code == 0, outcome.stderr
    assert len(outcome.finished) == 20
    check_kept(outcome)
    table(apart("strangers call at every port", launcher, outcome))
