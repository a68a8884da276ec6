"""Every file of configs/experiments is an experiment, and says at its top what for, how long and with which command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pearl_pp.config import read_profile, read_shape
from pearl_pp.config.shape_file import PREFIX, find_shape
from pearl_pp.experiments.retained.experiment_file import read_experiment_file
from pearl_pp.experiments.retained.resolving import open_experiment

ROOT = Path(__file__).resolve().parents[4]
FILES = sorted((ROOT / "configs" / "experiments").glob("*.yaml"))
EXPECTED = {
    "quick",
    "embedded",
    "cpu_small",
    "gpus_llama2",
    "table8",
    "ablation",
    "gamma_sweep",
    "p_sweep",
    "slow_links",
    "mixed_cards",
    "num_ranks",
    "acceptance",
}


@pytest.fixture(autouse=True)
def _from_the_projects_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files name profiles as a user in a checkout does."""
    monkeypatch.chdir(ROOT)


def test_there_is_a_file_for_each_question() -> None:
    assert {path.stem for path in FILES} >= EXPECTED


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_says_what_for_how_long_and_how_to_run_it(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = "\n".join(line for line in lines[: lines.index(next(x for x in lines if not x.startswith("#")))])
    assert "?" in comment or path.stem in ("cpu_small", "gpus_llama2")
    assert re.search(r"\b(minutes|hour)\b", comment)
    command = (
        rf"^#   pearl-pp bench (retained|ablation|sweep) --config configs/experiments/{path.stem}\.yaml --out out/"
    )
    assert re.search(command + path.stem + "$", comment, re.MULTILINE)
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_can_be_run_and_all_that_it_names_is_there(path: Path) -> None:
    experiment = open_experiment(str(path))
    assert experiment.name == path.stem
    for case in experiment.cases:
        placements = {row.options.get("placement") for row in case.rows}
        assert "ar" in {row.name for row in case.rows} and "dedicated" in placements, "what others are compared with"
        for model in (case.config.target, case.config.draft):
            if model is not None and model.startswith(PREFIX):
                read_shape(find_shape(model, "target"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_case_has_cards_enough_for_one_more_rank(path: Path) -> None:
    """`dedicated` runs on N + 1 ranks: a profile that has but N would lose the row that all are compared with."""
    experiment = read_experiment_file(str(path))
    for case in experiment.cases or ():
        profile = (experiment.options | case.options).get("emulate")
        if profile is None:
            continue
        cards = case.ranks["speed"] if case.ranks else read_profile(profile).ranks.speed
        assert len(cards) > (case.num_ranks or experiment.num_ranks)
