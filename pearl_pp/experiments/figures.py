"""From measured runs and passes to the figures of a record. Pure arithmetic.

A run is one prompt in one configuration, as `bench_rank` answers it; runs of different configurations with the
same (round, prompt) were made one after another and are compared with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from pearl_pp.experiments.windows import PARTS

Run = Mapping[str, Any]
Pass = Sequence[Any]  # seconds of the whole model; seconds of each stage


def speed(runs: Sequence[Run]) -> dict[str, Any]:
    """Speeds and acceptance of one configuration over all its runs; a rate that does not exist is None."""
    metrics = [run["metrics"] for run in runs]

    def added(*names: str) -> float:
        return sum(m[name] for m in metrics for name in names)

    return {
        "tokens_per_s": _median(m["decode_tokens_per_s"] for m in metrics),
        "of_simulated": _median(
            run["metrics"]["decode_tokens_per_s"] / run["simulated_tokens_per_s"]
            for run in runs
            if run["metrics"]["decode_tokens_per_s"] and run["simulated_tokens_per_s"]
        ),
        "all_tokens_per_s": _ratio(added("num_decode_tokens"), added("decode_s")),
        "acceptance_rate": _ratio(added("num_accepted_tokens"), num_judged(runs)),
        "tokens_per_target_pass": _ratio(added("num_output_tokens"), added("num_target_passes")),
        "num_output_tokens": int(added("num_output_tokens")),
    }


def num_judged(runs: Sequence[Run]) -> int:
    """Drafted tokens that were accepted or rejected."""
    return sum(run["metrics"][f"num_{fate}_tokens"] for run in runs for fate in ("accepted", "rejected"))


def paired_ratio(runs: Sequence[Run], others: Sequence[Run]) -> float | None:
    """Median over (round, prompt) of tokens/s over the other configuration's tokens/s."""
    rates = [[run["metrics"]["decode_tokens_per_s"] for run in side] for side in (runs, others)]
    return _median(a / b for a, b in zip(*rates, strict=True) if a and b)


def window_figures(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Time per window of one configuration, and the ideal; None where no run has a window.

    T is the median of the stages' passes over one chunk, added; t the median draft pass (times the shards of a
    replica); both from these very runs. ideal = max(T p/N, gamma t), T alone without a draft,
    and T in place of T p/N where one token is fed.
    """
    windows = [window for run in runs for window in run["windows"]]
    if not windows:
        return None
    gamma, share = runs[0]["tokens_per_interval"], runs[0]["interval_share"]
    drafts = [ms for window in windows for ms in window["draft_ms"]]
    draft_ms = median(drafts) * runs[0]["num_shards"] if drafts else None
    # After a restart one token goes through all stages, whatever p is.
    groups = {
        "all": (windows, share),
        "one token fed": ([w for w in windows if w["num_fed"] == 1], 1.0),
        "several fed": ([w for w in windows if w["num_fed"] > 1], share),
    }
    return {
        "gamma": gamma,
        "interval_share": share,
        "draft_pass_ms": draft_ms,
        "draft_ms": None if draft_ms is None or gamma is None else gamma * draft_ms,
        "kinds": {name: _beside_ideal(group, gamma, s, draft_ms) for name, (group, s) in groups.items() if group},
        "parts": parts(windows),
    }


def _beside_ideal(
    windows: Sequence[Mapping[str, Any]], gamma: float | None, share: float, draft_ms: float | None
) -> dict[str, Any]:
    window_ms = median(w["ms"] for w in windows)
    target_ms = median(w["target_ms"] for w in windows)
    ideal_ms = ideal(target_ms * share, gamma, draft_ms)
    figures = {"window_ms": window_ms, "target_ms": target_ms, "ideal_ms": ideal_ms}
    return {"num_windows": len(windows), **figures, "excess_ms": window_ms - ideal_ms}


def ideal(target_ms: float, gamma: float | None, draft_ms: float | None) -> float:
    """max(T, gamma t): what a window takes if nothing but passes takes time."""
    return max(target_ms, (gamma or 0.0) * (draft_ms or 0.0))


def parts(windows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean of each part over the middle half of the windows by length, so that parts add up to the window."""
    ordered = sorted(windows, key=lambda w: w["ms"])
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    num_ranks = len(middle[0]["ranks"])
    return {
        "window_ms": fmean(w["ms"] for w in middle),
        "path": _mean_parts([w["path"] for w in middle]),
        "ranks": [_mean_parts([w["ranks"][rank] for w in middle]) for rank in range(num_ranks)],
    }


def _mean_parts(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: fmean(one[name] for one in each) for name in PARTS}


def pass_figures(target: Mapping[str, Sequence[Pass]], draft: Mapping[str, Sequence[Pass]]) -> dict[str, Any]:
    """Medians in ms and medians of paired ratios, for each number of tokens."""
    return {
        number: {"target": _beside_whole(target[number]), "draft": _beside_whole(draft[number])} for number in target
    }


def _beside_whole(passes: Sequence[Pass]) -> dict[str, Any]:
    return {
        "transformers_ms": 1e3 * median(whole for whole, _ in passes),
        "stages_ms": [1e3 * median(stage) for stage in zip(*(stages for _, stages in passes), strict=True)],
        "together_ms": 1e3 * median(sum(stages) for _, stages in passes),
        "ratio": median(sum(stages) / whole for whole, stages in passes),
    }


def headline(record: Mapping[str, Any]) -> dict[str, tuple[float | None, bool]]:
    """What one run is compared with another by: name -> (value, whether more is better)."""
    figures: dict[str, tuple[float | None, bool]] = {}
    for number, both in record["passes"].items():
        figures[f"draft pass / transformers, {number} tokens"] = (both["draft"]["ratio"], False)
        figures[f"stages together / transformers, {number} tokens"] = (both["target"]["ratio"], False)
    for name, ratio in record["ratios"].items():
        figures[name] = (ratio, True)
    for entry in record["configurations"]:
        if entry["best"]:
            figures[f"{entry['name']} tokens/s"] = (entry["speed"]["tokens_per_s"], True)
            figures[f"{entry['name']} of simulated"] = (entry["speed"].get("of_simulated"), True)
            windows = entry["windows"]
            figures[f"{entry['name']} window ms"] = (windows and windows["kinds"]["all"]["window_ms"], False)
            figures[f"{entry['name']} window - ideal ms"] = (windows and windows["kinds"]["all"]["excess_ms"], False)
    return figures


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _ratio(value: float, over: float) -> float | None:
    return value / over if over else None
