"""A record of one line per run, and what has become slower since the line before."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from pearl_pp.config.reading import read_text
from pearl_pp.errors import UserError
from pearl_pp.experiments.figures import headline
from pearl_pp.files import encoded, writing

OPTION = "--record"
REGRESSION = 0.1


class Change(NamedTuple):
    """A figure now and before; `change` is relative to before, None where that was 0 or is unknown."""

    name: str
    before: float | None
    now: float | None
    more_is_better: bool

    @property
    def change(self) -> float | None:
        if self.now is None or not self.before:
            return None
        return (self.now - self.before) / abs(self.before)

    @property
    def is_regression(self) -> bool:
        """Worse by more than a tenth."""
        change = self.change or 0.0
        return (-change if self.more_is_better else change) > REGRESSION


def previous(path: str, configuration: Mapping[str, Any]) -> dict[str, Any] | None:
    """The last line of the file with an equal `configuration`; None if there is none, or no file.

    Raises:
        UserError: the file cannot be read, or a line is no record that the next one could be compared with.
    """
    if not os.path.exists(path):
        return None
    found = None
    for number, line in enumerate(read_text(OPTION, path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = _checked(json.loads(line))
        # Whatever a line of another kind raises on the way to its figures.
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            raise UserError(OPTION, path, f"line {number} is not a record of bench overhead") from None
        if record["configuration"] == configuration:
            found = record
    return found


def _checked(record: dict[str, Any]) -> dict[str, Any]:
    """The record, if it has all that the next one is compared with; else one of several errors."""
    if not isinstance(record["configuration"], dict) or not isinstance(record["date"], str):
        raise TypeError("is of another kind")
    for value, _ in headline(record).values():
        if value is not None and not math.isfinite(value):
            raise ValueError("is no figure")
    return record


def append(path: str, record: Mapping[str, Any]) -> None:
    """Adds one line, or none; raises UserError where it cannot be written."""
    line = encoded(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    with writing(OPTION, path), open(path, "ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        try:
            while line:
                line = line[file.write(line) :]
        except OSError:
            file.truncate(before)
            raise


def changes(record: Mapping[str, Any], before: Mapping[str, Any]) -> list[Change]:
    """The figures that both records have."""
    then = headline(before)
    return [
        Change(name, then[name][0], value, more_is_better)
        for name, (value, more_is_better) in headline(record).items()
        if name in then
    ]
