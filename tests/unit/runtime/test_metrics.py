"""The metrics of DESIGN section 9, against the verdicts they are counted from."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl_pp.messages import Outcome, Verdict
from pearl_pp.runtime.metrics import empty_metrics, request_metrics, totals
from pearl_pp.runtime.worker import Progress
from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.schedule.schedule import Schedule
from tests.unit.schedule.strategies import play, schedules

RATES = {"decode_tokens_per_s", "acceptance_rate", "mean_accepted_tokens", "tokens_per_target_pass"}
# What only the engine adds, after all ranks have reported.
RANK = {"target_s": 0.25, "target_pass_ms": 3.0, "num_target_passes": 2, "handoff_bytes": 64, "peak_bytes": 100}


def finish(schedule: Schedule, accepts: st.DataObject | None, num_tokens: int) -> tuple[dict, list[Verdict]]:
    """A request of random verdicts: its metrics, and the verdicts themselves."""
    generator, progress, verdicts = SlotGenerator(schedule, 3, 3 + num_tokens, 10**6), Progress(), []

    def judge(verify) -> int:
        return verify.num_drafted if accepts is None else accepts.draw(st.integers(0, verify.num_drafted))

    for _, verdict in play(generator, judge):
        if verdict is not None:
            progress.count(verdict)
            verdicts.append(verdict)
    num_output = sum(len(v.token_ids) for v in verdicts)
    return request_metrics(generator, progress, (1.0, 1.5, 3.5), num_output), verdicts


def accepted_runs(verdicts: Sequence[Verdict]) -> list[int]:
    """Lengths of the runs of accepted tokens, each ended by a rejection; what follows the last one if not empty."""
    marks = ""
    for verdict in verdicts:
        marks += "a" * verdict.num_accepted + "r" * (verdict.outcome is Outcome.REJECTED)
    *ended, rest = (len(run) for run in marks.split("r"))
    return ended + [rest] * (rest > 0)


@pytest.mark.case("H2")
@given(schedules(), st.data(), st.integers(1, 40))
def test_counts_and_rates_follow_from_the_verdicts(schedule: Schedule, data: st.DataObject, num_tokens: int) -> None:
    metrics, verdicts = finish(schedule, data, num_tokens)
    accepted = sum(v.num_accepted for v in verdicts)
    rejected = sum(v.outcome is Outcome.REJECTED for v in verdicts)
    assert metrics["num_target_passes"] == len(verdicts)
    assert (metrics["num_accepted_tokens"], metrics["num_rejected_tokens"]) == (accepted, rejected)
    assert metrics["num_discarded_tokens"] >= 0
    assert metrics["num_draft_tokens"] == accepted + rejected + metrics["num_discarded_tokens"]
    assert metrics["tokens_per_target_pass"] == num_tokens / len(verdicts)
    assert metrics["acceptance_rate"] == (accepted / (accepted + rejected) if accepted + rejected else None)
    runs = accepted_runs(verdicts)
    assert metrics["mean_accepted_tokens"] == (sum(runs) / len(runs) if runs else None)


def test_times_are_from_the_start_and_after_the_first_token() -> None:
    metrics, _ = finish(Schedule(2, verify_interval=2, draft_limit=0), None, 5)
    assert (metrics["ttft_s"], metrics["total_s"], metrics["decode_s"]) == (0.5, 2.5, 2.0)
    assert metrics["num_output_tokens"] == 5
    assert metrics["decode_tokens_per_s"] == (5 - 1) / 2.0


@pytest.mark.case("E6")
def test_rates_that_do_not_exist_are_none_and_never_nan() -> None:
    plain = Schedule(2, verify_interval=2, draft_limit=0)
    metrics, _ = finish(plain, None, 1)
    generator, progress = SlotGenerator(plain, 3, 4, 4), Progress()
    one_token = request_metrics(generator, progress, (1.0, 1.5, 1.5), 1)
    assert one_token["decode_tokens_per_s"] is None
    assert metrics["acceptance_rate"] is metrics["mean_accepted_tokens"] is None
    for nothing in (empty_metrics(), totals([]), totals([empty_metrics()]), totals([{}])):
        assert all(nothing[name] is None for name in RATES)
        assert nothing["ttft_s"] is None
        assert nothing["num_output_tokens"] == 0
        json.dumps(nothing, allow_nan=False)


@given(st.lists(st.tuples(schedules(), st.integers(1, 12)), min_size=1, max_size=4), st.data())
def test_totals_are_sum_over_sum(requests: list[tuple[Schedule, int]], data: st.DataObject) -> None:
    finished = [finish(schedule, data, num_tokens) for schedule, num_tokens in requests]
    each = [metrics | {"handoff_bytes": 8, "per_rank": [RANK, RANK]} for metrics, _ in finished]
    total = totals([*each, empty_metrics(), {}])

    def over(name: str) -> float:
        return sum(metrics[name] for metrics in each)

    judged = over("num_accepted_tokens") + over("num_rejected_tokens")
    assert total["num_output_tokens"] == sum(num_tokens for _, num_tokens in requests)
    assert total["handoff_bytes"] == 8 * len(each)
    assert total["decode_tokens_per_s"] == sum(n - 1 for _, n in requests) / over("decode_s")
    assert total["acceptance_rate"] == (over("num_accepted_tokens") / judged if judged else None)
    assert total["tokens_per_target_pass"] == over("num_output_tokens") / over("num_target_passes")
    runs = [run for _, verdicts in finished for run in accepted_runs(verdicts)]
    assert total["mean_accepted_tokens"] == (sum(runs) / len(runs) if runs else None)
    assert total["ttft_s"] == 0.5, "a mean over the requests that returned a token"
    drafted = over("num_accepted_tokens") + over("num_rejected_tokens") + over("num_discarded_tokens")
    assert total["num_draft_tokens"] == drafted


def test_totals_have_every_metric_a_request_has() -> None:
    metrics, _ = finish(Schedule(2, verify_interval=2, draft_limit=0), None, 4)
    request = metrics | {"handoff_bytes": 0, "per_rank": [RANK]}
    assert totals([request]).keys() == request.keys() == empty_metrics().keys()
    assert totals([request]) == request, "one request is its own total"


def test_of_a_rank_seconds_and_bytes_moved_add_up_and_sizes_do_not() -> None:
    quick = RANK | {"target_s": 0.5, "target_pass_ms": 1.0, "peak_bytes": 120}
    request = empty_metrics() | {"per_rank": [RANK, quick]}
    other = empty_metrics() | {"per_rank": [quick, quick]}
    first, second = totals([request, other])["per_rank"]
    assert first == {
        "target_s": 0.75,
        "target_pass_ms": 3.0,
        "num_target_passes": 4,
        "handoff_bytes": 128,
        "peak_bytes": 120,
    }
    assert second["target_s"] == 1.0
