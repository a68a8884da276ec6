"""Whatever goes wrong on a rank: told once with its rank, nobody hangs, nothing is left, answers are kept."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.scene import FINISHED_BEFORE, LAUNCHERS, NUM_PROMPTS, NUM_TOKENS, TIMEOUT_S, Outcome, Scene

ALL_GONE_S = 30.0
WITHOUT_MESSAGE = 10.0  # what a process's end takes to be seen, on a busy machine

# what happens: the line that tells it, the exit code of `pearl-pp run`, until when it must have been told
EXPECTED: dict[str, tuple[str, int, float]] = {
    "raises": ("error: rank {rank} failed", 1, WITHOUT_MESSAGE),
    "runs_out_of_memory": ("error: rank {rank} ran out of memory", 1, WITHOUT_MESSAGE),
    "is_killed": ("error: rank {rank} was ended by SIGKILL (the kernel does so", 137, WITHOUT_MESSAGE),
    "is_stopped": ("no sign of life from rank {rank} for ", 1, TIMEOUT_S + WITHOUT_MESSAGE),
    "sends_too_much": ("error: rank {next} was ended by SIGABRT", 134, WITHOUT_MESSAGE),
    "sends_too_little": ("bad message from rank {rank}", 1, TIMEOUT_S + WITHOUT_MESSAGE),
}  # fmt: skip
PLACEMENTS = ("dedicated", "single", "hop", "pipelined", "sharded")


def check_kept(outcome: Outcome) -> None:
    assert len(outcome.finished) >= FINISHED_BEFORE
    for request in outcome.finished:
        assert request["error"] is None
        assert len(request["token_ids"]) == NUM_TOKENS or request["finish_reason"] == "stop"
    assert outcome.left_running == 0
    assert outcome.port_is_free


def check(outcome: Outcome, what: str, rank: int) -> None:
    line, exit_code, told_within_s = EXPECTED[what]
    assert line.format(rank=rank, next=rank + 1) in "\n".join(outcome.errors), outcome.stderr
    assert len(outcome.errors) == 1, outcome.stderr
    assert outcome.exit_code == exit_code
    assert outcome.told_s is not None and outcome.told_s < told_within_s
    assert outcome.ended_s < told_within_s + ALL_GONE_S
    check_kept(outcome)


@pytest.mark.case("P4")
@pytest.mark.parametrize(
    ("what", "rank", "placement", "num_ranks"),
    [
        ("is_killed", 1, "dedicated", 2),
        ("is_stopped", 0, "hop", 4),
        ("sends_too_little", 1, "pipelined", 4),
    ],
)
def test_a_fault_on_one_rank_ends_all(what: str, rank: int, placement: str, num_ranks: int, tmp_path: Path) -> None:
    scene = Scene(tmp_path, what, rank, random.randrange(20), ["--placement", placement], num_ranks=num_ranks)
    scene.arm()
    check(scene.outcome(), what, rank)


@pytest.mark.case("P4")
def test_a_stopped_rank_does_not_hold_torchrun(tmp_path: Path) -> None:
    """torchrun itself would wait half a minute before it kills a rank that does not hear it."""
    scene = Scene(tmp_path, "is_stopped", 1, launcher="torchrun", num_ranks=2)
    scene.arm()
    outcome = scene.outcome()
    assert outcome.exit_code != 0
    assert len(outcome.errors) == 1, outcome.stderr
    assert "no sign of life from rank 1" in outcome.errors[0]
    assert outcome.ended_s < TIMEOUT_S + 2 * WITHOUT_MESSAGE
    check_kept(outcome)


@pytest.mark.case("P4")
def test_ctrl_c_while_a_rank_is_stopped(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "is_stopped", 1, num_ranks=2)
    scene.arm()
    scene.interrupt()
    outcome = scene.outcome()
    assert (outcome.exit_code, outcome.stderr) == (130, "")
    assert outcome.ended_s < WITHOUT_MESSAGE
    check_kept(outcome)


@pytest.mark.case("P4")
def test_a_full_disk_under_the_record(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "meets_a_full_disk", 0, num_ranks=2)
    scene.arm()
    outcome = scene.outcome()
    assert outcome.errors == [f"error: --json {scene.record}: cannot be written: File too large"]
    assert outcome.stderr.count("\n") == 1
    assert outcome.exit_code == 2
    assert os.listdir(tmp_path).count("record.json") == 1 and not list(tmp_path.glob(".record.json*"))
    check_kept(outcome)


@pytest.mark.case("P4")
def test_two_jobs_at_once_one_of_them_with_a_slow_rank(tmp_path: Path) -> None:
    folders = [tmp_path / "slow", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    short = ["--max-new-tokens", "6"]
    faults = ("is_slow", "waits_for_the_test")
    scenes = [Scene(folder, fault, 1, 0, short, num_ranks=2) for folder, fault in zip(folders, faults, strict=True)]
    for scene in scenes:
        scene.arm()
    for scene in scenes:
        outcome = scene.outcome(110.0)
        assert (outcome.exit_code, outcome.stderr) == (0, "")
        assert len(outcome.finished) == NUM_PROMPTS
        assert all(request["error"] is None for request in outcome.finished)


@pytest.mark.case("P4")
def test_a_rank_that_never_comes(tmp_path: Path) -> None:
    started = time.monotonic()
    scene = Scene(tmp_path, "never_comes", 1, options=["--timeout", "5"], num_ranks=2)
    outcome = scene.outcome()
    assert time.monotonic() - started < 5.0 + ALL_GONE_S
    assert outcome.exit_code == 1
    assert len(outcome.errors) == 1 and "not all 2 ranks came to 127.0.0.1:" in outcome.errors[0], outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert outcome.left_running == 0 and outcome.port_is_free


@pytest.mark.case("P4")
def test_ranks_leave_when_their_launcher_is_killed(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "waits_for_the_test", 0, num_ranks=2)
    scene.arm()
    ranks = psutil.Process(scene.process.pid).children()
    assert len(ranks) == 2
    scene.process.kill()
    _, alive = psutil.wait_procs(ranks, timeout=ALL_GONE_S)
    assert not alive
    assert scene.outcome().exit_code == -signal.SIGKILL


# -- every fault in every placement, and a table of it


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[Callable[[str], None]]:
    """Takes rows; written to the file of --faults-table."""
    rows = [
        "| fault | placement | launcher | rank | told after s | all gone after s | exit code | requests kept |",
        "|---|---|---|---|---|---|---|---|",
    ]
    yield rows.append
    if path := request.config.getoption("--faults-table"):
        Path(path).write_text("\n".join(rows) + "\n", encoding="utf-8")


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("what", EXPECTED)
def test_every_fault_in_every_placement(
    what: str, placement: str, launcher: str, tmp_path: Path, table: Callable[[str], None]
) -> None:
    sends = what.startswith("sends")
    rank = random.choice((0, 1) if sends else (0, 1, 2, 3))  # activations leave every stage but the last
    scene = Scene(tmp_path, what, rank, random.randrange(60), ["--placement", placement], launcher)
    scene.arm()
    outcome = scene.outcome(100.0)
    told = "-" if outcome.told_s is None else f"{outcome.told_s:.1f}"
    ends = f"{told} | {outcome.ended_s:.1f} | {outcome.exit_code} | {len(outcome.finished)}"
    table(f"| {what.replace('_', ' ')} | {placement} | {launcher} | {rank} | {ends} |")
    if launcher == "torchrun":  # has an exit code and a report of its own
        assert outcome.exit_code != 0
        assert outcome.ended_s < EXPECTED[what][2] + ALL_GONE_S
        check_kept(outcome)
    else:
        check(outcome, what, rank)
