"""A record of one line per run, and what has become slower since the line before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pearl_pp.errors import UserError
from pearl_pp.experiments.figures import headline

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
        UserError: a line is no record.
    """
    file = Path(path)
    if not file.exists():
        return None
    found = None
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if record["configuration"] == configuration:
                found = record
        except (ValueError, KeyError, TypeError):
            raise UserError("--record", path, f"line {number} is not a record of bench overhead") from None
    return found


def append(path: str, record: Mapping[str, Any]) -> None:
    """Adds one line."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")


def changes(record: Mapping[str, Any], before: Mapping[str, Any]) -> list[Change]:
    """The figures that both records have."""
    then = headline(before)
    return [
        Change(name, then[name][0], value, more_is_better)
        for name, (value, more_is_better) in headline(record).items()
        if name in then
    ]
