"""The metrics of DESIGN section 9, by their names and formulas. A rate that does not exist is None."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pearl_pp.planning.modes import describe
from pearl_pp.runtime.worker import Progress
from pearl_pp.schedule.generator import SlotGenerator

_COUNTS = (
    "num_output_tokens",
    "num_target_passes",
    "num_draft_tokens",
    "num_accepted_tokens",
    "num_rejected_tokens",
    "num_discarded_tokens",
    "handoff_bytes",
    "num_hops",
    "num_changes",
    "num_accepted_runs",
    "total_s",
    "decode_s",
    "num_decode_tokens",
)


def request_metrics(
    generator: SlotGenerator, progress: Progress, times: Sequence[float], num_output_tokens: int
) -> dict:
    """Metrics of one request.

    Args:
        times: rank 0's clock in seconds at the start, the first verdict and the last.
    """
    start, first, last = times
    runs = progress.accepted_runs
    metrics = {
        "num_output_tokens": num_output_tokens,
        "ttft_s": first - start,
        "total_s": last - start,
        "decode_s": last - first,
        "num_decode_tokens": max(0, num_output_tokens - 1),
        "num_target_passes": progress.num_target_passes,
        "num_draft_tokens": generator.num_draft_tokens,
        "num_accepted_tokens": progress.num_accepted,
        "num_rejected_tokens": progress.num_rejected,
        "num_discarded_tokens": generator.num_draft_tokens - progress.num_accepted - progress.num_rejected,
        "num_hops": generator.num_hops,
        "num_changes": progress.num_changes,
        "final_mode": describe(generator.schedule),
        "accepted_runs": runs,
        # The run after the last rejection counts unless it is empty.
        "num_accepted_runs": len(runs) - (runs[-1] == 0),
    }
    return metrics | rates(metrics)


def rates(counts: dict) -> dict:
    """The rates that follow from counts, for one request or summed over many."""
    judged = counts["num_accepted_tokens"] + counts["num_rejected_tokens"]
    return {
        "decode_tokens_per_s": _ratio(counts["num_decode_tokens"], counts["decode_s"]),
        "acceptance_rate": _ratio(counts["num_accepted_tokens"], judged),
        "mean_accepted_tokens": _ratio(counts["num_accepted_tokens"], counts["num_accepted_runs"]),
        "tokens_per_target_pass": _ratio(counts["num_output_tokens"], counts["num_target_passes"]),
    }


def empty_metrics() -> dict:
    """Of a request that asked for no tokens: counts are 0, rates do not exist."""
    counts = dict.fromkeys(_COUNTS, 0) | {"ttft_s": None, "final_mode": None, "accepted_runs": [], "per_rank": []}
    return counts | rates(counts)


def totals(metrics: Iterable[dict]) -> dict:
    """The same metrics over many requests: counts and seconds are added, rates are sum over sum."""
    requests = [m for m in metrics if m]
    counts = {name: sum(m[name] for m in requests) for name in _COUNTS}
    first_tokens = [m["ttft_s"] for m in requests if m["ttft_s"] is not None]
    result = counts | rates(counts)
    result["ttft_s"] = sum(first_tokens) / len(first_tokens) if first_tokens else None
    result["final_mode"] = next((m["final_mode"] for m in reversed(requests) if m["final_mode"]), None)
    result["accepted_runs"] = [run for m in requests for run in m["accepted_runs"]]
    result["per_rank"] = [_add_ranks(ranks) for ranks in zip(*_all_ranks(requests), strict=True)]
    return result


def _all_ranks(requests: list[dict]) -> list[list[dict]]:
    return [m["per_rank"] for m in requests if m["per_rank"]]


def _add_ranks(records: Sequence[dict]) -> dict:
    """Seconds and counts add up, medians and byte sizes take the largest."""
    added = {}
    for key in records[0]:
        values = [record[key] for record in records]
        adds = key.endswith("_s") or key.startswith("num_") or key in ("handoff_bytes", "bytes_sent", "messages_sent")
        added[key] = sum(values) if adds else max(values)
    return added


def _ratio(value: float, over: float) -> float | None:
    return value / over if over else None
