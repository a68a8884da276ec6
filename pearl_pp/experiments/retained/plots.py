"""The picture of an experiment: a bar for each row, in groups by case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from pearl_pp.config.reading import shortened
from pearl_pp.experiments.retained.comparison import DEDICATED, PLAIN, Ratio
from pearl_pp.experiments.retained.figures import Line, Place
from pearl_pp.experiments.retained.machines import machine_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, RED, SKY, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
"""Okabe and Ito's colours, which the colour-blind tell apart."""

GREY = "#999999"
_COLOURS = (BLUE, ORANGE, GREEN, SKY, PURPLE, RED, "#F0E442", "#000000")
_HATCHES = ("", "//", "..", "xx")
_LONGEST_NAME = 60  # characters that still leave room for bars
_BAR = 0.8  # of the room that a bar has


class _Bar(NamedTuple):
    """value: with an interval where there is one. published: what others found."""

    name: str
    value: float
    interval: tuple[float, float] | None
    published: float | None


class _Group(NamedTuple):
    title: str
    bars: list[_Bar]


class _Quantity(NamedTuple):
    """What bars show, in which unit, and the row that is 1 (None: no row is)."""

    label: str
    ratio: Callable[[Line], Ratio | None]
    reference: str | None
    factor: float = 1.0
    form: str = ".2f"


_QUANTITIES = (
    _Quantity(
        f"retained: % of the tokens/s of {DEDICATED} (N + 1 ranks)", lambda line: line.retained, DEDICATED, 100, ".1f"
    ),
    _Quantity(f"times the tokens/s of {PLAIN}", lambda line: line.over_plain, PLAIN),
    _Quantity("tokens/s", lambda line: None if line.tokens_per_s is None else Ratio(line.tokens_per_s, None, 0), None),
)
"""The first that the lines have is drawn."""


def plain(text: str, longest: int = 120) -> str:
    """`text` as it is, if not too long: matplotlib would read what stands between two dollar signs as mathematics."""
    return shortened(text, longest).replace("$", r"\$")


def plot_retained(lines: Sequence[Line], to: Path | IO[bytes]) -> None:
    """Bars with 95 % intervals, a line where the reference is, and diamonds for published figures; PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    quantity = next(q for q in _QUANTITIES if any(q.ratio(line) for line in lines) or q is _QUANTITIES[-1])
    groups = _groups(lines, quantity)
    num_bars = sum(len(group.bars) for group in groups)
    figure = Figure(figsize=(9.5, 1.7 + 0.27 * num_bars + 0.45 * len(groups)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw(axes, groups, quantity)
    modes = " and ".join(sorted({line.place.mode for line in lines})) or "nothing measured"
    titles = "; ".join(dict.fromkeys(line.place.title for line in lines))
    axes.set_title(f"{plain(titles)} ({plain(modes)})".strip(), fontsize=11, loc="left", wrap=True)
    figure.savefig(to, format="png", dpi=130, metadata={"Software": None})


def _groups(lines: Sequence[Line], quantity: _Quantity) -> list[_Group]:
    groups: dict[Place, list[_Bar]] = {}
    for line in lines:
        ratio = quantity.ratio(line)
        bars = groups.setdefault(line.place, [])
        if ratio is not None:
            shown = line.published_percent if quantity.reference == DEDICATED else None
            scaled = tuple(quantity.factor * bound for bound in ratio.interval or ())
            interval = (scaled[0], scaled[1]) if len(scaled) == 2 else None
            name = f"{line.name} ({line.ranks})"
            bars.append(_Bar(name, quantity.factor * ratio.value, interval, shown))
    names = machine_names(place.machine for place in groups)
    return [_Group(_title(place, list(groups), names[place.machine]), bars) for place, bars in groups.items() if bars]


def _title(place: Place, places: Sequence[Place], machine: str) -> str:
    """What tells a group from the others."""
    told = [
        (place.title, {other.title for other in places}),
        (place.case, {other.case for other in places}),
        (machine, {other.machine for other in places}),
        (place.mode, {other.mode for other in places}),
    ]
    return ", ".join(text for text, different in told if len(different) > 1)


def _draw(axes: Axes, groups: Sequence[_Group], quantity: _Quantity) -> None:
    colour_of = _colours(groups)
    ticks: list[tuple[float, str]] = []
    most = max((_right(bar) for group in groups for bar in group.bars), default=1.0)
    height = 0.0
    for group in groups:
        if group.title:
            axes.text(0, height, f" {plain(group.title)}", fontsize=9, fontweight="bold", va="center")
            height += 1
        for bar in group.bars:
            colour, hatch = colour_of[bar.name]
            axes.barh(height, bar.value, _BAR, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5)
            _draw_marks(axes, bar, height)
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
            number = format(bar.value, quantity.form)
            axes.text(_right(bar) + 0.012 * most, height, number, va="center", fontsize=8, bbox=box)
            ticks.append((height, bar.name))
            height += 1
        height += 0.5
    axes.set_yticks([at for at, _ in ticks], [plain(name, _LONGEST_NAME) for _, name in ticks], fontsize=9)
    axes.set_ylim(height - 0.3, -0.7)
    axes.set_xlim(0, 1.22 * most)
    if quantity.reference is not None:
        label = f"{quantity.reference} = {quantity.factor:g}"
        axes.axvline(quantity.factor, color="black", linewidth=1.2, linestyle="--", label=label)
    axes.set_xlabel(f"{quantity.label}; in brackets the number of ranks", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=9)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        unique = dict(zip(labels, handles, strict=True))
        axes.figure.legend(
            unique.values(), unique.keys(), fontsize=8, loc="outside lower right", ncols=3, frameon=False
        )


def _right(bar: _Bar) -> float:
    """Where its marks end."""
    return max(bar.value, *(bar.interval or ()), bar.published or 0.0)


def _draw_marks(axes: Axes, bar: _Bar, height: float) -> None:
    """The interval and the published figure."""
    if bar.interval is not None:
        low, high = bar.interval
        distances = [[max(0.0, bar.value - low)], [max(0.0, high - bar.value)]]
        axes.errorbar(bar.value, height, xerr=distances, color="black", capsize=2.5, linewidth=1, label="95 % interval")
    if bar.published is not None:
        style = {"marker": "D", "markersize": 6, "markerfacecolor": "white", "markeredgecolor": "black"}
        axes.plot(bar.published, height, linestyle="none", label="published", **style)


def _colours(groups: Sequence[_Group]) -> dict[str, tuple[str, str]]:
    """Colour and hatch by name, so that a row looks the same in every group."""
    names = dict.fromkeys(bar.name for group in groups for bar in group.bars)
    num = len(_COLOURS)
    return {name: (_COLOURS[i % num], _HATCHES[i // num % len(_HATCHES)]) for i, name in enumerate(names)}
