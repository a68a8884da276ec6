"""A few windows of each row as a picture: who does what when, from the Chrome traces of an experiment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import IO, TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from pearl_pp.config.reading import one_line
from pearl_pp.experiments.retained.plots import BLUE, GREEN, GREY, ORANGE, RED, plain
from pearl_pp.experiments.retained.recorded import Amount, Count, Name, Time, first_fault

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NUM_WINDOWS = 5
_US_PER_MS = 1e3
_MOST_RANKS = 256  # lanes of a picture that can still be drawn, all panels together
_LANES_OF_A_TITLE = 2
_LEAST_LABELLED = 0.018  # of the picture's width: narrower bars have no room for a number


class _Style(NamedTuple):
    """Rows are drawn from `bottom` to `top` of a lane of height 1."""

    colour: str
    hatch: str
    bottom: float
    top: float


_TARGET = _Style(BLUE, "", 0.08, 0.92)
_DRAFT = _Style(ORANGE, "", 0.08, 0.92)
_DROPPED_TARGET = _Style("#C6DCEB", "////", 0.08, 0.92)
_DROPPED_DRAFT = _Style("#FBE8C3", "////", 0.08, 0.92)
_MESSAGE = _Style(GREEN, "", 0.08, 0.92)

_STYLES: Mapping[str, Mapping[str, _Style]] = {
    "target": {"cancelled": _DROPPED_TARGET, "": _TARGET},
    "draft": {"rejected": _DROPPED_DRAFT, "discarded": _DROPPED_DRAFT, "": _DRAFT},
    "communication": {"": _MESSAGE},
    "hand-off": {"": _MESSAGE},
}
"""By track and fate of a bar; "" is any other fate. Tracks that are not here are left white."""

_LEGEND = (
    ("target pass (number: its chunk)", _TARGET),
    ("target pass of a cancelled chunk", _DROPPED_TARGET),
    ("draft pass", _DRAFT),
    ("draft pass whose token was rejected or dropped", _DROPPED_DRAFT),
    ("message", _MESSAGE),
)


@dataclass(frozen=True)
class Bar:
    """Times in ms from the start of the trace. track, fate: the names that a trace gives."""

    rank: int
    track: str
    fate: str
    start: float
    end: float
    chunk: int | None


class _Args(BaseModel):
    chunk: Count | None = None


class _Event(BaseModel):
    """A bar as a Chrome trace has it; times in microseconds."""

    pid: Annotated[int, Field(ge=0, lt=_MOST_RANKS, strict=True)]
    cat: Name
    name: Name
    ts: Time  # ranks set their clocks by messages: the first bars may be a little before the start
    dur: Amount
    args: _Args


@dataclass(frozen=True)
class Panel:
    """One row's trace."""

    title: str
    mode: str
    num_ranks: int
    bars: tuple[Bar, ...]

    @property
    def verdicts(self) -> list[float]:
        """When the last stage had judged a chunk."""
        return sorted(bar.end for bar in self.bars if bar.track == "verify")

    @property
    def rejections(self) -> list[float]:
        """When a chunk's last pass ended that brought a rejection."""
        last_rank = max((bar.rank for bar in self.bars if bar.track == "verify"), default=-1)
        rejected = [bar for bar in self.bars if bar.track == "target" and bar.fate == "rejected"]
        return sorted(bar.end for bar in rejected if bar.rank == last_rank)


def read_panel(path: Path, title: str) -> Panel:
    """From a Chrome trace.

    Raises:
        ValueError: not such a trace.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = [_Event.model_validate(row) for row in content["traceEvents"] if row["ph"] == "X"]
        bars = tuple(sorted((_bar(row) for row in rows), key=lambda bar: (bar.rank, bar.start)))
        mode = str(content["otherData"]["mode"])
    except ValidationError as error:
        raise ValueError(f"{path}: no trace of a run: a bar's {first_fault(error)}") from None
    except (OSError, LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: no trace of a run: {one_line(repr(error))}") from None
    num_ranks = max((bar.rank for bar in bars), default=0) + 1
    return Panel(title, mode, num_ranks, bars)


def plot_timeline(panels: Sequence[Panel], to: Path | IO[bytes], title: str) -> None:
    """A panel for each row with a lane for each rank, all on the same scale of time; PNG.

    The last of the panels are left out where all of them would be too many lanes, and the title says so.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    num_panels = len(panels)
    panels = _drawable(panels)
    span = _span(panels)
    num_lanes = sum(panel.num_ranks for panel in panels)
    figure = Figure(figsize=(12, 1.3 + 0.27 * num_lanes + 0.55 * len(panels)), layout="constrained")
    FigureCanvasAgg(figure)
    ratios = [panel.num_ranks + 0.6 for panel in panels]
    all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": ratios})[:, 0]
    for axes, panel in zip(all_axes, panels, strict=True):
        _draw(axes, panel, first_view(panel, span), span)
    all_axes[-1].set_xlabel("ms, from a verdict on", fontsize=9)
    all_axes[-1].tick_params(axis="x", labelsize=9)
    modes = " and ".join(sorted({panel.mode for panel in panels}))
    part = f", the first {len(panels)} of {num_panels} rows" if len(panels) < num_panels else ""
    figure.suptitle(f"{plain(title)} ({plain(modes)}{part})", fontsize=12, x=0.01, ha="left")
    figure.legend(*_legend(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.savefig(to, format="png", dpi=130, metadata={"Software": None})


def first_view(panel: Panel, span: float) -> float:
    """Where to look from: the first verdict after which accepted and rejected chunks are both seen, else the first."""
    verdicts, rejections = panel.verdicts, panel.rejections
    end = max((bar.end for bar in panel.bars), default=0.0)
    for start in verdicts:
        seen = [at for at in verdicts if start < at <= start + span]
        num_rejected = sum(start < at <= start + span for at in rejections)
        if start + span <= end and 0 < num_rejected < len(seen) - 1:
            return start
    return verdicts[0] if verdicts else min((bar.start for bar in panel.bars), default=0.0)


def _drawable(panels: Sequence[Panel]) -> Sequence[Panel]:
    """The first of them, as many as a picture has lanes for; a panel's title needs the room of two."""
    lanes = list(accumulate(panel.num_ranks + _LANES_OF_A_TITLE for panel in panels))
    return panels[: max(1, sum(number <= _MOST_RANKS for number in lanes))]


def _span(panels: Sequence[Panel]) -> float:
    """Some windows of the row whose windows are longest; ms."""
    gaps = [median(b - a for a, b in pairwise(panel.verdicts)) for panel in panels if len(panel.verdicts) > 1]
    ends = [bar.end for panel in panels for bar in panel.bars]
    return NUM_WINDOWS * max(gaps) if gaps else max(ends, default=1.0)


def _bar(event: _Event) -> Bar:
    start = event.ts / _US_PER_MS
    fate = event.name.removeprefix(event.cat).strip()
    return Bar(event.pid, event.cat, fate, start, start + event.dur / _US_PER_MS, event.args.chunk)


def _draw(axes: Axes, panel: Panel, start: float, span: float) -> None:
    for bar in panel.bars:
        if bar.track in _STYLES and bar.end > start and bar.start < start + span:
            _draw_bar(axes, bar, start, span)
    for at in panel.rejections:
        if start <= at <= start + span:
            axes.axvline(at - start, color=RED, linewidth=1.3, linestyle=(0, (4, 2)))
    for lane in range(1, panel.num_ranks):
        axes.axhline(lane, color=GREY, linewidth=0.4)
    axes.set_xlim(0, span)
    axes.set_ylim(panel.num_ranks, 0)
    axes.set_yticks([rank + 0.5 for rank in range(panel.num_ranks)], [f"rank {r}" for r in range(panel.num_ranks)])
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.set_title(plain(panel.title), loc="left", fontsize=10, pad=3)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_bar(axes: Axes, bar: Bar, start: float, span: float) -> None:
    styles = _STYLES[bar.track]
    style = styles.get(bar.fate, styles[""])
    left, right = max(0.0, bar.start - start), min(span, bar.end - start)
    place = ((left, bar.rank + style.bottom), right - left, style.top - style.bottom)
    axes.add_patch(_patch(*place, style))
    if bar.track == "target" and bar.chunk is not None and right - left > _LEAST_LABELLED * span:
        colour = "black" if style is _DROPPED_TARGET else "white"
        middle = ((left + right) / 2, bar.rank + 0.52)
        axes.text(*middle, str(bar.chunk), color=colour, fontsize=7.5, ha="center", va="center", clip_on=True)


def _patch(corner: tuple[float, float], width: float, height: float, style: _Style) -> Any:
    from matplotlib.patches import Rectangle

    edge = GREY if style.hatch else "white"
    return Rectangle(corner, width, height, facecolor=style.colour, hatch=style.hatch, edgecolor=edge, linewidth=0.4)


def _legend() -> tuple[Iterable[Any], Iterable[str]]:
    from matplotlib.lines import Line2D

    handles = [_patch((0, 0), 1, 1, style) for _, style in _LEGEND]
    rejection = Line2D([], [], color=RED, linewidth=1.3, linestyle=(0, (4, 2)))
    return [*handles, rejection], [*(label for label, _ in _LEGEND), "a verdict that rejects"]
