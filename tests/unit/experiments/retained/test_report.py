"""Folders in, tables and pictures out; the committed page is what the committed records give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pearl_pp.cli import main
from pearl_pp.errors import UserError
from pearl_pp.experiments.retained import report
from pearl_pp.experiments.retained.report import merge_report, write_report
from pearl_pp.experiments.retained.results_page import PAGE, kept_folders, page_text, results_page
from tests.unit.experiments.retained.made_up import MACHINE, experiment, record, reference_metrics, trace, write

RANK = dict.fromkeys(("target_s", "draft_s", "verify_s", "move_s", "wait_s"), 0.1)
REPOSITORY = Path(__file__).parents[4]


def test_a_folder_gets_both_tables_and_both_pictures(tmp_path: Path) -> None:
    out = write(tmp_path / "out", experiment())
    (out / "traces").mkdir()
    for row in ("hop", "dedicated"):
        (out / "traces" / f"case.{row}.json").write_text(json.dumps(trace()), encoding="utf-8")
    write_report(out)
    names = {path.name for path in out.iterdir()}
    assert names == {"results.jsonl", "traces", "table.md", "table.csv", "retained.png", "timeline.png"}
    text = (out / "table.md").read_text(encoding="utf-8")
    assert "![retained](retained.png)" in text and "![timeline](timeline.png)" in text


def test_without_traces_there_is_no_timeline_and_no_link_to_one(tmp_path: Path) -> None:
    out = write(tmp_path, experiment())
    write_report(out)
    assert not (out / "timeline.png").exists()
    assert "timeline" not in (out / "table.md").read_text(encoding="utf-8")


def test_what_was_not_run_is_in_the_table(tmp_path: Path) -> None:
    out = write(tmp_path, experiment())
    skipped = [
        {"case": "case", "row": "sharded", "variant": "", "prompt": "", "reason": "does not fit", "failed": False}
    ]
    (out / "skipped.json").write_text(json.dumps(skipped), encoding="utf-8")
    write_report(out)
    assert "**not run**: `sharded` (case): does not fit" in (out / "table.md").read_text(encoding="utf-8")


def test_a_report_without_runs_can_be_written(tmp_path: Path) -> None:
    out = write(tmp_path, [])
    write_report(out)
    assert (out / "table.md").read_text(encoding="utf-8").startswith("No run that counts")


def test_machines_stand_beside_one_another(tmp_path: Path) -> None:
    here = write(tmp_path / "here", experiment())
    there = write(tmp_path / "there", experiment(machine=MACHINE | {"hostname": "there"}))
    merge_report([here, there], tmp_path / "both")
    text = (tmp_path / "both" / "table.md").read_text(encoding="utf-8")
    assert "2 cores (here)" in text and "2 cores (there)" in text
    assert (tmp_path / "both" / "retained.png").is_file()
    assert len((tmp_path / "both" / "table.csv").read_text(encoding="utf-8").splitlines()) == 1 + 2 * 4


def test_the_same_run_of_the_same_machine_twice_is_refused(tmp_path: Path) -> None:
    one, two = (write(tmp_path / name, experiment()) for name in ("one", "two"))
    for folders in ([one, two], [one, one]):
        with pytest.raises(UserError, match=r"leave one out") as refused:
            merge_report(folders, tmp_path / "both")
        assert "\n" not in str(refused.value)
    assert not (tmp_path / "both").exists()


def test_other_experiments_of_the_same_machine_can_be_merged(tmp_path: Path) -> None:
    other = {"name": "other", "title": "Other", "digest": "d2"}
    folders = [write(tmp_path / "a", experiment()), write(tmp_path / "b", experiment(experiment=other))]
    merge_report(folders, tmp_path / "both")
    assert "| experiment |" in (tmp_path / "both" / "table.md").read_text(encoding="utf-8")


def test_a_folder_without_records_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"report .*holds no results.jsonl"):
        merge_report([tmp_path], tmp_path / "out")
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="cannot be written"):
        merge_report([write(tmp_path / "a", experiment())], tmp_path / "file" / "out")


def test_a_picture_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report, "plot_timeline", full)
    out = write(tmp_path, experiment())
    (out / "traces").mkdir()
    (out / "traces" / "case.hop.json").write_text(json.dumps(trace()), encoding="utf-8")
    with pytest.raises(UserError, match="cannot be written: No space left"):
        write_report(out)


def test_the_page_is_made_of_records_alone(tmp_path: Path) -> None:
    kept = tmp_path / "docs" / "results"
    write(kept / "b", [record("hop", 12.5)])
    first = write(kept / "a", experiment())
    write_report(first)
    page = tmp_path / "docs" / "results.md"
    results_page(kept_folders(kept), page)
    text = page.read_text(encoding="utf-8")
    assert text.index("98.0 %") < text.index("12.50")
    assert "](results/a/retained.png)" in text and "results/b/retained.png" not in text
    assert text == page_text(kept_folders(kept), page)
    assert text.count("\n# ") == 0 and text.startswith("# Results")


def test_the_commands_write_or_say_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, page = write(tmp_path / "a", experiment()), tmp_path / "page.md"
    assert main(["report", str(folder), "--page", str(page)]) == 0
    assert "98.0 %" in page.read_text(encoding="utf-8")
    assert main(["report", str(folder), "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main(["report", str(tmp_path / "none"), "--page", str(page)]) == 2
    assert main(["report", str(folder), str(folder), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_the_committed_page_is_what_the_committed_records_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    committed = PAGE.read_text(encoding="utf-8")
    assert committed == page_text(kept_folders(), PAGE), "run pearl-pp report docs/results/* --page docs/results.md"


@pytest.mark.parametrize("damaged", [b"", b'{"traceEvents": [', b"[]", b"\xff", b'{"traceEvents": [{"ph": "X"}]}'])
def test_a_damaged_trace_is_one_line(tmp_path: Path, damaged: bytes) -> None:
    out = write(tmp_path, experiment())
    (out / "traces").mkdir()
    (out / "traces" / "case.hop.json").write_bytes(damaged)
    with pytest.raises(UserError, match=r"case\.hop\.json: no trace of a run: ") as refused:
        write_report(out)
    assert "\\n" not in str(refused.value) and "validation error" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"metrics": None}, "metrics must be .*"),
        ({"metrics": {}}, r"metrics\.num_output_tokens is missing"),
        ({"experiment": {}}, r"experiment\.name is missing"),
        ({"machine": None}, "machine must be .*"),
        ({"mode": ["x"]}, "mode must be a text"),
        ({"plan": 3}, "plan must be .*"),
        (
            {"metrics": {**reference_metrics(5.0), "per_rank": [RANK]}},
            "metrics has a per_rank, and no total_s that they share",
        ),
    ],
)
def test_a_record_that_lacks_something_is_named(tmp_path: Path, change: dict[str, object], told: str) -> None:
    out = write(tmp_path / "out", [record("ar", 5.0), record("hop", 5.0) | change])
    for make in (lambda: write_report(out), lambda: merge_report([out], tmp_path), lambda: results_page([out], out)):
        with pytest.raises(
            UserError, match=rf"^report .*results\.jsonl: line 2 is not a whole record of a run: {told}$"
        ):
            make()


@pytest.mark.parametrize("name", ["decode_s", "decode_tokens_per_s", "total_s"])
def test_a_time_that_makes_endless_speeds_is_no_record(name: str, tmp_path: Path) -> None:
    one = record("ar", 5.0)
    out = write(tmp_path / "out", [one | {"metrics": one["metrics"] | {name: 1e-320}}])
    with pytest.raises(
        UserError, match=rf"line 1 is not a whole record of a run: metrics\.{name} must be 0, or at least"
    ):
        write_report(out)


def test_extremes_that_are_accepted_can_be_drawn(tmp_path: Path) -> None:
    least = record("ar", 5.0)
    least = least | {"metrics": least["metrics"] | {"decode_s": 1e15, "num_decode_tokens": 1}}
    most = record("hop", 5.0)
    most = most | {"metrics": most["metrics"] | {"decode_s": 1e-9, "num_decode_tokens": 10**15}}
    write_report(write(tmp_path, [least, most]))
    assert (tmp_path / "retained.png").is_file()


def test_a_damaged_list_of_what_was_not_run_is_named_as_the_command_is(tmp_path: Path) -> None:
    out = write(tmp_path / "out", experiment())
    for content in (b"{}", b"\xff", b"[" * 100_000, b'[{"case": 1}]'):
        (out / "skipped.json").write_bytes(content)
        for make in (lambda: write_report(out), lambda: merge_report([out], tmp_path / "both")):
            with pytest.raises(UserError, match=r"^report .*skipped\.json: (is not a list|line 1 is not UTF-8)"):
                make()


def test_a_page_in_a_folder_whose_name_is_no_text_can_be_written(tmp_path: Path) -> None:
    folder = write(tmp_path / "caf\udce9" / "a", [record("hop", 12.5)])
    results_page([folder], tmp_path / "page.md")
    assert "caf\\udce9" in (tmp_path / "page.md").read_text(encoding="utf-8")
