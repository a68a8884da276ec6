"""The tables at the end of a run. Every number has the name and formula of DESIGN section 9."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.table import Table

from pearl_pp.runtime.request import RequestOutput

NOT_AVAILABLE = "n/a"

# heading, metric, format
COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("tokens", "num_output_tokens", "d"),
    ("tokens/s", "decode_tokens_per_s", ".2f"),
    ("TTFT s", "ttft_s", ".3f"),
    ("acceptance", "acceptance_rate", ".1%"),
    ("mean accepted", "mean_accepted_tokens", ".2f"),
    ("tokens/target pass", "tokens_per_target_pass", ".2f"),
)

SOURCES = {
    "real": "measured in a real run",
    "emulated": "emulated: models slept for the times of a profile, messages were real",
}
"""What a table says of its numbers, by the run's mode."""

FORMULAS = (
    "tokens/s = (tokens-1) / time after the first; TTFT = time to the first verified "
    "token; acceptance = accepted / (accepted+rejected); mean accepted = mean run of accepted tokens between "
    "two rejections; n/a: no such rate"
)


class Line(NamedTuple):
    """What is kept of a request until the run is over: little, as a run may have many.

    Args:
        numbers: the metrics of `COLUMNS`; None where a rate does not exist.
        was_refused: its prompt could not be run at all.
    """

    numbers: tuple[float | None, ...]
    finish_reason: str | None
    error: str | None
    was_refused: bool

    @property
    def num_output_tokens(self) -> float:
        return self.numbers[0] or 0


def line_of(output: RequestOutput) -> Line:
    """The line of a finished request."""
    numbers = tuple(output.metrics.get(name) for _, name, _ in COLUMNS)
    was_refused = output.error is not None and not output.prompt_token_ids
    return Line(numbers, output.finish_reason, output.error, was_refused)


def requests_table(lines: Sequence[Line], totals: Mapping[str, Any], mode: str = "real") -> Table:
    """A row for each request and one for all of them."""
    caption = f"{SOURCES[mode]}; {FORMULAS}"
    table = Table(box=box.SIMPLE, caption=caption, caption_justify="left", pad_edge=False)
    table.add_column("prompt", justify="right")
    for heading, _, _ in COLUMNS:
        table.add_column(heading, justify="right")
    table.add_column("end")
    for number, line in enumerate(lines, start=1):
        end = "error" if line.error is not None else line.finish_reason or NOT_AVAILABLE
        table.add_row(_marked(str(number), mode), *_cells(line.numbers), end)
    if len(lines) > 1:
        table.add_section()
        table.add_row(_marked("all", mode), *_cells([totals.get(name) for _, name, _ in COLUMNS]), "")
    return table


def per_rank_table(ranks: Sequence[Mapping[str, Any]], mode: str = "real") -> Table:
    """Where each rank's time went, the median of its passes, and its memory."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("rank", justify="right")
    keys = [key for key in ranks[0] if key.endswith(("_s", "_ms")) or key in ("planned_bytes", "peak_bytes")]
    for key in keys:
        table.add_column(_heading(key), justify="right")
    for number, rank in enumerate(ranks):
        table.add_row(_marked(str(rank.get("rank", number)), mode), *(_rank_cell(key, rank.get(key)) for key in keys))
    return table


def _marked(name: str, mode: str) -> str:
    """The name of a row; every row of numbers says so if they are not real."""
    return name if mode == "real" else f"{mode} {name}"


def cell(value: object, form: str) -> str:
    """A number as text; `n/a` for a rate that does not exist."""
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return format(value, form) if is_number else NOT_AVAILABLE


def _cells(numbers: Sequence[float | None]) -> list[str]:
    return [cell(number, form) for number, (_, _, form) in zip(numbers, COLUMNS, strict=True)]


def _heading(key: str) -> str:
    for ending, unit in (("_s", " s"), ("_ms", " ms"), ("_bytes", " MiB")):
        if key.endswith(ending):
            return key.removesuffix(ending).replace("_", " ") + unit
    return key.replace("_", " ")


def _rank_cell(key: str, value: object) -> str:
    if key.endswith("_bytes") and isinstance(value, int | float):
        return cell(value / 2**20, ",.1f")
    return cell(value, ".2f" if isinstance(value, float) else ",d")
