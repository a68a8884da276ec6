"""Where time goes: sums, medians, and a trace that a viewer opens."""

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl_pp import telemetry
from pearl_pp.errors import UserError
from pearl_pp.telemetry import Activity, Event, Purpose, Recorder, RequestSpan, write_chrome_trace


class Clock:
    """Stands for `time`; a pass moves it on."""

    def __init__(self) -> None:
        self.now_ns = 1_000

    def perf_counter_ns(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(telemetry, "time", clock)
    return clock


def spend(recorder: Recorder, clock: Clock, activity: Activity, *milliseconds: int) -> None:
    for duration in milliseconds:
        with recorder.measure(activity, f"{duration} ms"):
            clock.now_ns += duration * 1_000_000
        clock.now_ns += 777  # between two activities nothing is counted


def test_seconds_add_up_and_medians_are_of_single_passes(clock: Clock) -> None:
    recorder = Recorder()
    spend(recorder, clock, Activity.TARGET, 10, 300, 20)
    spend(recorder, clock, Activity.WAIT, 5, 6)
    summary = recorder.summary()
    assert summary["target_s"] == pytest.approx(0.330)
    assert summary["wait_s"] == pytest.approx(0.011)
    assert (summary["target_pass_ms"], summary["num_target_passes"]) == (20.0, 3)
    assert (summary["draft_s"], summary["draft_pass_ms"], summary["num_draft_passes"]) == (0.0, 0.0, 0)
    assert recorder.median_ns(Activity.TARGET) == 20_000_000
    assert recorder.median_ns(Activity.DRAFT) == 0
    assert {f"{activity}_s" for activity in Activity} <= summary.keys()


def test_a_new_request_starts_from_zero_and_the_trace_goes_on(clock: Clock) -> None:
    recorder = Recorder(keeps_events=True)
    spend(recorder, clock, Activity.DRAFT, 4)
    recorder.reset()
    assert recorder.summary()["draft_s"] == 0.0
    assert recorder.median_ns(Activity.DRAFT) == 0
    spend(recorder, clock, Activity.DRAFT, 6)
    assert [event.duration_ns for event in recorder.events] == [4_000_000, 6_000_000]
    assert recorder.summary()["draft_s"] == pytest.approx(0.006)


def test_without_a_trace_no_event_is_kept(clock: Clock) -> None:
    recorder = Recorder()
    spend(recorder, clock, Activity.TARGET, 1)
    assert recorder.events == []


def test_time_counts_where_a_pass_fails(clock: Clock) -> None:
    recorder = Recorder()
    with pytest.raises(ZeroDivisionError), recorder.measure(Activity.MOVE):
        clock.now_ns += 3_000_000
        raise ZeroDivisionError
    assert recorder.summary()["move_s"] == pytest.approx(0.003)


def test_the_device_is_waited_for_after_passes_and_nothing_else(clock: Clock) -> None:
    """A pass on a GPU has only been launched when the call returns."""

    def synchronize() -> None:
        clock.now_ns += 50_000_000

    recorder = Recorder(synchronize=synchronize)
    for activity in Activity:
        spend(recorder, clock, activity, 1)
    summary = recorder.summary()
    waited = {activity for activity in Activity if summary[f"{activity}_s"] > 0.05}
    assert waited == {Activity.TARGET, Activity.DRAFT}


def test_handing_entries_over_is_counted_apart_and_stays_part_of_moving(clock: Clock) -> None:
    recorder = Recorder()
    spend(recorder, clock, Activity.MOVE, 2)
    with recorder.measure(Activity.MOVE, purpose=Purpose.HANDOFF):
        clock.now_ns += 3_000_000
    summary = recorder.summary()
    assert (summary["move_s"], summary["handoff_s"]) == pytest.approx((0.005, 0.003))


def test_an_event_says_in_which_slot_it_was_and_what_it_was_about(clock: Clock) -> None:
    recorder = Recorder(keeps_events=True)
    recorder.slot = 7
    with recorder.measure(Activity.DRAFT, "[4, 5)", (1, 2)):
        clock.now_ns += 10
    assert recorder.events == [Event(Activity.DRAFT, 1_000, 10, "[4, 5)", 7, (1, 2))]
    recorder.reset()
    assert recorder.slot == -1


def trace_of(
    tmp_path: Path, events: list[list[Event]], *requests: RequestSpan, mode: str = "real"
) -> list[dict[str, Any]]:
    path = tmp_path / "trace.json"
    write_chrome_trace(path, events, requests, mode)
    content = json.loads(path.read_text())
    assert content["otherData"] == {"mode": mode}
    return content["traceEvents"]


def tracks_of(rows: list[dict[str, Any]], rank: int) -> dict[int, str]:
    return {r["tid"]: r["args"]["name"] for r in rows if r["name"] == "thread_name" and r["pid"] == rank}


def bars_of(rows: list[dict[str, Any]], rank: int, track: str) -> list[tuple[str, int, int]]:
    """(name, start, end) in microseconds."""
    tid = next(tid for tid, name in tracks_of(rows, rank).items() if name == track)
    bars = [r for r in rows if r["ph"] == "X" and (r["pid"], r["tid"]) == (rank, tid)]
    return [(bar["name"], bar["ts"], bar["ts"] + bar["dur"]) for bar in bars]


US = 1_000
EVENTS = [
    [
        Event(Activity.TARGET, 5_010 * US, 20 * US, "[0, 3)", 0, fate="accepted", chunk=0),
        Event(Activity.MOVE, 5_030 * US, 5 * US, "activation [0, 3) from rank 0 to rank 1", 0),
        Event(Activity.WAIT, 5_035 * US, 15 * US, "the verdict", 1),
    ],
    [
        Event(Activity.MOVE, 5_000 * US, 30 * US, "entries", 0, purpose=Purpose.HANDOFF),
        Event(Activity.DRAFT, 5_040 * US, 10 * US, "[3, 4)", 1, fate="discarded"),
    ],
]
REQUEST = RequestSpan("request 1: hello", 5_000 * US, 5_060 * US)


def test_a_trace_has_a_process_for_each_rank_and_a_track_for_each_activity(tmp_path: Path) -> None:
    rows = trace_of(tmp_path, EVENTS, REQUEST)
    assert [r["args"]["name"] for r in rows if r["name"] == "process_name"] == ["rank 0", "rank 1"]
    activities = ["target", "draft", "verify", "hand-off", "communication", "waiting", "idle"]
    assert list(tracks_of(rows, 1).values()) == activities
    assert list(tracks_of(rows, 0).values()) == ["requests", *activities]
    order = {r["tid"]: r["args"]["sort_index"] for r in rows if r["name"] == "thread_sort_index" and r["pid"] == 0}
    assert list(order.values()) == sorted(order.values())
    assert order.keys() == tracks_of(rows, 0).keys()


def test_bars_are_named_by_their_fate_and_start_with_the_request(tmp_path: Path) -> None:
    rows = trace_of(tmp_path, EVENTS, REQUEST)
    assert bars_of(rows, 0, "requests") == [("request 1: hello", 0, 60)]
    assert bars_of(rows, 0, "target") == [("target accepted", 10, 30)]
    assert bars_of(rows, 0, "communication") == [("communication", 30, 35)]
    assert bars_of(rows, 0, "waiting") == [("waiting", 35, 50)]
    assert bars_of(rows, 1, "hand-off") == [("hand-off", 0, 30)]
    assert bars_of(rows, 1, "draft") == [("draft discarded", 40, 50)]
    args = {row["name"]: row["args"] for row in rows if row["ph"] == "X"}
    assert args["target accepted"] == {"slot": 0, "chunk": 0, "positions": "[0, 3)"}
    assert args["communication"] == {"slot": 0, "message": "activation [0, 3) from rank 0 to rank 1"}
    assert args["waiting"] == {"slot": 1, "for": "the verdict"}
    assert args["hand-off"] == {"slot": 0, "message": "entries"}


def test_idle_is_where_a_rank_neither_computes_nor_moves_messages(tmp_path: Path) -> None:
    rows = trace_of(tmp_path, EVENTS, REQUEST)
    assert bars_of(rows, 0, "idle") == [("idle", 0, 10), ("idle", 35, 60)]
    assert bars_of(rows, 1, "idle") == [("idle", 30, 40), ("idle", 50, 60)]


def test_between_two_requests_nobody_is_idle(tmp_path: Path) -> None:
    second = RequestSpan("request 2", 5_100 * US, 5_120 * US)
    rows = trace_of(tmp_path, EVENTS, REQUEST, second)
    assert bars_of(rows, 0, "idle")[-1] == ("idle", 100, 120)
    assert all(end <= 60 or start >= 100 for _, start, end in bars_of(rows, 1, "idle"))


def test_without_requests_a_trace_goes_from_the_first_event_to_the_last(tmp_path: Path) -> None:
    rows = trace_of(tmp_path, EVENTS)
    assert bars_of(rows, 0, "idle") == [("idle", 0, 10), ("idle", 35, 50)]
    assert trace_of(tmp_path, [[], []])


def test_a_trace_that_is_not_of_a_real_run_says_so_at_every_rank(tmp_path: Path) -> None:
    rows = trace_of(tmp_path, EVENTS, REQUEST, mode="simulated")
    names = [r["args"]["name"] for r in rows if r["name"] == "process_name"]
    assert names == ["rank 0 (simulated)", "rank 1 (simulated)"]


@given(
    work=st.lists(
        st.tuples(st.sampled_from(list(Activity)), st.integers(1, 30_000), st.integers(0, 5_000), st.booleans()),
        max_size=30,
    )
)
def test_every_row_is_well_formed_and_no_two_bars_of_a_track_overlap(
    work: list[tuple[Activity, int, int, bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    clock, events = 123_456, []
    for activity, length, pause, is_handoff in work:
        clock += pause
        is_moving = is_handoff and activity is Activity.MOVE
        events.append(Event(activity, clock, length, purpose=Purpose.HANDOFF if is_moving else ""))
        clock += length
    rows = trace_of(tmp_path_factory.getbasetemp(), [events, []], RequestSpan("r", 123_456, clock))
    for row in rows:
        assert row["ph"] in ("M", "X")
        assert isinstance(row["name"], str) and row["name"]
        assert all(type(row[key]) is int for key in ("pid", "tid"))
        if row["ph"] == "X":
            assert all(type(row[key]) is int and row[key] >= 0 for key in ("ts", "dur"))
            assert isinstance(row["args"], dict)
    for rank in (0, 1):
        for track in tracks_of(rows, rank).values():
            bars = sorted(bars_of(rows, rank, track), key=lambda bar: bar[1:])
            assert all(a[2] <= b[1] for a, b in pairwise(bars))
        idle = bars_of(rows, rank, "idle")
        busy = [
            bar
            for track in ("target", "draft", "verify", "hand-off", "communication")
            for bar in bars_of(rows, rank, track)
        ]
        assert all(i[2] <= b[1] or b[2] <= i[1] for i in idle for b in busy)
        busy_us = sum(end - start for _, start, end in busy)
        assert busy_us + sum(end - start for _, start, end in idle) == (clock - 123_456) // 1000


def test_a_trace_that_cannot_be_written_is_one_line_and_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    write_chrome_trace(tmp_path / "t.json", [])
    before = (tmp_path / "t.json").read_text()
    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(UserError, match=r"^--trace .*t\.json: cannot be written: No space left on device$"):
        write_chrome_trace(tmp_path / "t.json", [[Event(Activity.DRAFT, 0, 10)]])
    assert (tmp_path / "t.json").read_text() == before
