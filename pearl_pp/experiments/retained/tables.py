"""The tables of an experiment: Markdown to read, CSV to reckon with."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pearl_pp.errors import printable
from pearl_pp.experiments.retained.answer import answer, percent, percent_with_interval
from pearl_pp.experiments.retained.bootstrap import COVERAGE, MIN_PROMPTS, NUM_RESAMPLES
from pearl_pp.experiments.retained.comparison import Ratio
from pearl_pp.experiments.retained.figures import Line, Place
from pearl_pp.experiments.retained.machines import machine_names

NONE = "-"

FORMULAS = (
    "tokens/s: sum of (tokens - 1) over sum of seconds after the first token, over all runs; median [quartiles]: of "
    "single runs; runs: rounds x prompts",
    "retained: tokens/s over tokens/s of `dedicated`, PEARL with one more rank for the draft alone (one chunk in "
    "flight, p = number of stages, its best gamma); over `ar`, over `sd`: the same over plain decoding and plain "
    "speculative decoding at its best gamma. Each over the runs with equal prompt and round; [ ]: "
    f"{100 * COVERAGE:g} % interval, {NUM_RESAMPLES:,} bootstrap resamples of the prompts; none with fewer than "
    f"{MIN_PROMPTS} prompts",
    "MAT: mean length of the accepted runs between two rejections; acceptance: accepted / (accepted + rejected); per "
    "pass: tokens / target passes; first token: median",
    "sending: time in which ranks post messages, waiting: in which they wait for one, each of all ranks' time; idle: "
    "of each rank, in which it neither computes nor sends; hand-off: bytes moved to bring a replica of the draft up to "
    "date, over tokens",
    "text: answers equal to the oracle's (real: one-process `generate` of the target, or plain decoding with the same "
    "noise, or where the target fits no single device; emulated: the emulated target's own text)",
)

_SOURCES = {
    "real": "real: models ran; measured",
    "emulated": "emulated: processes, messages and verdicts are real, models slept for the times of a profile: no "
    "measurement of the cards that the profile names",
    "simulated": "simulated: times of a profile added up",
}


class _Column(NamedTuple):
    heading: str
    cell: Callable[[Line], str]
    is_number: bool = True


def markdown(
    lines: Sequence[Line],
    captions: Sequence[str] = (),
    sweeps: Mapping[tuple[Place, str], Mapping[str, float | None]] | None = None,
    pictures: Sequence[str] = (),
    level: int = 1,
) -> str:
    """The answer, a table of speeds, one of where they come from, and what the numbers are.

    Args:
        captions: what to say below the tables.
        sweeps: what rows were chosen from, with tokens/s.
        pictures: links to them.
        level: of the first heading.
    """
    modes = " and ".join(sorted({line.place.mode for line in lines})) or "nothing measured"
    titles = "; ".join(dict.fromkeys(line.place.title for line in lines)) or "Retained performance"
    mark = "#" * level
    parts = [answer(lines), f"{mark} {titles} ({modes})"]
    if level > 1:  # a section: its heading is what a reader looks for
        parts.reverse()
    if lines:
        parts += [f"{mark}# Speed ({modes})", _table(_speed_columns(lines), lines)]
        parts += [f"{mark}# Where it comes from ({modes})", _table(_detail_columns(lines), lines)]
    if sweeps:
        parts += [f"{mark}# What was chosen from, tokens/s ({modes})", _bullets(_sweep_lines(sweeps))]
    parts += [f"![{name.split('/')[-1].split('.')[0]}]({name})" for name in pictures]
    sources = [text for mode, text in _SOURCES.items() if any(line.place.mode == mode for line in lines)]
    parts += [f"{mark}# What the numbers are", _bullets([*sources, *FORMULAS, *captions])]
    text = "\n\n".join(parts)
    return "".join(f"{printable(line)}\n" for line in text.split("\n"))  # names may come from anybody


def csv_text(lines: Sequence[Line]) -> str:
    """A line for each row; shares and ratios as fractions, empty where there is no figure."""
    out = io.StringIO()
    rows = [_csv_row(line) for line in lines]
    writer = csv.DictWriter(out, list(rows[0]) if rows else ["experiment"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _speed_columns(lines: Sequence[Line]) -> list[_Column]:
    columns = [
        *_place_columns(lines),
        _Column("row", lambda line: f"`{line.name}`", is_number=False),
        _Column("ranks", lambda line: line.ranks),
        _Column("tokens/s", lambda line: _number(line.tokens_per_s, ".2f")),
        _Column(f"**retained** [{100 * COVERAGE:g} %]", lambda line: percent_with_interval(line.retained)),
        _Column("published", _published),
        _Column("over `ar`", lambda line: _times(line.over_plain)),
        _Column("over `sd`", lambda line: _times(line.over_speculative)),
        _Column("median [quartiles]", _median),
        _Column("runs", lambda line: f"{line.num_rounds} x {line.num_prompts}" + _missing(line)),
        _Column("simulated tokens/s", _simulated),
        _Column("text", _text, is_number=False),
        _Column("ran with", lambda line: line.how or NONE, is_number=False),
    ]
    return _without_empty(columns, lines)


def _detail_columns(lines: Sequence[Line]) -> list[_Column]:
    columns = [
        *_place_columns(lines),
        _Column("row", lambda line: f"`{line.name}`", is_number=False),
        _Column("MAT", lambda line: _number(line.mean_accepted_tokens, ".2f")),
        _Column("acceptance", lambda line: _percent(line.acceptance_rate)),
        _Column("per pass", lambda line: _number(line.tokens_per_target_pass, ".2f")),
        _Column("first token s", lambda line: _number(line.ttft_s, ".3f")),
        _Column("sending", lambda line: _percent(line.communication)),
        _Column("waiting", lambda line: _percent(line.waiting)),
        _Column("idle, rank by rank, %", lambda line: " ".join(f"{100 * s:.0f}" for s in line.idle) or NONE),
        _Column("hand-off bytes/token", lambda line: _number(line.handoff_bytes_per_token, ",.0f")),
    ]
    return _without_empty(columns, lines)


def _place_columns(lines: Sequence[Line]) -> list[_Column]:
    """Only those in which the lines differ."""
    names = machine_names(line.place.machine for line in lines)
    columns = [
        _Column("experiment", lambda line: line.place.title, is_number=False),
        _Column("case", lambda line: line.place.case, is_number=False),
        _Column("machine", lambda line: names[line.place.machine], is_number=False),
        _Column("mode", lambda line: line.place.mode, is_number=False),
    ]
    return [column for column in columns if len({column.cell(line) for line in lines}) > 1]


def _without_empty(columns: Sequence[_Column], lines: Sequence[Line]) -> list[_Column]:
    return [column for column in columns if any(column.cell(line) not in (NONE, "n/a") for line in lines)]


def _table(columns: Sequence[_Column], lines: Sequence[Line]) -> str:
    rows = [
        [column.heading for column in columns],
        ["---:" if column.is_number else "---" for column in columns],
        *([_escaped(column.cell(line)) for column in columns] for line in lines),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _escaped(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")


def _bullets(texts: Sequence[str]) -> str:
    return "\n".join(f"- {' '.join(text.split())}" for text in texts)


def _sweep_lines(sweeps: Mapping[tuple[Place, str], Mapping[str, float | None]]) -> list[str]:
    several = len({place for place, _ in sweeps}) > 1
    return [
        (f"{place.case}, " if several else "")
        + f"`{row}`: "
        + ", ".join(f"{name or 'as it is'} {_number(value, '.2f')}" for name, value in variants.items())
        for (place, row), variants in sweeps.items()
    ]


def _median(line: Line) -> str:
    if line.median is None or line.quartiles is None:
        return NONE
    return f"{line.median:.2f} [{line.quartiles[0]:.2f}, {line.quartiles[1]:.2f}]"


def _missing(line: Line) -> str:
    """Runs that an unfinished experiment still lacks."""
    lacking = line.num_rounds * line.num_prompts - line.num_runs
    return f" - {lacking}" if lacking else ""


def _published(line: Line) -> str:
    if line.published is None or line.published_percent is None:
        return NONE
    what = line.published.get("what")
    return f"{line.published_percent:.1f} %" + (f" ({what})" if what else "")


def _simulated(line: Line) -> str:
    if line.simulated_tokens_per_s is None:
        return NONE
    return f"{line.simulated_tokens_per_s:.2f} ({percent(line.of_simulated)} reached)"


def _text(line: Line) -> str:
    equal, different = line.text.num_equal, line.text.num_different
    if different:
        return f"**NO, {different} of {equal + different}**"
    if not equal:
        return "not comparable"
    silent = line.num_runs - equal
    return "equal" if not silent else f"equal ({silent} not comparable)"


def _times(ratio: Ratio | None) -> str:
    return NONE if ratio is None else f"{ratio.value:.2f}x"


def _percent(value: float | None) -> str:
    return NONE if value is None else percent(value)


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def _csv_row(line: Line) -> dict[str, Any]:
    place = line.place

    def bounds(name: str, values: Sequence[float] | None) -> dict[str, Any]:
        low, high = values or (None, None)
        return {f"{name}_low": low, f"{name}_high": high}

    def ratio(name: str, value: Ratio | None) -> dict[str, Any]:
        return {name: value and value.value} | bounds(name, value and value.interval)

    plain = ("tokens_per_s", "median", "acceptance_rate", "mean_accepted_tokens", "tokens_per_target_pass", "ttft_s")
    return (
        {"experiment": place.title, "digest": place.digest, "case": place.case, "mode": place.mode}
        | place.machine._asdict()
        | {
            "row": line.row,
            "variant": line.variant,
            "kind": line.kind,
            "num_ranks": line.num_ranks,
            "gamma": line.gamma,
        }
        | {"ran_with": line.how, "num_prompts": line.num_prompts, "num_rounds": line.num_rounds}
        | {"num_runs": line.num_runs}
        | {name: getattr(line, name) for name in plain}
        | bounds("quartile", line.quartiles)
        | ratio("retained", line.retained)
        | ratio("over_ar", line.over_plain)
        | ratio("over_sd", line.over_speculative)
        | {"published_retained_percent": line.published_percent}
        | {"simulated_tokens_per_s": line.simulated_tokens_per_s}
        | {"communication": line.communication, "waiting": line.waiting}
        | {"idle_of_ranks": " ".join(f"{share:.4f}" for share in line.idle)}
        | {"handoff_bytes_per_token": line.handoff_bytes_per_token}
        | {"num_texts_equal": line.text.num_equal, "num_texts_different": line.text.num_different}
    )
