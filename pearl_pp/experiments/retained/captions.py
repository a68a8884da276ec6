"""What stands below a table of results: where, when and of what they were made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pearl_pp.experiments.retained.comparison import Record
from pearl_pp.experiments.retained.job import MEASURE
from pearl_pp.experiments.retained.machines import Machine, machine_names, machine_of
from pearl_pp.experiments.retained.store import Skipped


def captions(records: Sequence[Record], skipped: Sequence[Skipped] = ()) -> list[str]:
    """A line for each machine, then for what the runs said of themselves, then for what was not run."""
    return [*_machine_lines(records), *_note_lines(records), *_skipped_lines(skipped)]


def _machine_lines(records: Sequence[Record]) -> Iterator[str]:
    of_machine: dict[Machine, list[Record]] = defaultdict(list)
    for record in records:
        of_machine[machine_of(record["machine"])].append(record)
    names = machine_names(of_machine)
    for machine, made in of_machine.items():
        dates = sorted(record["started_at"] for record in made if record.get("started_at"))
        counted = [record for record in made if record["key"]["phase"] == MEASURE]
        told = [
            names[machine],
            f"{len(counted)} runs that count over {len({r['key']['prompt'] for r in counted})} prompts",
            *([f"{dates[0][:16]} to {dates[-1][:16]}".replace("T", " ")] if dates else []),
            *_load(made),
            *_versions(made),
        ]
        yield "; ".join(told)


def _load(records: Iterable[Record]) -> list[str]:
    loads = sorted(value for record in records for value in _numbers(record["machine"].get("load")))
    return [f"1-minute load {loads[0]:.1f} to {loads[-1]:.1f}, its own processes included"] if loads else []


def _numbers(load: Any) -> list[float]:
    """The load average of a run: a number, or several by name."""
    if isinstance(load, Mapping):
        return [value for value in load.values() if value is not None]
    return [] if load is None else [load]


def _versions(records: Iterable[Record]) -> list[str]:
    """Every version that was met, of each library."""
    met: dict[str, dict[str, None]] = defaultdict(dict)
    for record in records:
        for library, version in (record.get("versions") or {}).items():
            met[library][str(version)] = None
    return (
        [", ".join(f"{library} {' and '.join(versions)}" for library, versions in sorted(met.items()))] if met else []
    )


def _note_lines(records: Sequence[Record]) -> Iterator[str]:
    """What runs say of themselves, once, with the rows that say it."""
    rows: dict[str, dict[str, None]] = defaultdict(dict)
    all_rows = dict.fromkeys(record["key"]["row"] for record in records if record["key"]["phase"] == MEASURE)
    for record in records:
        if record["key"]["phase"] == MEASURE:
            for note in record.get("notes") or ():
                rows[note][record["key"]["row"]] = None
    for note, said_by in rows.items():
        who = "every row" if len(said_by) == len(all_rows) > 1 else ", ".join(f"`{row}`" for row in said_by)
        yield f"{who}: {note}"


def _skipped_lines(skipped: Iterable[Skipped]) -> Iterator[str]:
    """One for each row and reason: many prompts are told as their number."""
    prompts: dict[tuple[str, str, str, bool], list[str]] = defaultdict(list)
    for one in skipped:
        row = f"{one.row} {one.variant}".strip()
        prompts[one.case, row, one.reason, one.failed].append(one.prompt)
    for (case, row, reason, failed), names in prompts.items():
        known = [name for name in names if name]
        which = "" if not known else f" with {known[0]}" if len(known) == 1 else f" with {len(known)} prompts"
        yield f"**not run{which}**: `{row}` ({case}){', broke off' if failed else ''}: {reason}"
