"""The option that names a file for the table of faults, and what puts rows into it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.table import AddRow, Row, is_whole, page


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults-table", metavar="FILE", help="write the table of faults in all placements here")


@pytest.fixture(scope="session")
def table(request: pytest.FixtureRequest) -> Iterator[AddRow]:
    """Takes rows; all are written to the file of --faults-table, if no test has failed and none is missing."""
    rows: list[Row] = []
    yield rows.append
    path = request.config.getoption("--faults-table")
    if path and is_whole(rows) and not request.session.testsfailed:
        Path(path).write_text(page(rows), encoding="utf-8")
