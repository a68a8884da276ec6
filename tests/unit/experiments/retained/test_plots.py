"""Pictures: what is in them, found on the axes before they become pixels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pearl_pp.experiments.retained import timeline
from pearl_pp.experiments.retained.figures import lines
from pearl_pp.experiments.retained.plots import plot_retained
from pearl_pp.experiments.retained.timeline import Bar, Panel, first_view, plot_timeline, read_panel
from tests.unit.experiments.retained.made_up import experiment, record, trace


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures that were saved."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: Any, **options: Any) -> None:
        figures.append(figure)
        save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def test_a_dollar_sign_in_a_name_is_no_mathematics(tmp_path: Path) -> None:
    plot_retained(lines([record("cost $x_{$", 1.0, case="$x_{$")]), tmp_path / "retained.png")
    panel = Panel("cost $x_{$", "real", 1, (Bar(0, "target", "target accepted", 0.0, 1.0, None),))
    plot_timeline([panel], tmp_path / "timeline.png", "$x_{$")


def test_a_long_title_still_says_whether_the_numbers_are_real(drawn: list[Figure], tmp_path: Path) -> None:
    experiment = {"name": "x", "title": "x" * 200, "digest": "d"}
    plot_retained(lines([record("ar", 1.0, experiment=experiment)]), tmp_path / "retained.png")
    assert drawn[0].axes[0].get_title(loc="left").endswith("... (emulated)")
    panel = Panel("hop", "real", 1, (Bar(0, "target", "accepted", 0.0, 1.0, None),))
    plot_timeline([panel], tmp_path / "timeline.png", "x" * 200)
    assert drawn[1].get_suptitle().endswith("... (real)")


def test_a_bar_for_each_row_with_its_interval_and_the_published_mark(drawn: list[Figure], tmp_path: Path) -> None:
    plot_retained(lines(experiment()), tmp_path / "retained.png")
    axes = drawn[0].axes[0]
    bars = {p.get_y() + p.get_height() / 2: p.get_width() for p in axes.patches if isinstance(p, Rectangle)}
    names = {tick: label.get_text() for tick, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)}
    widths = {names[at]: width for at, width in ((round(at, 6), width) for at, width in bars.items())}
    assert widths == pytest.approx({"ar (4)": 50, "dedicated (5)": 100, "hop (4)": 98, "pipelined (4)": 120})
    marks = [line for line in axes.lines if line.get_marker() == "D"]
    assert [float(mark.get_xdata()[0]) for mark in marks] == [94.0]
    assert any(list(line.get_xdata()) == [100, 100] for line in axes.lines)
    assert "emulated" in axes.get_title(loc="left")
    assert "%" in axes.get_xlabel()
    assert (tmp_path / "retained.png").read_bytes()[:4] == b"\x89PNG"


def test_texts_in_the_picture_do_not_overlap(drawn: list[Figure], tmp_path: Path) -> None:
    records = [r for case in ("one case", "another case") for r in experiment(case=case)]
    plot_retained(lines(records), tmp_path / "retained.png")
    axes = drawn[0].axes[0]
    drawn[0].draw_without_rendering()
    labels = [text for text in (*axes.texts, *axes.get_yticklabels()) if text.get_text()]
    boxes = [text.get_window_extent() for text in labels]
    assert len(labels) == 2 * (1 + 2 * 4)  # a title and twice as many texts as bars
    assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])


def test_without_a_reference_other_quantities_are_drawn(drawn: list[Figure], tmp_path: Path) -> None:
    plain = [r for r in experiment() if r["key"]["row"] != "dedicated"]
    plot_retained(lines(plain), tmp_path / "a.png")
    plot_retained(lines([record("hop", 10.0)]), tmp_path / "b.png")
    plot_retained([], tmp_path / "c.png")
    assert [figure.axes[0].get_xlabel().split(";")[0] for figure in drawn] == [
        "times the tokens/s of ar",
        "tokens/s",
        "tokens/s",
    ]


def written(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_panel_for_each_row_and_a_lane_for_each_rank(drawn: list[Figure], tmp_path: Path) -> None:
    two, four = (read_panel(written(tmp_path / f"{n}.json", trace(n)), f"row {n}") for n in (2, 4))
    plot_timeline([two, four], tmp_path / "timeline.png", "A few windows")
    first, second = drawn[0].axes
    assert [len(axes.get_yticks()) for axes in (first, second)] == [2, 4]
    assert first.get_xlim() == second.get_xlim() == (0, pytest.approx(5 * 4.0))  # five windows of the slower one
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["row 2", "row 4"]
    title = drawn[0].get_suptitle()
    assert title == "A few windows (emulated)"
    chunks = {text.get_text() for text in second.texts}
    assert len(chunks) >= 5


def test_passes_lie_in_the_lane_of_their_rank_and_look_like_their_fate(drawn: list[Figure], tmp_path: Path) -> None:
    bars = (
        Bar(0, "target", "accepted", 0.0, 1.0, 0),
        Bar(1, "target", "cancelled", 1.0, 2.0, 0),
        Bar(0, "draft", "accepted", 1.0, 2.0, None),
        Bar(1, "draft", "discarded", 0.0, 1.0, None),
        Bar(0, "waiting", "", 2.0, 3.0, None),
    )
    plot_timeline([Panel("row", "real", 2, bars)], tmp_path / "t.png", "title")
    patches = [p for p in drawn[0].axes[0].patches if isinstance(p, Rectangle)]
    assert len(patches) == 4  # waiting is left white
    assert [int(p.get_y()) for p in patches] == [0, 1, 0, 1]
    assert [bool(p.get_hatch()) for p in patches] == [False, True, False, True]
    assert len({p.get_facecolor() for p in patches}) == 4


def test_the_view_shows_rejections_and_acceptances(tmp_path: Path) -> None:
    content = trace(2)
    calm = [row for row in content["traceEvents"] if row["ph"] != "X" or "rejected" not in row["name"]]
    late = [row for row in calm if row.get("cat") != "target" or row["args"]["chunk"] != 8]
    rejected = {"ph": "X", "pid": 1, "cat": "target", "name": "target rejected", "ts": 17000, "dur": 1000}
    late.append(rejected | {"args": {"chunk": 8}})
    panel = read_panel(written(tmp_path / "late.json", content | {"traceEvents": late}), "late")
    start = first_view(panel, 8.0)
    assert start < 18.0 <= start + 8.0
    quiet = read_panel(written(tmp_path / "calm.json", content | {"traceEvents": calm}), "calm")
    assert first_view(quiet, 8.0) == quiet.verdicts[0]


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    for number, text in enumerate(("", "[]", '{"traceEvents": [{"ph": "X"}]}')):
        path = tmp_path / f"{number}.json"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match="no trace"):
            read_panel(path, "")


def test_more_panels_than_a_picture_has_room_for_are_left_out(
    drawn: list[Figure], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "_MOST_RANKS", 10)
    bar = Bar(0, "target", "accepted", 0.0, 1.0, None)
    panels = [Panel(f"row {n}", "real", ranks, (bar,)) for n, ranks in enumerate((3, 3, 1))]
    plot_timeline(panels, tmp_path / "t.png", "title")
    assert [axes.get_title(loc="left") for axes in drawn[0].axes] == ["row 0", "row 1"]
    assert drawn[0].get_suptitle() == "title (real, the first 2 of 3 rows)"


def test_what_is_wrong_with_a_bar_is_told_plainly(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", {"traceEvents": [{"ph": "X", "pid": 0, "cat": "a", "name": "a", "ts": "x"}]})
    with pytest.raises(ValueError, match=r"t\.json: no trace of a run: a bar's ts must be a number$"):
        read_panel(path, "")
