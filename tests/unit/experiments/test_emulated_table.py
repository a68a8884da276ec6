"""Every row of the emulated tables is a run that can be made, and is compared with a row that exists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pearl_pp.config import RunConfig, read_profile
from pearl_pp.errors import UserError
from pearl_pp.experiments import emulated_table
from pearl_pp.experiments.emulated_rows import TABLES, Row, profile_path
from pearl_pp.experiments.emulated_run import EmulatedRun
from pearl_pp.experiments.emulated_table import Bench
from pearl_pp.runtime.loading import open_pair
from pearl_pp.schedule.placement import Placement, Shard
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
            assert run["num_tokens"] == 4 and run["first_token_s"] > 0 and run["tokens_per_s"] > 0
        free, slower = (timeline["first_token_s"] for timeline in row["simulated"])
        assert free < slower
    out = capsys.readouterr().out
    assert "ms to the first token" in out and "% (<= 500)" in out


def test_a_row_that_cannot_run_leaves_the_ranks_to_the_next(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 4)
    try:
        with pytest.raises(UserError, match="nowhere"):
            bench.emulate(Row("broken", 2, "even_c12", 0.7, {"placement": "nowhere.yaml"}))
        assert bench.emulate(Row("plain", 2, "even_c12", 0.7, {"strategy": "ar"})).num_tokens == 4
    finally:
        bench.close()


def test_a_measurement_that_fails_ends_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(Bench, "close", lambda self: closed.append("once"))
    monkeypatch.setattr(Bench, "measured_overheads", lambda self, num_ranks: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        emulated_table.measure([Row("plain", 2, "even_c12", 0.7)], 4, 1)
    assert len(closed) == 1


def test_what_a_pass_takes_beyond_the_profile_is_the_largest_of_all_ranks() -> None:
    """T = 120 ms on two even stages, t = 15 ms on rank 1."""
    profile = read_profile(str(profile_path("even_c8")))
    layers, draft_layers = profile.target.num_layers, profile.draft.num_layers
    replica = (Shard(1, 0, draft_layers),)
    placement = Placement("mine", (layers // 2, layers // 2), (replica,), 1, 2, None, "catchup").record()
    ranks = [
        {"target_pass_ms": 63.0, "draft_pass_ms": 0.0, "sleep_overrun_s": 0.25},
        {"target_pass_ms": 99.0, "draft_pass_ms": 15.5, "sleep_overrun_s": 0.125},
    ]
    metrics = {"num_output_tokens": 11, "ttft_s": 0.5, "decode_s": 2.0, "per_rank": ranks}
    run = EmulatedRun.of({"metrics": metrics, "plan": {"placement": placement}}, profile)
    assert run.pass_overhead_s == pytest.approx(3e-3) and run.sleep_overrun_s == 0.25
    assert run.tokens_per_s == 5.0 and run.total_s == 2.5
