"""Every known failure of other engines that this suite answers for is named by a test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
NUM_ROWS = {"V": 5, "E": 6, "S": 8, "C": 6, "A": 5, "N": 4, "P": 6, "M": 2, "T": 2, "U": 3, "H": 2}
ROWS = [f"{kind}{n}" for kind, count in NUM_ROWS.items() for n in range(1, count + 1)]


def case_ids(source: str) -> set[str]:
    """Ids of the `case` marks on the tests of one file, those of single parameters included."""
    tests = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.lower().startswith("test")
    )
    calls = (call for test in tests for decorator in test.decorator_list for call in ast.walk(decorator))
    return {
        str(argument.value)
        for call in calls
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "case"
        for argument in call.args
        if isinstance(argument, ast.Constant)
    }


def test_marks_are_read_from_tests_alone() -> None:
    source = """
# pytest.mark.case("A1")
@pytest.mark.case("A2", "A3")
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.case("A4"))])
def test_one(x): ...

@pytest.mark.case("A5")
def helper(): ...
"""
    assert case_ids(source) == {"A2", "A3", "A4"}


@pytest.fixture(scope="module")
def named() -> set[str]:
    return set().union(*(case_ids(path.read_text()) for path in ROOT.rglob("test_*.py")))


@pytest.mark.parametrize("row", ROWS)
def test_a_test_names_the_row(row: str, named: set[str]) -> None:
    assert row in named
