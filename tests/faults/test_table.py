"""Every fault in every placement, and a table of it: docs/faults.md is the one of a whole run."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pearl_pp.config.run_config import PRESETS
from tests.faults.expected import EXPECTED, check, check_answers
from tests.faults.scene import NUM_PROMPTS, TIMEOUT_S, Scene

NUM_RANKS = 3
FEW_PROMPTS = 8  # where the run goes on to its end
# Launchers take turns: each meets every fault and every placement.
LAUNCHERS = ("pearl-pp run", "torchrun", "deepspeed", "pearl-pp run", "torchrun")
PLACEMENTS = [name for name in PRESETS if name != "auto"]
ROWS = [
    (what, placement, LAUNCHERS[(i + j) % len(LAUNCHERS)])
    for i, what in enumerate(EXPECTED)
    for j, placement in enumerate(PLACEMENTS)
]

HEAD = f"""# Faults in every placement

What became of runs in which something goes wrong, made on a machine of {os.cpu_count()} cores by

```bash
python -m pytest tests/faults -m long --faults-table docs/faults.md
```

Each row is a run of {NUM_RANKS} ranks with the embedded pair and `--timeout {TIMEOUT_S:g}`; the fault comes at a random
moment after the first answers. *told*: from the fault to the line that names it; *all gone*: to the end of the last
process; *kept*: requests in the `--json` file at the end, each of them whole. In no row was a process left, or the port
taken. `torchrun` has one exit code for all failures. A rank that is killed is named by the launcher (`deepspeed` tells
its exit code alone); an interrupted run says nothing, and one with a slow rank goes on to its end, with right answers.

| fault | placement | launcher | rank | told after s | all gone after s | exit code | kept |
|---|---|---|---|---|---|---|---|
"""


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[Callable[[str], None]]:
    """Takes rows; written to the file of --faults-table if none is missing."""
    rows: list[str] = []
    yield rows.append
    if path := request.config.getoption("--faults-table"):
        Path(path).write_text(HEAD + "".join(f"{row}\n" for row in rows), encoding="utf-8")


def pick_rank(what: str, placement: str) -> int:
    if what == "meets_a_full_disk":
        return 0  # writes the record
    if what.startswith("sends"):  # activations leave every stage but the last
        return 0 if placement == "dedicated" else random.randrange(NUM_RANKS - 1)
    return random.randrange(NUM_RANKS)


@pytest.mark.long
@pytest.mark.parametrize(("what", "placement", "launcher"), ROWS)
def test_every_fault_in_every_placement(
    what: str, placement: str, launcher: str, tmp_path: Path, table: Callable[[str], None]
) -> None:
    goes_on = EXPECTED[what].exit_code == 0
    rank, num_prompts = pick_rank(what, placement), FEW_PROMPTS if goes_on else NUM_PROMPTS
    scene = Scene(
        tmp_path, what, rank, random.randrange(60), ["--placement", placement], launcher, NUM_RANKS, num_prompts
    )
    scene.arm()
    if what == "is_interrupted":
        scene.interrupt()
    outcome = scene.outcome(100.0)
    check(outcome, what, rank, launcher, scene.record)
    if goes_on:
        assert len(outcome.finished) == num_prompts
        check_answers(outcome)
    told = outcome.told_s(EXPECTED[what].told_by(launcher, rank, scene.record))
    row = (
        what.removeprefix("is_").replace("_", " "), placement, launcher, rank, "-" if told is None else f"{told:.1f}",
        "-" if goes_on else f"{outcome.ended_s:.1f}", outcome.exit_code, len(outcome.finished),
    )  # fmt: skip
    table(f"| {' | '.join(map(str, row))} |")
