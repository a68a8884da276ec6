"""`pearl-pp doctor` on real ranks."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.integration.commands import command, torchrun

DOCTOR = "pearl_pp.console.doctor"


def test_two_ranks_find_each_other_and_say_what_they_saw(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    run = command("pearl_pp.cli", "doctor", "-n", "2", "--device", "cpu", "--json", str(file))
    assert (run.exit_code, run.stderr) == (0, "")
    found = json.loads(file.read_text())
    assert [rank["device"] for rank in found["ranks"]] == ["cpu", "cpu"]
    assert all(0 < rank["free_bytes"] <= rank["total_bytes"] for rank in found["ranks"])
    assert {"pearl_pp", "torch", "transformers", "deepspeed"} <= found["ranks"][0]["versions"].keys()
    for plane in ("control", "tensors"):
        there, back = found["links"][plane][0][1], found["links"][plane][1][0]
        assert there == back
        assert 0 < there["latency_us"] < 1e6
        assert 0.001 < there["bandwidth_gb_s"] < 1000
        assert f"{plane} plane" in run.stdout
    assert not any(finding["stops"] for finding in found["findings"])
    assert "note  no GPU is used" in run.stdout
    assert "nothing here would stop a run" in run.stdout
    assert "measured here" in run.stdout


def test_what_stops_a_run_is_said_with_exit_code_1() -> None:
    run = torchrun(1, "-m", DOCTOR, "--device", "cuda")
    if "cannot join" not in run.stdout:
        pytest.skip("there is a CUDA device here")
    assert "STOPS  rank 0 cannot join the other ranks: --device cuda: torch sees no CUDA device" in run.stdout
    assert run.exit_code == 1


def test_ranks_that_do_not_come_are_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    surroundings = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in surroundings.items():
        monkeypatch.setenv(name, value)
    run = command(DOCTOR, "--device", "cpu", "--timeout", "3")
    assert run.exit_code == 1
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("STOPS")]
    assert f"rank 0: not all 2 ranks came to 127.0.0.1:{port} within 3 s" in line


def test_a_file_that_cannot_be_written_is_one_line() -> None:
    run = command("pearl_pp.cli", "doctor", "-n", "1", "--device", "cpu", "--json", "/no/such/folder/file")
    assert (run.exit_code, run.stdout) == (2, "")
    assert run.errors == ["error: --json /no/such/folder/file: cannot be written: No such file or directory"]
