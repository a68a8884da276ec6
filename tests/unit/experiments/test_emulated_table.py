"""Every row of the emulated tables is a run that can be made, and is compared with a row that exists."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pearl_pp.config import RunConfig
from pearl_pp.experiments.emulated_table import TABLES, Bench, Row
from pearl_pp.runtime.loading import open_pair
from pearl_pp.simulation.costs import Overheads

ROWS = [row for rows in TABLES.values() for row in rows()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_a_placement_that_fits_its_ranks(row: Row, tmp_path: Path) -> None:
    config = RunConfig(**Bench(tmp_path, 30).options(row))
    pair = open_pair(config, row.num_ranks, torch.device("cpu"))
    assert pair.placement.world_size == row.num_ranks
    assert row.reference in {"", *(other.name for other in ROWS)}


def test_simulated_rows_reach_what_they_must(tmp_path: Path) -> None:
    """Without overheads; the least values are for emulated runs."""
    bench = Bench(tmp_path, 2000)
    speeds = {row.name: bench.simulate(row, Overheads()).decode_tokens_per_s for row in TABLES["must"]()}
    for row in TABLES["must"]():
        if row.reference:
            assert 100 * speeds[row.name] / speeds[row.reference] >= row.least, row.name
