"""Speeds of rows over one another: of runs with the same prompt and round, which rows have in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pearl_pp.experiments.retained.bootstrap import ratio_interval

Record = Mapping[str, Any]
"""A line of `results.jsonl`."""

PLAIN, SPECULATIVE, DEDICATED = "ar", "sd", "dedicated"
"""The rows that others are compared with. One of a sweep has more to its name: `dedicated, gamma 5`."""


class Ratio(NamedTuple):
    """A speed over another one's. interval: 95 %, by bootstrap; None with fewer than `bootstrap.MIN_PROMPTS`."""

    value: float
    interval: tuple[float, float] | None
    num_pairs: int


def speed(runs: Sequence[Record]) -> float | None:
    """Decoded tokens of all runs over their seconds."""
    return ratio(*(sum(run["metrics"][name] for run in runs) for name in ("num_decode_tokens", "decode_s")))


def family_of(row: str) -> str:
    """What a row is one of several of: `hop` of `hop, gamma 5`."""
    return row.partition(",")[0]


def fastest(runs_of: Mapping[tuple[str, str], list[Record]], family: str) -> list[Record]:
    """The runs of a reference at its best: of several that count, the one with the most tokens/s."""
    rows = [runs for (row, _), runs in runs_of.items() if family_of(row) == family and _is_reference(runs[-1])]
    return max(rows, key=lambda runs: speed(runs) or 0.0, default=[])


def _is_reference(record: Record) -> bool:
    """PEARL with a rank for the draft is the paper's with one chunk in flight only: F = 1, p = number of stages."""
    if family_of(record["key"]["row"]) != DEDICATED:
        return True
    if not (plan := record.get("plan")):
        return False
    placement = plan["placement"]
    return placement["fill"] == 1 and placement["verify_interval"] == len(placement["target"])


def compared(ours: Sequence[Record], others: Sequence[Record]) -> Ratio | None:
    """Speeds over the pairs that both have; None where there are none, or nothing was decoded."""
    theirs = {(run["key"]["prompt"], run["key"]["round"]): run for run in others}
    pairs = [(run, theirs[key]) for run in ours if (key := (run["key"]["prompt"], run["key"]["round"])) in theirs]
    sums: dict[str, list[list[float]]] = defaultdict(lambda: [[0.0, 0.0], [0.0, 0.0]])
    for pair in pairs:
        for run, total in zip(pair, sums[pair[0]["key"]["prompt"]], strict=True):
            total[0] += run["metrics"]["num_decode_tokens"]
            total[1] += run["metrics"]["decode_s"]
    prompts = [both for both in sums.values() if all(tokens and seconds for tokens, seconds in both)]
    if not prompts:
        return None
    own, other = ([(both[side][0], both[side][1]) for both in prompts] for side in (0, 1))
    value = _sum_over_sum(own) / _sum_over_sum(other)
    interval = None if ours is others else ratio_interval(own, other)
    return Ratio(value, interval, len(pairs))


def _sum_over_sum(sums: Sequence[tuple[float, float]]) -> float:
    return sum(tokens for tokens, _ in sums) / sum(seconds for _, seconds in sums)


def ratio(value: float, over: float) -> float | None:
    """None where `over` is 0."""
    return value / over if over else None
