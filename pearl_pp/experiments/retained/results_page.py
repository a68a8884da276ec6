"""A page of results, made from records alone: `pearl-pp report docs/results/* --page docs/results.md`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pearl_pp.experiments.retained.captions import captions
from pearl_pp.experiments.retained.figures import lines, sweeps
from pearl_pp.experiments.retained.report import BARS, TIMELINE, read_folder
from pearl_pp.experiments.retained.store import RESULTS
from pearl_pp.experiments.retained.tables import markdown
from pearl_pp.files import write_whole

RECORDS = Path("docs/results")
PAGE = Path("docs/results.md")

_HEAD = """# Results

Made by `pearl-pp report docs/results/* --page docs/results.md` from the records below [{records}]({records}); nothing
here is typed by hand. What the words mean and how to make such records: [method.md](method.md)."""


def results_page(folders: Sequence[Path], page: Path) -> None:
    """Write a section for each folder of records, by the folders' names; pictures beside the records are shown.

    Raises:
        UserError: a folder has no records or something else in their place, or the page cannot be written.
    """
    write_whole("--page", page, page_text(folders, page))


def page_text(folders: Sequence[Path], page: Path) -> str:
    """What `results_page` writes; links are relative to `page`."""
    folders = sorted(folders, key=lambda folder: folder.name)
    records_at = os.path.relpath(folders[0].parent if folders else RECORDS, page.parent)
    sections = [_section(folder, page) for folder in folders] or ["No records have been kept yet."]
    return "\n\n".join([_HEAD.format(records=records_at), *sections]).rstrip() + "\n"


def kept_folders(below: Path = RECORDS) -> list[Path]:
    """Folders with records, by name."""
    return sorted(path.parent for path in below.glob(f"*/{RESULTS}"))


def _section(folder: Path, page: Path) -> str:
    records, skipped = read_folder(folder)
    there = [folder / name for name in (BARS, TIMELINE) if (folder / name).is_file()]
    pictures = [Path(os.path.relpath(path, page.parent)).as_posix() for path in there]
    kept = f"records: `{folder.name}/{RESULTS}`"
    about = [kept, *captions(records, skipped)]
    return markdown(lines(records), about, sweeps(records), pictures, level=2).rstrip()
