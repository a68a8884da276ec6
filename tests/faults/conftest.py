"""The option that names a file for the table of faults."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults-table", metavar="FILE", help="write the table of faults in all placements here")
