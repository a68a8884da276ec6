"""Where time goes: sums, medians, and a trace that a viewer opens."""

import json
from pathlib import Path

import pytest

from pearl_pp import telemetry
from pearl_pp.telemetry import Activity, Event, Recorder, write_chrome_trace


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


def test_a_trace_has_a_row_for_each_rank_in_microseconds(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    events = [[Event(Activity.TARGET, 5_000, 2_500, "[0, 3)")], [], [Event(Activity.MOVE, 6_000, 100, "")]]
    write_chrome_trace(path, events)
    content = json.loads(path.read_text())
    rows = content["traceEvents"]
    assert [(r["pid"], r["args"]["name"]) for r in rows if r["ph"] == "M"] == [(n, f"rank {n}") for n in range(3)]
    bars = [r for r in rows if r["ph"] == "X"]
    assert [(b["pid"], b["name"], b["cat"], b["ts"], b["dur"]) for b in bars] == [
        (0, "target [0, 3)", "target", 5.0, 2.5),
        (2, "move", "move", 6.0, 0.1),
    ]
