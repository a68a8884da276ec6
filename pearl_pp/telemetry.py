"""Where a rank's time goes: seconds per activity, samples for medians, and the events of a Chrome trace."""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple


class Activity(StrEnum):
    """What a rank spends its time on (`per_rank` of DESIGN section 9)."""

    TARGET = "target"
    DRAFT = "draft"
    MOVE = "move"  # posting messages
    WAIT = "wait"  # waiting for a message to arrive
    VERIFY = "verify"


class Event(NamedTuple):
    """One bar of the timeline; times in nanoseconds of the monotonic clock, which ranks of one machine share."""

    activity: Activity
    start_ns: int
    duration_ns: int
    label: str


class _Span:
    """One measured stretch of time. A class: a generator's context manager costs three times as much."""

    __slots__ = ("_activity", "_label", "_recorder", "_start")

    def __init__(self, recorder: Recorder, activity: Activity, label: str) -> None:
        self._recorder = recorder
        self._activity = activity
        self._label = label

    def __enter__(self) -> None:
        self._start = time.perf_counter_ns()

    def __exit__(self, *error: object) -> None:
        self._recorder.count(self._activity, self._label, self._start)


class Recorder:
    """Counts time on one rank.

    Args:
        keeps_events: keep every event for a trace; otherwise only sums and samples are kept.
        synchronize: called before the clock is read, where passes run asynchronously (CUDA); None on a CPU.
    """

    def __init__(self, keeps_events: bool = False, synchronize: Callable[[], None] | None = None) -> None:
        self.events: list[Event] = []
        self.seconds: dict[str, float] = defaultdict(float)
        self._samples: dict[str, list[int]] = defaultdict(list)
        self._keeps_events = keeps_events
        self._synchronize = synchronize

    def measure(self, activity: Activity, label: str = "") -> _Span:
        """A context manager that counts the time spent in it."""
        return _Span(self, activity, label)

    def count(self, activity: Activity, label: str, start: int) -> None:
        """Counts the time from `start` (nanoseconds of the monotonic clock) until now."""
        if self._synchronize is not None and activity in (Activity.TARGET, Activity.DRAFT):
            self._synchronize()
        duration = time.perf_counter_ns() - start
        self.seconds[activity] += duration * 1e-9
        self._samples[activity].append(duration)
        if self._keeps_events:
            self.events.append(Event(activity, start, duration, label))

    def median_ns(self, activity: Activity) -> int:
        """Median duration of one pass since `reset`; 0 where there was none."""
        samples = self._samples.get(activity)
        return int(statistics.median(samples)) if samples else 0

    def reset(self) -> None:
        """Starts a new request; events of a trace are kept."""
        self.seconds.clear()
        self._samples.clear()

    def summary(self) -> dict[str, float]:
        """Seconds per activity and medians in milliseconds."""
        record: dict[str, float] = {f"{activity}_s": self.seconds.get(activity, 0.0) for activity in Activity}
        for activity in (Activity.TARGET, Activity.DRAFT):
            record[f"{activity}_pass_ms"] = self.median_ns(activity) * 1e-6
            record[f"num_{activity}_passes"] = len(self._samples.get(activity, ()))
        return record


def write_chrome_trace(path: str | Path, events_of_ranks: Iterable[Iterable[Event]]) -> None:
    """Chrome trace JSON (opens in Perfetto), one process row per rank, times in microseconds."""
    rows: list[dict] = []
    for rank, events in enumerate(events_of_ranks):
        rows.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        for event in events:
            name = f"{event.activity} {event.label}".strip()
            bar = {"ph": "X", "pid": rank, "tid": 0, "name": name, "cat": str(event.activity)}
            rows.append({**bar, "ts": event.start_ns / 1e3, "dur": event.duration_ns / 1e3})
    Path(path).write_text(json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}), encoding="utf-8")
