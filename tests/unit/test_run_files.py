"""Every file of configs/runs is a run that the command line accepts."""

from pathlib import Path

import pytest
import yaml

from pearl_pp.config import run_config

_FILES = sorted((Path(__file__).parents[2] / "configs" / "runs").glob("*.yaml"))


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_a_run_file_gives_the_run_it_names(path):
    options = yaml.safe_load(path.read_text(encoding="utf-8"))
    config = run_config(options)
    assert config.non_default().items() <= options.items()
    assert all(config.record()[name] == value for name, value in options.items())


def test_there_are_run_files():
    assert {"ar", "sd", "hop", "coupled"} <= {path.stem for path in _FILES}
