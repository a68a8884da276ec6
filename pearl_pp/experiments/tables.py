"""The tables of `pearl-pp bench overhead`; every caption names formulas and says that numbers are real."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from pearl_pp.experiments.history import REGRESSION, Change
from pearl_pp.experiments.windows import PARTS


def print_record(console: Console, record: Mapping[str, Any]) -> None:
    """All tables of one record."""
    machine = record["machine"]
    load = ", ".join(f"{when} {value:.2f}" for when, value in machine["load"].items())
    console.print(f"real, on {machine['cpu']}, {machine['cores']} cores, device {machine['device']}; 1-min load {load}")
    console.print(passes_table(record["passes"], record["context"]))
    console.print(speed_table(record))
    best = [entry for entry in record["configurations"] if entry["best"] and entry["windows"]]
    console.print(windows_table(best))
    console.print(parts_table(best))


def passes_table(passes: Mapping[str, Any], context: int) -> Table:
    """Our passes beside transformers' own."""
    table = _table(
        "One pass, one thread",
        f"real; ms: median of single passes after {context} tokens of context, all in turn; transformers: model(x, "
        "cache=DynamicCache()), unsplit, in inference mode; ratio: median of (our stages added / transformers) over "
        "passes made side by side",
        ("model", "tokens", "each stage ms", "together ms", "transformers ms", "ratio"),
    )
    for name in ("target", "draft"):
        for number, both in passes.items():
            one = both[name]
            stages = " + ".join(f"{ms:.2f}" for ms in one["stages_ms"])
            numbers = [f"{one[key]:.2f}" for key in ("together_ms", "transformers_ms")]
            table.add_row(name, number, stages, *numbers, f"{one['ratio']:.3f}")
    return table


def speed_table(record: Mapping[str, Any]) -> Table:
    """Speeds of all configurations and their ratios."""
    ratios = "; ".join(f"{name} = {_number(value, '.3f')}" for name, value in record["ratios"].items())
    table = _table(
        f"Speed: {ratios}",
        "real; tokens/s: median over rounds and prompts of (tokens-1) / time after the first; over all: sum over sum; "
        "a ratio of two configurations: median over rounds and prompts of tokens/s over tokens/s, each at its best "
        "gamma (*: highest tokens/s); of simulated: median of tokens/s over those of the simulator, fed with "
        "the passes measured on these ranks in turn, free messages and the verdicts of the very run; acceptance "
        "= accepted / (accepted+rejected); per pass: tokens/target pass; text: every answer equal to "
        "transformers' greedy generate on the unsplit target in one process",
        ("configuration", "ranks", "gamma", "tokens/s", "of simulated", "over all", "acceptance", "per pass", "text"),
    )
    for entry in record["configurations"]:
        speed = entry["speed"]
        gamma = "-" if entry["gamma"] is None else str(entry["gamma"])
        table.add_row(
            entry["name"] + (" *" if entry["best"] else ""),
            str(entry["ranks"]),
            gamma,
            _number(speed["tokens_per_s"], ".2f"),
            _number(speed["of_simulated"], ".1%"),
            _number(speed["all_tokens_per_s"], ".2f"),
            _number(speed["acceptance_rate"], ".1%"),
            _number(speed["tokens_per_target_pass"], ".2f"),
            {True: "equal", False: "DIFFERS", None: "n/a (sampled)"}[entry["text_equals_oracle"]],
            style="red" if entry["text_equals_oracle"] is False else None,
        )
    return table


def windows_table(entries: Sequence[Mapping[str, Any]]) -> Table:
    """Window times beside the ideal, of the configurations at their best gamma."""
    table = _table(
        "Time per window",
        "real; window: from a verdict to the next, median; T: the stages' passes over the window's chunk, added, "
        "median; t: draft pass, median over all ranks (times the shards of a replica); gamma: tokens per p slots; "
        "T and t from the same runs, both models running; ideal = max(T p/N, gamma t), and where one token is fed, as "
        "after a restart, max(T, gamma t)",
        ("configuration", "windows", "number", "window ms", "T ms", "gamma", "t ms", "ideal ms", "window - ideal ms"),
    )
    for entry in entries:
        windows = entry["windows"]
        for kind, row in windows["kinds"].items():
            table.add_row(
                entry["name"],
                kind,
                str(row["num_windows"]),
                *(f"{row[key]:.2f}" for key in ("window_ms", "target_ms")),
                _number(windows["gamma"], "g" if float(windows["gamma"] or 0).is_integer() else ".2f"),
                _number(windows["draft_pass_ms"], ".2f"),
                *(f"{row[key]:.2f}" for key in ("ideal_ms", "excess_ms")),
            )
        table.add_section()
    return table


def parts_table(entries: Sequence[Mapping[str, Any]]) -> Table:
    """Where the time of a window goes: on the critical path, and on each rank."""
    table = _table(
        "Inside a window: ms",
        "real; means over the middle half of the windows by length, so that parts add up to the window; critical path: "
        "the stages' passes over the window's chunk, and between two of them what the receiving rank does, or, while "
        "it waits, the sender until it has sent; messages: posting; waiting: for a message to arrive; python: the rest",
        ("configuration", "where", *PARTS, "window"),
    )
    for entry in entries:
        figures = entry["windows"]["parts"]
        table.add_row(entry["name"], "critical path", *_cells(figures["path"]))
        for rank, numbers in enumerate(figures["ranks"]):
            table.add_row(entry["name"], f"rank {rank}", *_cells(numbers))
        table.add_section()
    return table


def changes_table(changes: Iterable[Change], date: str) -> Table:
    """This run beside the last one of the same configuration; red where it is worse."""
    table = _table(
        f"Since {date}",
        f"real; change = (now - before) / before; red: worse by more than {REGRESSION:.0%}",
        ("figure", "before", "now", "change"),
    )
    for change in changes:
        values = [_number(value, ".3f") for value in (change.before, change.now)]
        style = "red" if change.is_regression else None
        table.add_row(change.name, *values, _number(change.change, "+.1%"), style=style)
    return table


def _table(title: str, caption: str, columns: Sequence[str]) -> Table:
    table = Table(
        title=title, caption=caption, title_justify="left", caption_justify="left", box=box.SIMPLE, pad_edge=False
    )
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    return table


def _cells(numbers: Mapping[str, float]) -> list[str]:
    return [f"{numbers[name]:.2f}" for name in PARTS] + [f"{sum(numbers.values()):.2f}"]


def _number(value: float | None, form: str) -> str:
    return "n/a" if value is None else format(value, form)
