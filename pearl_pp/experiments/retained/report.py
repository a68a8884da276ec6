"""The tables and pictures of an experiment's folder, or of several folders together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pearl_pp.errors import UserError
from pearl_pp.experiments.retained.captions import captions
from pearl_pp.experiments.retained.comparison import Record
from pearl_pp.experiments.retained.figures import Line, lines, place_of, sweeps
from pearl_pp.experiments.retained.plots import plot_retained
from pearl_pp.experiments.retained.store import Skipped, read_records, read_skipped, trace_path
from pearl_pp.experiments.retained.tables import csv_text, markdown
from pearl_pp.experiments.retained.timeline import plot_timeline, read_panel
from pearl_pp.files import replacing, write_whole, writing

TABLE, CSV, BARS, TIMELINE = "table.md", "table.csv", "retained.png", "timeline.png"
OPTION = "report"


def write_report(out: Path) -> None:
    """Write table.md, table.csv, retained.png and, where there are traces, timeline.png beside a folder's records.

    Raises:
        UserError: no records, a line that is none, or a folder that cannot be written.
    """
    records, skipped = read_folder(out)
    pictures = [BARS, *([TIMELINE] if _write_timeline(out, lines(records)) else [])]
    _write(records, skipped, out, pictures)


def merge_report(folders: Sequence[Path], out: Path) -> None:
    """Write one table and one picture of the records of several folders to `out`.

    Raises:
        UserError: as for one folder; or a run is in two of the folders, made on the same machine.
    """
    read = [read_folder(folder) for folder in folders]
    records = merged([(folder, of_folder) for folder, (of_folder, _) in zip(folders, read, strict=True)])
    skipped = [one for _, of_folder in read for one in of_folder]
    with writing("--out", out):
        out.mkdir(parents=True, exist_ok=True)
    _write(records, skipped, out, [BARS])


def merged(folders: Sequence[tuple[Path, Sequence[Record]]]) -> list[Record]:
    """All records, folder by folder; raises UserError where the same machine made the same run twice."""
    made_in: dict[tuple[object, ...], Path] = {}
    records: list[Record] = []
    for folder, of_folder in folders:
        for record in of_folder:
            run = (place_of(record), *sorted(record["key"].items()))
            if run in made_in:
                other = made_in[run]
                raise UserError(OPTION, folder, f"has runs of the same machine that {other} has, too; leave one out")
            made_in[run] = folder
            records.append(record)
    return records


def read_folder(folder: Path) -> tuple[list[Record], list[Skipped]]:
    """All records of a folder, and what was not run; raises UserError for a file that is not what a bench writes."""
    return list(read_records(folder, option=OPTION)), read_skipped(folder, OPTION)


def _write(records: Sequence[Record], skipped: Sequence[Skipped], out: Path, pictures: Sequence[str]) -> None:
    of_rows = lines(records)
    with replacing("--out", out / BARS) as picture:
        plot_retained(of_rows, picture)
    text = markdown(of_rows, captions(records, skipped), sweeps(records), pictures)
    write_whole("--out", out / CSV, csv_text(of_rows))
    write_whole("--out", out / TABLE, text)


def _write_timeline(out: Path, of_rows: Sequence[Line]) -> bool:
    """The picture of the first case that has traces; whether there is one."""
    traced = [line for line in of_rows if _trace(out, line).is_file()]
    if not traced:
        return False
    place = traced[0].place
    fastest: dict[str, Line] = {}  # of each row's sweep
    for line in traced:
        if line.place == place:
            fastest[line.family] = max(line, fastest.get(line.family, line), key=lambda one: one.tokens_per_s or 0.0)
    try:
        panels = [read_panel(_trace(out, line), _panel_title(line)) for line in fastest.values()]
    except ValueError as error:
        raise UserError(OPTION, out, f"{error}; remove it to do without its picture") from None
    case = "" if place.case in place.title else f", {place.case}"
    title = f"A few windows of: {place.title}{case}"
    with replacing("--out", out / TIMELINE) as picture:
        plot_timeline(panels, picture, title)
    return True


def _trace(out: Path, line: Line) -> Path:
    return trace_path(out, line.place.case, line.row)


def _panel_title(line: Line) -> str:
    return f"{line.row}, {line.ranks} ranks: {line.how}"
