"""Files of synthetic shapes: found by name or path, refused in one line, updated in place."""

from __future__ import annotations

from pathlib import Path

import pytest

from pearl_pp.config import find_shape, read_shape
from pearl_pp.config.shape_file import FOLDERS, write_eps
from pearl_pp.errors import UserError

LINES = {
    "name": "small",
    "hidden_size": "64   # published",
    "intermediate_size": "96",
    "num_layers": "6",
    "num_heads": "4",
    "num_kv_heads": "2",
    "vocab_size": "256",
    "max_positions": "512",
    "draft": "{num_layers: 2}",
}


def write(folder: Path, **changes: str | None) -> Path:
    file = folder / "shape.yaml"
    lines = {key: value for key, value in (LINES | changes).items() if value is not None}
    file.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    return file


def test_defaults(tmp_path: Path) -> None:
    shape = read_shape(write(tmp_path))
    assert (shape.seed, shape.eps, shape.agreement, shape.draft.num_layers) == (0, 0.05, None, 2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_heads": None}, "num_heads: is missing"),
        ({"num_heads": None, "num_head": "4"}, "num_head: no such key; did you mean num_heads?"),
        ({"draft": "{layers: 2}"}, "draft.layers: no such key; did you mean num_layers?"),
        ({"draft": "{}"}, "draft.num_layers: is missing"),
        ({"draft": "2"}, "draft 2: must hold lines of the form name: value"),
        ({"draft": "{num_layers: 7}"}, "draft.num_layers 7: is more than the target's 6"),
        ({"num_layers": "0"}, "num_layers 0: must be greater than or equal to 1"),
        ({"num_layers": "six"}, "num_layers six: must be a whole number"),
        ({"hidden_size": "66"}, "num_heads 4: does not cut hidden_size 66 into even parts"),
        ({"num_kv_heads": "3"}, "num_kv_heads 3: does not divide num_heads 4"),
        ({"eps": "-0.1"}, "eps -0.1: must be greater than or equal to 0"),
        ({"agreement": "1.5"}, "agreement 1.5: must be less than or equal to 1"),
        ({"eps": ".nan"}, "eps nan: must be a finite number"),
    ],
)
def test_a_faulty_file_is_one_line_that_names_file_key_and_reason(
    changes: dict[str, str | None], reason: str, tmp_path: Path
) -> None:
    file = write(tmp_path, **changes)
    with pytest.raises(UserError) as caught:
        read_shape(file, "--target")
    assert str(caught.value) == f"--target {file}: {reason}"


def test_a_shape_is_a_name_or_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = FOLDERS[0]
    assert find_shape("cpu_small", "--shape") == checkout / "cpu_small.yaml"
    assert find_shape("synthetic:cpu_small", "--shape") == checkout / "cpu_small.yaml"
    assert find_shape("mine/shape.yml", "--shape") == Path("mine/shape.yml")
    with pytest.raises(UserError, match=r"^--shape synthetic:zzz: no such shape; there are .*cpu_small.*, or give a F"):
        find_shape("zzz", "--shape")
    # As installed: no checkout beside the package.
    installed = tmp_path / "share"
    installed.mkdir()
    (installed / "cpu_small.yaml").write_text((checkout / "cpu_small.yaml").read_text())
    monkeypatch.setattr("pearl_pp.config.shape_file.FOLDERS", (tmp_path / "nowhere", installed))
    assert find_shape("cpu_small", "--shape") == installed / "cpu_small.yaml"


def test_writing_eps_changes_two_values_and_nothing_else(tmp_path: Path) -> None:
    file = write(tmp_path)
    write_eps(file, file, 0.0123, 0.751)
    assert file.read_text() == "".join(f"{k}: {v}\n" for k, v in LINES.items()) + "eps: 0.0123\nagreement: 0.751\n"
    file = write(tmp_path, eps="0.05  # a guess", agreement="null")
    write_eps(file, tmp_path / "out.yaml", 0.2, 0.5)
    text = (tmp_path / "out.yaml").read_text()
    assert "\neps: 0.2  # a guess\nagreement: 0.5\n" in text
    assert "hidden_size: 64   # published\n" in text
    assert "eps: 0.05" in file.read_text()
    shape = read_shape(tmp_path / "out.yaml")
    assert (shape.eps, shape.agreement) == (0.2, 0.5)
