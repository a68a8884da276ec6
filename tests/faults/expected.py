"""What must become of a run, fault by fault."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pearl_pp import builtin
from tests.faults.scene import FINISHED_BEFORE, NUM_TOKENS, TIMEOUT_S, Outcome
from tests.pairs import oracle

ALL_GONE_S = 30.0
WITHOUT_MESSAGE = 10.0  # what a process's end takes to be seen, on a busy machine


class Expected(NamedTuple):
    """The end of a run with a fault in it.

    Args:
        line: what its one line of error holds; empty: nothing is said.
        exit_code: of `pearl-pp run`; other launchers have codes of their own.
        told_within_s: until then the line is there, in seconds from the fault.
        others: for launchers that say it in their own words, as only they know: a part of the line that does.
        num_traces: tracebacks that come with the line.
    """

    line: str
    exit_code: int
    told_within_s: float = WITHOUT_MESSAGE
    others: dict[str, str] = {}  # noqa: RUF012
    num_traces: int = 0

    def told_by(self, launcher: str, rank: int, record: Path) -> str:
        """What the line holds that tells it; empty: nothing is said."""
        line = self.others.get(launcher, self.line)
        return line.replace("{rank}", str(rank)).replace("{record}", str(record))


EXPECTED: dict[str, Expected] = {
    "raises": Expected("error: rank {rank} failed", 1, num_traces=1),
    "runs_out_of_memory": Expected("error: rank {rank} ran out of memory", 1, num_traces=1),
    "is_killed": Expected(
        "error: rank {rank} was ended by SIGKILL (the kernel does so", 137,
        others={"torchrun": "Signal 9 (SIGKILL)", "deepspeed": "return code = -9"},
    ),
    "is_stopped": Expected("no sign of life from rank {rank} for ", 1, TIMEOUT_S + WITHOUT_MESSAGE),
    "sends_another_dtype": Expected("bad message from rank {rank} on ", 1),
    "sends_too_little": Expected("bad message from rank {rank} on ", 1),
    "meets_a_full_disk": Expected("error: --json {record}: cannot be written: File too large", 2),
    "is_interrupted": Expected("", 130),
    "is_slow": Expected("", 0),
}  # fmt: skip


def check(outcome: Outcome, what: str, rank: int, launcher: str, record: Path) -> None:
    """Told once and in time, with its rank; out in time; nothing left, and all that was finished is kept."""
    expected = EXPECTED[what]
    num_traces = outcome.stderr.count("Traceback (most recent call last)")
    if launcher == "pearl-pp run":
        assert outcome.exit_code == expected.exit_code, outcome.stderr
        assert num_traces == expected.num_traces, outcome.stderr
        assert expected.line or not outcome.stderr
    else:  # these show one of their own
        assert num_traces <= expected.num_traces + 1, outcome.stderr
    assert (outcome.exit_code == 0) == (expected.exit_code == 0)
    own = launcher not in expected.others
    assert len(outcome.errors) == (1 if expected.line and own else 0), outcome.stderr
    if expected.line:
        told_s = outcome.told_s(expected.told_by(launcher, rank, record))
        assert told_s is not None, outcome.stderr
        assert told_s < expected.told_within_s
    if launcher == "torchrun" and not own:
        assert f"rank      : {rank} (" in outcome.stderr
    if expected.exit_code != 0:
        assert outcome.ended_s < expected.told_within_s + ALL_GONE_S
    check_kept(outcome)


def check_kept(outcome: Outcome, num_tokens: int = NUM_TOKENS) -> None:
    """Finished requests are on disk, whole and right; no process is left, and the port is free."""
    assert len(outcome.finished) >= outcome.num_before >= FINISHED_BEFORE
    for request in outcome.finished:
        assert request["error"] is None
        assert len(request["token_ids"]) == num_tokens or request["finish_reason"] == "stop"
    check_answers(outcome)
    assert outcome.left_running == 0
    assert outcome.port_is_free


def check_answers(outcome: Outcome) -> None:
    """What is on disk is what the target alone would say."""
    for request in outcome.finished[::3]:
        found = request["token_ids"]
        assert found == oracle(builtin.TARGET_DIR, request["prompt_token_ids"], len(found))
