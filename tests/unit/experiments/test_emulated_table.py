"""Every row of the emulated tables is a run that can be made, and is compared with a row that exists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pearl_pp.config import RunConfig
from pearl_pp.experiments import emulated_table
from pearl_pp.experiments.emulated_rows import TABLES, Row
from pearl_pp.experiments.emulated_table import Bench
from pearl_pp.runtime.loading import open_pair
from pearl_pp.simulation.costs import FREE, Overheads

ROWS = {row.name: row for table in TABLES.values() for row in table.rows()}


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)
def test_a_row_is_a_placement_that_fits_its_ranks(row: Row, tmp_path: Path) -> None:
    config = RunConfig(**Bench(tmp_path, 30).options(row))
    pair = open_pair(config, row.num_ranks, torch.device("cpu"))
    assert pair.placement.world_size == row.num_ranks
    assert row.reference in {"", *ROWS}


def test_simulated_rows_reach_what_they_must(tmp_path: Path) -> None:
    """Without overheads; the bounds are for emulated runs."""
    bench = Bench(tmp_path, 2000)
    rows = [bench.at_best_gamma(row) if row.sweeps else row for row in TABLES["must"].rows()]
    speeds = {row.name: bench.simulate(row, Overheads()).decode_tokens_per_s for row in rows}
    for row in rows:
        if row.reference:
            assert 100 * speeds[row.name] / speeds[row.reference] >= row.least, row.name


def test_a_prompt_in_pieces_is_simulated_in_pieces(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 2000)
    rows = TABLES["prefill"].rows()
    times = {row.name: bench.simulate(row, FREE).verdicts[0][0] for row in rows}
    for row in rows:
        if row.reference:
            assert times[row.name] < times[row.reference]
        if row.most:
            assert 100 * times[row.name] / times[row.reference] <= row.most


def test_the_best_gamma_is_taken_where_a_row_sweeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """c = 5: passes of 0.8 slots on a rank of their own lose nothing, so no gamma beats the exact pace."""
    bench = Bench(tmp_path, 100)
    row = Row("dedicated", 5, "even_c5", 0.7, {"placement": "dedicated"}, sweeps=True)
    assert bench.at_best_gamma(row).options.get("gamma", 5) == 5
    assert capsys.readouterr().out.startswith("dedicated: ")
    # On two stages a pass of 0.4 slots fits twice between two chunks; told to be as long as a slot it is half as fast.
    shared = Row("shared", 2, "even_c5", 0.7, {"placement": "hop", "gamma": 1})
    best = bench.at_best_gamma(shared)
    assert best.options.get("gamma") != 1


def test_all_runs_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A measurement on ranks of its own, with both tables of figures."""
    monkeypatch.setattr(emulated_table.Bench, "measured_overheads", lambda self, num_ranks: Overheads(1e-3))
    plain = Row("plain", 2, "even_c12", 0.7, {"strategy": "ar"}, num_tokens=4)
    other = Row("again", 2, "even_c12", 0.7, {"strategy": "ar"}, reference="plain", most=500, num_tokens=4)
    path = tmp_path / "runs.json"
    emulated_table.measure([plain, other], 4, 2, first_token=True, path=str(path))
    content = json.loads(path.read_text())
    assert content["mode"] == "emulated"
    assert [row["name"] for row in content["rows"]] == ["plain", "again"]
    for row in content["rows"]:
        assert len(row["emulated"]) == 2 and len(row["simulated"]) == 2
        for run in row["emulated"]:
            assert run["num_tokens"] == 4 and run["first_token_s"] == run["verdict_times"][0] > 0
        free, slower = (timeline["first_token_s"] for timeline in row["simulated"])
        assert free < slower
    out = capsys.readouterr().out
    assert "ms to the first token" in out and "% (<= 500)" in out
