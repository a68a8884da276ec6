"""`pearl-pp report DIR.. --out DIR`: results of several experiments, or machines, in one table and one picture."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pearl_pp.console.arguments import parse_arguments
from pearl_pp.errors import UserError

USAGE = """usage: pearl-pp report DIR [DIR ..] [--out DIR]
       pearl-pp report DIR [DIR ..] --page FILE.md

  Makes table.md, table.csv and retained.png of the records in folders that pearl-pp bench retained has made, on this
  machine or on others. Of one folder without --out: its own tables and pictures, once more.

  --out DIR        where they go
  --page FILE.md   one page with the tables of all folders, one after another"""

_OPTIONS = ("--out", "--page")


def report(arguments: Sequence[str]) -> int:
    """Merge and write; returns the exit code. Raises UserError."""
    if not arguments or "-h" in arguments or "--help" in arguments:
        print(USAGE)
        return 0 if arguments else UserError.exit_code
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("folders", nargs="*")
    for option in _OPTIONS:
        parser.add_argument(option)
    given = parse_arguments(parser, arguments, _OPTIONS, "pearl-pp report")
    if not given.folders:
        raise UserError("pearl-pp report", None, "say which folders, as in pearl-pp report results")
    named = {"folder": given.folders, "--out": [given.out], "--page": [given.page]}
    for option, names in named.items():
        if "" in names:
            raise UserError(option, None, "needs a name")
    if given.out is not None and given.page is not None:
        raise UserError("--page", given.page, "takes the place of --out; give one of them")
    out, page = (name and Path(name) for name in (given.out, given.page))
    _write([Path(name) for name in given.folders], out, page)
    return 0


def _write(folders: Sequence[Path], out: Path | None, page: Path | None) -> None:
    from pearl_pp.experiments.retained.report import TABLE, merge_report, write_report
    from pearl_pp.experiments.retained.results_page import results_page

    if page is not None:
        results_page(folders, page)
        print(f"wrote {page}")
        return
    if out is not None:
        merge_report(folders, out)
    elif len(folders) == 1:
        out = folders[0]
        write_report(out)
    else:
        raise UserError("--out", None, "say where the table of several folders goes")
    print(f"{(out / TABLE).read_text(encoding='utf-8').strip()}\n\nwrote {out / TABLE}")
