"""`pearl-pp bench profile`: what was measured comes back out of the profile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pearl_pp import cli
from pearl_pp.config import RunConfig, read_profile
from pearl_pp.experiments import measured_profile
from pearl_pp.experiments.measured_profile import Measured, Settings, profile_of, profile_text
from pearl_pp.experiments.measured_times import RankTimes, StageTimes, measured_costs, rank_times
from pearl_pp.planning.presets import resolve_placement
from pearl_pp.runtime.request import Prompt

SETTINGS = Settings(RunConfig(), [Prompt(text="a")], 2, 15, "x.yaml")
SIZES = {"num_layers": 8, "hidden_size": 64, "vocab_size": 4096, "kv_bytes_per_token": 2048}
DRAFT = {"num_layers": 2, "hidden_size": 32, "kv_bytes_per_token": 512}


def stage(ms: float, num_layers: int, *, layers_ms: float | None = None) -> StageTimes:
    seconds = [1e-3 * ms * factor for factor in (1.0, 1.5, 2.0)]
    return StageTimes(seconds, 1e-4 * ms, 1e-3 * (layers_ms or ms), 256, 1e-3 * 20 * ms, num_layers, 1000 * num_layers)


def measured(
    first: StageTimes, second: StageTimes, drafts: tuple[StageTimes, StageTimes], **changes: object
) -> Measured:
    """Hop on two ranks: replica 0 on rank 1, replica 1 on rank 0."""
    ranks = [RankTimes(first, {1: drafts[0]}, 8 * 10**9), RankTimes(second, {0: drafts[1]}, 16 * 10**9)]
    fields = {
        "ranks": ranks,
        "links": [[None, (50.0, 1.25)], [(60.0, 1.25), None]],
        "pair": {"target": SIZES, "draft": DRAFT, "dtype": "float32", "device": "cpu"},
        "acceptance": 0.7512345,
        "judged": 500,
    }
    return Measured(**(fields | changes))  # type: ignore[arg-type]


def test_equal_ranks_have_speed_one_and_the_stages_add_up() -> None:
    found = profile_of(measured(stage(10, 4), stage(10, 4), (stage(4, 2), stage(4, 2))), SETTINGS)
    assert found.target.pass_ms == pytest.approx((20, 30, 40))
    assert found.target.further_token_ms == pytest.approx(2)
    assert found.draft.pass_ms == pytest.approx((4, 6, 8))
    assert found.ranks.speed == (1, 1) and found.ranks.memory_gb == (8, 16)
    assert found.prefill_tokens_per_s == pytest.approx(256 / 0.4)
    assert (found.link_s(0, 1, 0), found.acceptance) == (pytest.approx(55e-6), 0.7512)
    assert (found.target.weights_gb, found.draft.weights_gb) == (pytest.approx(8e-6), pytest.approx(2e-6))


def test_a_card_half_as_fast_stretches_its_own_passes() -> None:
    """Six layers on the fast card take as long as three on the slow one; the draft takes twice as long there."""
    found = profile_of(measured(stage(12, 6), stage(8, 2), (stage(3, 2), stage(6, 2))), SETTINGS)
    fast, slow = found.ranks.speed
    assert fast / slow == pytest.approx(2, rel=1e-3)
    assert found.target_pass_s(0, 6, 1) == pytest.approx(0.012, rel=1e-3)
    assert found.target_pass_s(1, 2, 1) == pytest.approx(0.008, rel=1e-3)
    assert found.draft_pass_s(0, 2, 2) == pytest.approx(0.0045, rel=1e-3)
    assert found.draft_pass_s(1, 2, 2) == pytest.approx(0.009, rel=1e-3)


def test_the_head_makes_no_card_slower() -> None:
    found = profile_of(measured(stage(10, 4), stage(14, 4, layers_ms=10), (stage(4, 2), stage(4, 2))), SETTINGS)
    assert found.ranks.speed == (1, 1)
    assert found.target.one_token_ms == pytest.approx(24)


def test_links_that_differ_are_told_one_by_one() -> None:
    slow = [[None, (50.0, 1.25)], [(500.0, 0.1), None]]
    found = profile_of(measured(stage(1, 4), stage(1, 4), (stage(1, 2), stage(1, 2)), links=slow), SETTINGS)
    assert found.link_s(0, 1, 0) == pytest.approx(50e-6)
    assert found.link_s(1, 0, 10**6) == pytest.approx(500e-6 + 0.01)


@pytest.mark.parametrize("links", [None, [[None, (50.0, 1.25)], [(500.0, 0.1), None]]])
def test_the_file_reads_back_as_the_profile_and_says_where_numbers_come_from(links: object, tmp_path: Path) -> None:
    changes = {} if links is None else {"links": links}
    facts = measured(stage(10, 4), stage(11, 4), (stage(4, 2), stage(5, 2)), **changes)
    found = profile_of(facts, SETTINGS)
    path = tmp_path / "machine.yaml"
    path.write_text(profile_text(found, facts, SETTINGS))
    assert read_profile(str(path)) == found
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# Measured by pearl-pp bench profile")
    assert all("  # " in line for line in lines[1:] if not line.endswith(":") and not line.startswith("name"))


def test_the_simulator_gets_each_ranks_own_passes() -> None:
    ranks = measured(stage(10, 4), stage(11, 4), (stage(4, 2), stage(5, 2))).ranks
    again = [rank_times(json.loads(json.dumps(rank.record()))) for rank in ranks]
    costs = measured_costs(again, resolve_placement(RunConfig(placement="hop"), 2, 8, 2))
    assert [costs.target(rank, 1) for rank in (0, 1)] == pytest.approx([0.010, 0.011])
    assert costs.draft(1, 0, 0, 2) == pytest.approx(0.0075)
    assert costs.draft(0, 1, 0, 1) == pytest.approx(0.004)


def test_a_full_disk_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    facts = measured(stage(10, 4), stage(11, 4), (stage(4, 2), stage(5, 2)))
    monkeypatch.setattr(measured_profile, "measure", lambda *_: facts)
    monkeypatch.setattr(os, "replace", no_space)
    path = tmp_path / "machine.yaml"
    assert cli.main(["bench", "profile", "-n", "2", "--out", str(path)]) == 2
    assert capsys.readouterr().err == f"error: --out {path}: cannot be written: No space left on device\n"


@pytest.mark.slow
def test_a_short_real_measurement(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    options = ["-n", "2", "--repeats", "3", "--max-new-tokens", "16", "--prompt", "def f(x):", "--out", str(path)]
    command = [sys.executable, "-m", "pearl_pp.cli", "bench", "profile", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert (done.returncode, done.stderr) == (0, "")
    found = read_profile(str(path))
    assert len(found.target.times_ms) == len(found.draft.times_ms) == 12
    assert found.ratio > 1, "the target takes longer than its draft"
    assert found.num_ranks == 2 and 0 < found.acceptance < 1
    assert 0.5 < found.ranks.speed[0] / found.ranks.speed[1] < 2, "both ranks are processes of one machine"
    assert done.stdout.startswith("real      T ") and f"--emulate {path}" in done.stdout
