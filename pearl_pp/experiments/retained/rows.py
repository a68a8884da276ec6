"""The named rows of an experiment: what runs, on how many ranks, and what is chosen first. No torch in here."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from pearl_pp.experiments.retained.job import ENGINE, HF, HF_ASSISTED, HF_PIPELINE

Sweep = Mapping[str, tuple[int | str, ...]]
"""Values of options; each combination is a variant."""

GAMMAS = (2, 3, 4, 5, 6, 8)
"""What is tried where T and t are not known beforehand; the best is near c."""
_SHORT = {"fill": "F", "verify_interval": "p"}

Choices = list[dict[str, Any]]
Gammas = tuple[int, ...]


@dataclass(frozen=True)
class Variant:
    """A way to run a row. name: "" where there is but one."""

    name: str
    options: Mapping[str, Any]


def _nothing(num_ranks: int, gammas: Gammas) -> Choices:
    return [{}]


def _rounds(num_ranks: int, gammas: Gammas) -> Choices:
    return [{"gamma": gamma} for gamma in gammas]


def _paces(num_ranks: int, gammas: Gammas) -> Choices:
    """With the one at which the draft never waits."""
    return [{"gamma": gamma} for gamma in ("auto", *gammas)]


def _patterns(num_ranks: int, gammas: Gammas) -> Choices:
    """More than one chunk in flight: p below N with and without a fill; on two ranks the fill alone is left."""
    intervals = range(2, min(3, num_ranks - 1) + 1) if num_ranks > 2 else (2,)
    fills = sorted({1, num_ranks - 1} if num_ranks > 2 else {2})
    return [{"fill": fill, "verify_interval": interval} for interval, fill in product(intervals, fills)]


@dataclass(frozen=True)
class RowSpec:
    """A named row.

    Args:
        extra_ranks: beyond N.
        options: of RunConfig.
        choices: options that one of is chosen, from the number of ranks and gammas worth trying.
        planned: where costs are known beforehand the planner says the pattern.
        kind: who makes the text.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    extra_ranks: int = 0
    choices: Callable[[int, Gammas], Choices] = _nothing
    planned: bool = False
    kind: str = ENGINE


_ALONE = {"placement": "dedicated"}

ROWS: dict[str, RowSpec] = {
    "ar": RowSpec({"strategy": "ar"}),
    "sd": RowSpec({"strategy": "sd"}, choices=_rounds),
    "dedicated": RowSpec(_ALONE, 1, _paces),
    "single": RowSpec({"placement": "single"}),
    "hop": RowSpec({"placement": "hop"}),
    "hop ship": RowSpec({"placement": "hop", "handoff": "ship"}),
    "hop catchup": RowSpec({"placement": "hop", "handoff": "catchup"}),
    "pipelined": RowSpec({"placement": "pipelined"}, choices=_patterns, planned=True),
    "sharded": RowSpec({"placement": "sharded"}),
    "auto": RowSpec({"placement": "auto"}),
    "pearl": RowSpec(_ALONE, 1),
    "without pre-verify": RowSpec(_ALONE | {"no_pre_verify": True}, 1),
    "without post-verify": RowSpec(_ALONE | {"no_post_verify": True}, 1),
    "hf": RowSpec(kind=HF),
    "hf assisted": RowSpec(kind=HF_ASSISTED),
    "hf pipeline": RowSpec(kind=HF_PIPELINE),
}


def combinations(sweep: Sweep) -> Choices:
    """Every choice of one value for each option."""
    return [dict(zip(sweep, values, strict=True)) for values in product(*sweep.values())]


def variants(choices: Choices, fixed: Container[str] = ()) -> tuple[Variant, ...]:
    """The same with names, without the options that are `fixed`."""
    left = ({name: value for name, value in options.items() if name not in fixed} for options in choices)
    named = {variant_name(options): options for options in left}
    return tuple(Variant(name, options) for name, options in named.items())


def variant_name(options: Mapping[str, Any]) -> str:
    """`F 3 p 2`, `gamma 5`."""
    return " ".join(f"{_SHORT.get(name, name.replace('_', ' '))} {value}" for name, value in options.items())
