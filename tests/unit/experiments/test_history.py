"""The record file: one line a run, and what became slower."""

import io
import json
import resource
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pearl_pp import cli
from pearl_pp.errors import UserError
from pearl_pp.experiments import history, overhead, tables
from tests.unit.experiments.synthetic import record


def test_lines_are_added_and_the_last_of_the_same_configuration_is_found(tmp_path: Path) -> None:
    path = str(tmp_path / "record.jsonl")
    assert history.previous(path, {"ranks": 4}) is None
    other = record() | {"configuration": {"ranks": 2}}
    for number, line in enumerate((record(), record(), other)):
        history.append(path, line | {"number": number})
    assert [json.loads(line)["number"] for line in Path(path).read_text().splitlines()] == [0, 1, 2]
    found = history.previous(path, {"ranks": 4})
    assert found is not None and found["number"] == 1
    assert history.previous(path, {"ranks": 3}) is None


@pytest.mark.parametrize("line", ["{", "[]", "{}", '"x"'])
def test_a_file_of_something_else_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(json.dumps(record()) + "\n\n" + line + "\n")
    with pytest.raises(UserError, match="line 3 is not a record"):
        history.previous(str(path), {})


def test_a_regression_is_worse_by_more_than_a_tenth() -> None:
    now = record(tokens_per_s=89.0, excess_ms=2.1, draft_ratio=0.56, ratio=1.6)
    found = {c.name: c for c in history.changes(now, record())}
    assert found["hop tokens/s"].change == pytest.approx(-0.11)
    assert {name for name, c in found.items() if c.is_regression} == {
        "hop tokens/s",
        "draft pass / transformers, 1 tokens",
    }
    assert not history.Change("x", 100.0, 91.0, True).is_regression
    assert not history.Change("x", 100.0, 150.0, True).is_regression


def test_of_a_figure_below_zero_the_direction_stays_right() -> None:
    assert history.Change("excess", -2.0, 1.0, False).is_regression
    assert not history.Change("excess", -2.0, -3.0, False).is_regression
    assert history.Change("excess", 0.0, 1.0, False).change is None
    assert history.Change("hop/dedicated", None, 1.0, True).change is None


def test_a_regression_shows_in_red() -> None:
    changes = history.changes(record(ratio=1.2), record())
    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system="standard", width=120).print(
        tables.changes_table(changes, "then")
    )
    red = [line for line in out.getvalue().splitlines() if "\x1b[31m" in line]
    assert len(red) == 1
    assert "hop/ar" in red[0] and "-20.0%" in red[0]


@pytest.mark.parametrize(
    "content", [b"\xff\n", b"[" * 100_000, b'{"configuration": {}, "date": "x"}'], ids=["bytes", "nested", "no figures"]
)
def test_a_file_that_cannot_be_compared_with_is_told_before_anything_is_measured(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(overhead, "measure", lambda *_: pytest.fail("measured"))
    path = tmp_path / "record.jsonl"
    path.write_bytes(content)
    assert cli.main(["bench", "overhead", "--record", str(path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: --record {path}: line 1 is not ") and told.count("\n") == 1


@pytest.mark.parametrize("value", ["fast", 10**400, float("nan"), [1], {}], ids=["text", "huge", "nan", "list", "dict"])
def test_a_figure_that_is_no_number_is_refused(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text(json.dumps(record() | {"ratios": {"hop/ar": value}}) + "\n")
    with pytest.raises(UserError, match="line 1 is not a record"):
        history.previous(str(path), {})


def test_a_full_disk_is_one_line_and_leaves_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    history.append(str(path), record())
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, hard))
    try:
        with pytest.raises(UserError, match=r"^--record .*record\.jsonl: cannot be written: File too large$"):
            history.append(str(path), record())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
