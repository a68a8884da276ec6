"""Every file under configs/ is read by the code that users would read it with."""

import json
from pathlib import Path

import pytest

from pearl_pp import builtin
from pearl_pp.config import RunConfig, read_placement_file, read_profile, read_shape
from pearl_pp.config.flags import parse_flags
from pearl_pp.experiments.retained.experiment_file import read_experiment_file

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
FILES = sorted(path for path in CONFIGS.rglob("*") if path.is_file() and path.name != "README.md")
READERS = {
    "runs": lambda path: parse_flags(["--config", path]),
    "placements": read_placement_file,
    "profiles": read_profile,
    "models": read_shape,
    "experiments": read_experiment_file,
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_every_file_parses(path: Path) -> None:
    folder = path.relative_to(CONFIGS).parts[0]
    assert folder in READERS, f"no reader for {path}: add one here"
    READERS[folder](str(path))


def test_the_quickstart_file_holds_defaults_only() -> None:
    assert parse_flags(["--config", str(CONFIGS / "runs" / "quickstart.yaml")]) == RunConfig()


def test_the_example_placement_fits_the_embedded_pair() -> None:
    placement = read_placement_file(str(CONFIGS / "placements" / "four_gpus_hop.yaml"))
    layers = [
        json.loads((folder / "config.json").read_text())["num_hidden_layers"]
        for folder in (builtin.TARGET_DIR, builtin.DRAFT_DIR)
    ]
    assert sum(placement.target) == layers[0]
    assert [replica[-1].layers[1] for replica in placement.replicas] == [layers[1]] * 2
