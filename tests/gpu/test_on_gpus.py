"""The checks of launch/check_gpus.sh as tests, and a test of the checks themselves where there is no GPU."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu import check_gpus, checks
from tests.gpu.checks import CHECKS, Row, rows_of

pytestmark = pytest.mark.alone

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_the_cards_of_this_machine(check):
    assert [row for row in rows_of(check, "cuda") if row.status == "fail"] == []


@pytest.mark.parametrize("check", [checks.links, checks.messages, checks.stages], ids=lambda check: check.__name__)
def test_the_checks_pass_on_the_cpu(check):
    rows = rows_of(check, "cpu")
    assert rows and [row for row in rows if row.status == "fail"] == []


def test_a_whole_run_is_compared_id_by_id(monkeypatch):
    ids = {"ar": [[1, 2], [3]], "pearl": [[1, 2], [4]]}
    monkeypatch.setattr(checks, "_run", lambda device, num_ranks, option, strategy: ids[strategy])
    assert [row.status for row in rows_of(checks.whole_runs, "cpu")] == ["fail"]
    ids["pearl"] = [[1, 2], [3]]
    assert [row.status for row in rows_of(checks.whole_runs, "cpu")] == ["pass"]


@pytest.mark.slow
def test_a_whole_run_on_the_cpu():
    assert [row.status for row in rows_of(checks.whole_runs, "cpu")] == ["pass"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_gpu_one_line_says_so_and_the_exit_code_is_2():
    run = subprocess.run(
        [sys.executable, "-m", "tests.gpu.check_gpus"], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert (run.returncode, run.stderr) == (2, "")
    assert run.stdout.startswith("check_gpus: no CUDA device here") and run.stdout.count("\n") == 1


def test_a_failed_row_makes_the_exit_code_1_and_the_other_checks_go_on(monkeypatch, capsys):
    def broken(device):
        yield Row("first", "pass", "fine")
        raise RuntimeError("no such kernel")

    def later(device):
        yield Row("later", "skipped", "needs more cards")

    monkeypatch.setattr(checks, "CHECKS", [broken, later])
    assert check_gpus.main(["--rehearse-on-cpu"]) == 1
    lines = capsys.readouterr().out.splitlines()
    beginnings = [line.split()[:2] for line in lines[:3]]
    assert beginnings == [["pass", "first"], ["fail", "broken"], ["skipped", "later"]]
    assert "RuntimeError: no such kernel" in lines[1]
    assert "1 passed, 1 failed, 1 skipped" in lines[3]
