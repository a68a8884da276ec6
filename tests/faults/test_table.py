"""Every fault in every placement, and a table of it: docs/faults.md is the one of a whole run."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.faults.expected import EXPECTED, check
from tests.faults.scene import NUM_PROMPTS, Scene
from tests.faults.table import APART, HEAD, NUM_RANKS, ROWS, AddRow, Row, name_of

pytestmark = pytest.mark.alone

FEW_PROMPTS = 8  # where the run goes on to its end
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "faults.md"


def pick_rank(what: str, placement: str) -> int:
    if what == "meets_a_full_disk":
        return 0  # writes the record
    if what.startswith("sends"):  # activations leave every stage but the last
        return 0 if placement == "dedicated" else random.randrange(NUM_RANKS - 1)
    return random.randrange(NUM_RANKS)


@pytest.mark.long
@pytest.mark.parametrize(("what", "placement", "launcher"), ROWS)
def test_every_fault_in_every_placement(
    what: str, placement: str, launcher: str, tmp_path: Path, table: AddRow
) -> None:
    goes_on = EXPECTED[what].exit_code == 0
    rank, num_prompts = pick_rank(what, placement), FEW_PROMPTS if goes_on else NUM_PROMPTS
    after, options = random.randrange(60), ["--placement", placement]
    print(f"on rank {rank}, {after} slots after the first answers")
    scene = Scene(tmp_path, what, rank, after, options, launcher, NUM_RANKS, num_prompts)
    scene.arm()
    if what == "is_interrupted":
        scene.interrupt()
    outcome = scene.outcome(100.0)
    check(outcome, what, rank, launcher, scene.record)
    if goes_on:
        assert len(outcome.finished) == num_prompts
    told = outcome.told_s(EXPECTED[what].told_by(launcher, rank, scene.record))
    name = name_of(what)
    ended_s = None if goes_on else outcome.ended_s
    table(Row(name, placement, launcher, rank, told, ended_s, outcome.exit_code, len(outcome.finished)))


def test_the_committed_table_is_of_these_tests(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--faults-table"):
        pytest.skip("the table is being made")
    text = re.sub(r"machine of \d+ cores", "machine of N cores", DOCUMENT.read_text(encoding="utf-8"))
    assert text.startswith(re.sub(r"machine of \d+ cores", "machine of N cores", HEAD)), "make it again"
    for what, placement, launcher in ROWS:
        assert f"\n| {name_of(what)} | {placement} | {launcher} | " in text
    assert APART in text
