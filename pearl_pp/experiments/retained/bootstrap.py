"""An interval for the ratio of two speeds that were measured on the same prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NUM_RESAMPLES = 2000
COVERAGE = 0.95
SEED = 20240811
MIN_PROMPTS = 5
"""With fewer, far fewer than `COVERAGE` of such intervals hold the true ratio."""


def ratio_interval(
    ours: Sequence[tuple[float, float]], others: Sequence[tuple[float, float]]
) -> tuple[float, float] | None:
    """Percentile bootstrap of (tokens / seconds of ours) / (tokens / seconds of others), sum over sum.

    Prompts are drawn with replacement, each with all of its runs in both rows: runs of one prompt are no independent
    samples of what prompts there are. The seed is fixed, so the same records give the same interval.

    Args:
        ours, others: (tokens, seconds) of each prompt, in the same order.

    Returns:
        Bounds that hold `COVERAGE` of the resamples; None with fewer than `MIN_PROMPTS` prompts.
    """
    num_prompts = len(ours)
    if num_prompts < MIN_PROMPTS:
        return None
    drawn = np.random.default_rng(SEED).integers(0, num_prompts, (NUM_RESAMPLES, num_prompts))
    ratios = _speeds(ours, drawn) / _speeds(others, drawn)
    tail = 50 * (1 - COVERAGE)
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return float(low), float(high)


def _speeds(sums: Sequence[tuple[float, float]], drawn: np.ndarray) -> np.ndarray:
    """Sum over sum of each resample; (resamples,)."""
    tokens, seconds = np.array(sums, dtype=float).T
    return tokens[drawn].sum(axis=1) / seconds[drawn].sum(axis=1)
