"""Runs, passes and records with round numbers."""

from collections.abc import Sequence
from typing import Any

from pearl_pp.experiments.windows import PARTS


def window(ms: float, *, num_fed: int = 1, target_ms: float = 8.0, draft_ms: Sequence[float] = (1.0, 3.0)) -> Any:
    parts = dict.fromkeys(PARTS, 0.0) | {"target": target_ms, "python": ms - target_ms}
    return {
        "ms": ms,
        "num_fed": num_fed,
        "target_ms": target_ms,
        "draft_ms": list(draft_ms),
        "path": parts,
        "ranks": [parts, dict.fromkeys(PARTS, 0.0) | {"waiting": ms}],
    }


def run(rate: float | None, windows: Sequence[Any] = (), *, gamma: float | None = 5.0, **changes: Any) -> Any:
    """A run of 101 tokens; half of the judged tokens accepted."""
    metrics = {
        "decode_tokens_per_s": rate,
        "num_decode_tokens": 100,
        "decode_s": 100 / rate if rate else 0.0,
        "num_output_tokens": 101,
        "num_target_passes": 50,
        "num_accepted_tokens": 40,
        "num_rejected_tokens": 40,
    }
    shape = {"tokens_per_interval": gamma, "interval_share": 1.0, "num_shards": 1, "windows": list(windows)}
    shape["simulated_tokens_per_s"] = None if rate is None else 1.25 * rate
    return {"token_ids": [1, 2], "prompt_token_ids": [0], "metrics": metrics} | shape | changes


def record(*, tokens_per_s: float = 100.0, excess_ms: float = 2.0, draft_ratio: float = 0.5, ratio: float = 1.5) -> Any:
    windows = {"kinds": {"all": {"window_ms": 10.0, "excess_ms": excess_ms}}}
    best = {"name": "hop", "best": True, "speed": {"tokens_per_s": tokens_per_s}, "windows": windows}
    other = {"name": "hop", "best": False, "speed": {"tokens_per_s": 1.0}, "windows": None}
    return {
        "date": "2026-01-01T00:00:00+00:00",
        "configuration": {"ranks": 4},
        "passes": {"1": {"draft": {"ratio": draft_ratio}, "target": {"ratio": 1.1}}},
        "ratios": {"hop/ar": ratio, "hop/dedicated": None},
        "configurations": [best, other],
    }
