"""Where ranks meet: on the loopback of one machine, at a port of their own, and under the name of their job."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
import torch.distributed as dist

from pearl_pp.console import launching
from pearl_pp.errors import UserError
from pearl_pp.transport import joining
from pearl_pp.transport.base import CannotJoin, RanksMissing

ROOT = Path(__file__).resolve().parents[3]
ONE_MACHINE = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}

MEETS = """
import sys
from pearl_pp.transport.torch_distributed import connect
transport = connect("cpu", timeout_s=float(sys.argv[1]))
print(transport.broadcast_bytes(b"word of rank 0" if transport.rank == 0 else None, 0))
transport.close()
"""

LISTENS_ON_THE_LOOPBACK_ALONE = """
import psutil
from pearl_pp.transport.torch_distributed import connect
with connect("cpu", timeout_s=60.0) as transport:
    listening = [c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == "LISTEN"]
    assert listening and set(listening) <= {"127.0.0.1", "::1"}, listening
    transport.barrier()
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_a_port_in_use_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(os, "environ", dict(ONE_MACHINE))
        with pytest.raises(UserError) as caught:
            joining._listen("127.0.0.1", port)
    assert str(caught.value) == f"MASTER_PORT {port}: is in use on this machine; choose another port"


def test_a_port_that_may_not_be_used_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "environ", dict(ONE_MACHINE))
    monkeypatch.setattr(joining.socket, "create_server", refuse)
    with pytest.raises(UserError, match=r"^MASTER_PORT 80: cannot be listened at: Permission denied$"):
        joining._listen("127.0.0.1", 80)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"MASTER_PORT": "65536"}, "MASTER_PORT 65536: must be a whole number from 1 to 65535"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT http: must be a whole number from 1 to 65535"),
        ({"MASTER_PORT": ""}, "MASTER_PORT: needs a value: torchrun, deepspeed and pearl-pp run set it for every rank"),
        ({"RANK": "2"}, "RANK 2: must be a whole number from 0 to 1"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE two: must be a whole number from 1 to 99999"),
        ({"MASTER_ADDR": "no host"}, "MASTER_ADDR no host: is no address of a machine: "),
        ({"MASTER_ADDR": "a..b"}, "MASTER_ADDR a..b: is no address of a machine: "),
    ],
)
def test_what_a_launcher_cannot_mean_is_one_clear_line(
    changes: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = ONE_MACHINE | {"RANK": "0", "MASTER_PORT": str(free_port())} | changes
    monkeypatch.setattr(os, "environ", variables)
    with pytest.raises(UserError) as caught:
        joining.join(5.0, 1)
    assert str(caught.value).startswith(expected)


@pytest.mark.case("P4")
def test_a_rank_0_that_answers_nobody_is_missed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel lets others connect to the port of a process that is stopped; the store waits for its word."""
    monkeypatch.setattr(joining, "_BEHIND_STORE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr(os, "environ", ONE_MACHINE | {"RANK": "1", "MASTER_PORT": str(port)})
        started = time.monotonic()
        with pytest.raises(RanksMissing) as caught:
            joining.join(0.3, 1)
        assert time.monotonic() - started < 10
    assert str(caught.value) == f"rank 1: not all 2 ranks came to 127.0.0.1:{port} within 0.3 s: no answer"


@pytest.mark.parametrize(
    ("timeout_s", "kind", "expected"),
    [
        (60.0, CannotJoin, "rank 1: cannot join the 2 ranks at 127.0.0.1:29500: no address for eth7"),
        (0.1, RanksMissing, "rank 1: not all 2 ranks came to 127.0.0.1:29500 within 0.1 s: no address for eth7"),
    ],
)
def test_what_gloo_says_is_one_line(
    timeout_s: float, kind: type[Exception], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        time.sleep(0.2)
        raise RuntimeError("[enforce fail at gloo/device.cc:84] no address for eth7\nframe #0: ...")

    monkeypatch.setattr(os, "environ", ONE_MACHINE | {"RANK": "1", "MASTER_PORT": "29500"})
    monkeypatch.setattr(joining, "_store", lambda *_: dist.HashStore())
    monkeypatch.setattr(joining.dist, "init_process_group", fail)
    with pytest.raises(kind) as caught:
        joining.join(timeout_s, 1)
    assert str(caught.value) == expected


def test_the_launchers_socket_is_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", ONE_MACHINE | {joining.LISTEN_FD: "77"})
    assert joining._listen("127.0.0.1", 1) == 77
    assert joining.LISTEN_FD not in os.environ


@pytest.mark.parametrize(
    ("local_world_size", "host", "expected"),
    [
        ("2", "127.0.0.1", "127.0.0.1"),
        ("2", "localhost", "127.0.0.1"),
        ("1", "127.0.0.1", ""),
        ("1", "10.1.2.3", "10.1.2.3"),
    ],
)
def test_rank_0_listens_where_the_others_call(
    local_world_size: str, host: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", ONE_MACHINE | {"LOCAL_WORLD_SIZE": local_world_size})
    assert joining._address(host) in (expected, "::1" if host == "localhost" else expected)


def test_launcher_and_ranks_agree_on_names() -> None:
    assert (launching.JOB, launching.LISTEN_FD) == (joining.JOB, joining.LISTEN_FD)


def test_a_rank_of_another_job_is_not_let_in() -> None:
    common = (
        os.environ | {"PYTHONPATH": str(ROOT), "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"} | ONE_MACHINE
    )

    def start(rank: int, job: str, timeout_s: float) -> subprocess.Popen[str]:
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "PEARL_PP_JOB": job}
        command = [sys.executable, "-c", MEETS, f"{timeout_s:g}"]
        return subprocess.Popen(command, env=common | own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    ranks = [start(0, "ours", 60.0), start(1, "theirs", 3.0)]
    intruder = ranks.pop()
    text = intruder.communicate(timeout=60)[1]
    assert intruder.returncode == 1
    assert "RanksMissing: rank 1: not all 2 ranks came to 127.0.0.1:" in text
    ranks.append(start(1, "ours", 60.0))
    for rank in ranks:
        assert rank.communicate(timeout=80)[0] == "b'word of rank 0'\n"
        assert rank.returncode == 0


def test_with_the_launcher_nothing_listens_but_on_the_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "listening_rank.py").write_text(LISTENS_ON_THE_LOOPBACK_ALONE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    assert launching.launch(2, [], "listening_rank") == 0
    assert capfd.readouterr() == ("", "")
