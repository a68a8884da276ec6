"""docs/faults.md: what became of the runs of these tests, fault by fault."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pearl_pp.config.run_config import PRESETS
from tests.faults.expected import EXPECTED
from tests.faults.scene import TIMEOUT_S, Outcome

NUM_RANKS = 3
HEAD = f"""# Faults in every placement

What became of runs in which something goes wrong, made on a machine of {os.cpu_count()} cores by

```bash
python -m pytest tests/faults -m "long or not long" --faults-table docs/faults.md
```

Real runs of the embedded pair with `--timeout {TIMEOUT_S:g}`. *told*: from the fault to the line that names it;
*all gone*: to the end of the last process; *kept*: requests in the `--json` file at the end, each of them whole. In no
row was a process left, or the port taken. `torchrun` has one exit code for all failures.

## On one of the ranks

{NUM_RANKS} ranks; the fault comes at a random moment after the first answers. A rank that is killed is named by the
launcher (`deepspeed` tells its exit code alone); an interrupted run says nothing, and one with a slow rank goes on to
its end, with right answers.

"""
APART = """
## Around the ranks

2 ranks. What has to do with a start is counted from it; that ranks are missing is told 15 s after it at the earliest,
when one with a mistake of its own has told that.

"""
UNPLACED = "-"

# Launchers take turns: each meets every fault and every placement.
LAUNCHERS = ("pearl-pp run", "torchrun", "deepspeed", "pearl-pp run", "torchrun")
PLACEMENTS = [name for name in PRESETS if name != "auto"]
ROWS = [
    (what, placement, LAUNCHERS[(i + j) % len(LAUNCHERS)])
    for i, what in enumerate(EXPECTED)
    for j, placement in enumerate(PLACEMENTS)
]


def name_of(what: str) -> str:
    return what.removeprefix("is_").replace("_", " ")


class Row(NamedTuple):
    """What became of one run. placement: UNPLACED where it has no part in it. told_s: None: nothing is said."""

    fault: str
    placement: str
    launcher: str
    rank: int | None
    told_s: float | None
    ended_s: float | None
    exit_code: int
    num_kept: int

    def cells(self) -> list[str]:
        seconds = ["-" if value is None else f"{value:.1f}" for value in (self.told_s, self.ended_s)]
        rank = "-" if self.rank is None else str(self.rank)
        return [self.fault, self.placement, self.launcher, rank, *seconds, str(self.exit_code), str(self.num_kept)]


AddRow = Callable[[Row], None]


def apart(fault: str, launcher: str, outcome: Outcome, told: str = "", rank: int | None = None) -> Row:
    """The row of a run in which something happens around its ranks. told: what the line holds that tells it."""
    ended_s = None if outcome.exit_code == 0 else outcome.ended_s
    kept = len(outcome.finished)
    return Row(fault, UNPLACED, launcher, rank, outcome.told_s(told), ended_s, outcome.exit_code, kept)


def is_whole(rows: Sequence[Row]) -> bool:
    """Whether there is a row for every fault in every placement."""
    expected = {(name_of(what), placement, launcher) for what, placement, launcher in ROWS}
    return {(row.fault, row.placement, row.launcher) for row in rows} >= expected


def page(rows: Sequence[Row]) -> str:
    """The whole file."""
    placed, others = ([row for row in rows if (row.placement == UNPLACED) is one] for one in (False, True))
    parts = [HEAD, _table(placed)]
    if others:
        parts += [APART, _table(others)]
    return "".join(parts)


def _table(rows: Sequence[Row]) -> str:
    heading = ["fault", "placement", "launcher", "rank", "told after s", "all gone after s", "exit code", "kept"]
    cells = [heading, ["---"] * len(heading), *(row.cells() for row in rows)]
    if rows and all(row.placement == UNPLACED for row in rows):
        cells = [[cell for n, cell in enumerate(line) if n != 1] for line in cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)
