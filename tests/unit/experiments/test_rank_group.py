"""A group of ranks in which a run fails."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pearl_pp.experiments import emulated_table
from pearl_pp.experiments.emulated_rows import Row
from pearl_pp.experiments.emulated_table import Bench
from pearl_pp.experiments.rank_group import RankGroup
from tests.unit.simulation.machines import save_profile

FAST = {"target__pass_ms": 2.0, "draft__pass_ms": 0.25}


def test_a_failed_run_ends_the_group_at_once(tmp_path: Path) -> None:
    good = {"emulate": save_profile(tmp_path, **FAST), "placement": "hop"}
    with RankGroup(2) as group:
        assert group.run(good, 5, 2, exact_pace=True).num_tokens == 5
        started = time.monotonic()
        with pytest.raises(RuntimeError, match="leaves no room in a context of 4"):
            group.run(good | {"max_model_len": 4}, 5, 6, exact_pace=True)
        assert time.monotonic() - started < 30
        assert group.closed


def test_the_next_row_after_a_failed_one_has_ranks_of_its_own(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 4)
    row = Row("plain", 2, "even_c12", 0.7, {"strategy": "ar"})
    try:
        with pytest.raises(RuntimeError):
            bench.emulate(Row("broken", 2, "even_c12", 0.7, {"placement": "nowhere.yaml"}))
        assert bench.emulate(row).num_tokens == 4
    finally:
        bench.close()


def test_a_measurement_that_fails_ends_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(Bench, "close", lambda self: closed.append("once"))
    monkeypatch.setattr(Bench, "measured_overheads", lambda self, num_ranks: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        emulated_table.measure([Row("plain", 2, "even_c12", 0.7)], 4, 1)
    assert len(closed) == 1
