"""Where a rank's time goes: seconds per activity, samples for medians, and the events of a trace."""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from pearl_pp.files import write_whole


class Activity(StrEnum):
    """What a rank spends its time on (`per_rank` of DESIGN section 9)."""

    TARGET = "target"
    DRAFT = "draft"
    MOVE = "move"  # posting messages
    WAIT = "wait"  # waiting for a message to arrive
    VERIFY = "verify"


class Purpose(StrEnum):
    """What a message is for, where that is counted apart as well."""

    HANDOFF = "handoff"  # KV entries of the draft: taken out and sent, or put in place


class Event(NamedTuple):
    """One bar of the timeline; times in nanoseconds of the monotonic clock, which ranks of one machine share.

    Args:
        label: positions of a pass, "[a, b)"; else what the time went to, as far as that is known.
        slot: counted from the start of the request; -1 outside one.
        about: the fields of the instruction that was followed (`schedule.instructions`); empty where there is none.
        purpose: a `Purpose`, or "".
        fate: what became of a pass, and chunk: the number of its chunk in the request; "" and -1 until the
            verdicts are known (`schedule.fates`).
    """

    activity: Activity
    start_ns: int
    duration_ns: int
    label: str = ""
    slot: int = -1
    about: tuple[Any, ...] = ()
    purpose: str = ""
    fate: str = ""
    chunk: int = -1

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns


class _Span:
    """One measured stretch of time. A class: a generator's context manager costs three times as much."""

    __slots__ = ("_about", "_activity", "_label", "_purpose", "_recorder", "_start")

    def __init__(
        self, recorder: Recorder, activity: Activity, label: str, about: tuple[Any, ...], purpose: str
    ) -> None:
        self._recorder = recorder
        self._activity = activity
        self._label = label
        self._about = about
        self._purpose = purpose

    def __enter__(self) -> None:
        self._start = time.perf_counter_ns()

    def __exit__(self, *error: object) -> None:
        self._recorder.count(self._activity, self._label, self._start, self._about, self._purpose)


class Recorder:
    """Counts time on one rank.

    Args:
        keeps_events: keep every event for a trace; otherwise only sums and samples are kept.
        synchronize: called before the clock is read, where passes run asynchronously (CUDA); None on a CPU.
    """

    def __init__(self, keeps_events: bool = False, synchronize: Callable[[], None] | None = None) -> None:
        self.events: list[Event] = []
        self.seconds: dict[str, float] = defaultdict(float)
        self.keeps_events = keeps_events
        self.slot = -1
        self._samples: dict[str, list[int]] = defaultdict(list)
        self._synchronize = synchronize

    def measure(self, activity: Activity, label: str = "", about: tuple[Any, ...] = (), purpose: str = "") -> _Span:
        """A context manager that counts the time spent in it; the arguments are those of an `Event`."""
        return _Span(self, activity, label, about, purpose)

    def count(self, activity: Activity, label: str, start: int, about: tuple[Any, ...] = (), purpose: str = "") -> None:
        """Counts the time from `start` (nanoseconds of the monotonic clock) until now."""
        if self._synchronize is not None and activity in (Activity.TARGET, Activity.DRAFT):
            self._synchronize()
        duration = time.perf_counter_ns() - start
        self.seconds[activity] += duration * 1e-9
        if purpose:
            self.seconds[purpose] += duration * 1e-9
        self._samples[activity].append(duration)
        if self.keeps_events:
            self.events.append(Event(activity, start, duration, label, self.slot, about, purpose))

    def median_ns(self, activity: Activity) -> int:
        """Median duration of one pass since `reset`; 0 where there was none."""
        samples = self._samples.get(activity)
        return int(statistics.median(samples)) if samples else 0

    def reset(self) -> None:
        """Starts a new request; events of a trace are kept."""
        self.seconds.clear()
        self._samples.clear()
        self.slot = -1

    def summary(self) -> dict[str, float]:
        """Seconds per activity, those of a purpose (a part of `move_s`), and medians in milliseconds."""
        names = [*Activity, *Purpose]
        record: dict[str, float] = {f"{name}_s": self.seconds.get(name, 0.0) for name in names}
        for activity in (Activity.TARGET, Activity.DRAFT):
            record[f"{activity}_pass_ms"] = self.median_ns(activity) * 1e-6
            record[f"num_{activity}_passes"] = len(self._samples.get(activity, ()))
        return record


class RequestSpan(NamedTuple):
    """When a request was answered; `name` is what a reader knows it by."""

    name: str
    start_ns: int
    end_ns: int


class _Track(NamedTuple):
    """A row of a rank.

    Args:
        colours: by fate, the colour in chrome://tracing (names fixed there); Perfetto colours by the bar's name.
        about: what the event's label tells.
    """

    name: str
    colours: dict[str, str]
    about: str = "positions"


_REQUESTS, _IDLE = "requests", "idle"
_TARGET_COLOURS = {
    "": "generic_work",
    "accepted": "good",
    "rejected": "terrible",
    "bonus": "rail_response",
    "cancelled": "grey",
    "prompt": "rail_load",
}
_DRAFT_COLOURS = {
    "": "generic_work",
    "accepted": "thread_state_running",
    "rejected": "bad",
    "discarded": "grey",
    "prompt": "rail_load",
}
_TRACKS: dict[str, _Track] = {
    _REQUESTS: _Track(_REQUESTS, {"": "rail_idle"}),
    Activity.TARGET: _Track("target", _TARGET_COLOURS),
    Activity.DRAFT: _Track("draft", _DRAFT_COLOURS),
    Activity.VERIFY: _Track("verify", {"": "rail_animation"}),
    Purpose.HANDOFF: _Track("hand-off", {"": "olive"}, "message"),
    Activity.MOVE: _Track("communication", {"": "thread_state_runnable"}, "message"),
    Activity.WAIT: _Track("waiting", {"": "thread_state_iowait"}, "for"),
    _IDLE: _Track(_IDLE, {"": "white"}),
}
"""By what an event is for, or else its activity. The order is that of a rank's rows, from the top."""

_ROW_OF = {name: number for number, name in enumerate(_TRACKS, start=1)}


def write_chrome_trace(
    path: str | Path,
    events_of_ranks: Iterable[Iterable[Event]],
    requests: Sequence[RequestSpan] = (),
    mode: str = "real",
) -> None:
    """The file of `chrome_trace`, that `--trace` names; raises UserError where it cannot be written."""
    write_whole("--trace", path, json.dumps(chrome_trace(events_of_ranks, requests, mode)))


def chrome_trace(
    events_of_ranks: Iterable[Iterable[Event]], requests: Sequence[RequestSpan] = (), mode: str = "real"
) -> dict[str, Any]:
    """Chrome trace as JSON (opens in Perfetto): a process for each rank, in it a track for each activity.

    Times are whole microseconds from the first request on, so that bars never overlap by a rounding; without
    requests from the first event on.

    Args:
        events_of_ranks: on clocks that agree; of one rank, no two at the same time.
        requests: the times in which a rank that neither computes nor moves messages counts as idle; without
            any, from the first event to the last one of all ranks.
        mode: where the numbers come from: real, emulated or simulated.
    """
    ranks = [sorted(events, key=lambda event: event.start_ns) for events in events_of_ranks]
    spans = list(requests) or _whole(ranks)
    zero = spans[0].start_ns if spans else 0
    rows: list[dict[str, Any]] = []
    for rank, events in enumerate(ranks):
        rows += _headings(rank, mode)
        rows += [_bar(rank, event, zero) for event in events]
        rows += [_plain_bar(rank, _IDLE, _IDLE, *gap, {}) for gap in _gaps(events, spans, zero)]
    for request in requests:
        rows.append(_plain_bar(0, _REQUESTS, request.name, *_bounds(request.start_ns, request.end_ns, zero), {}))
    return {"traceEvents": rows, "displayTimeUnit": "ms", "otherData": {"mode": mode}}


def _whole(ranks: Sequence[Sequence[Event]]) -> list[RequestSpan]:
    bounds = [(event.start_ns, event.end_ns) for events in ranks for event in events]
    return [RequestSpan("", min(s for s, _ in bounds), max(e for _, e in bounds))] if bounds else []


def _headings(rank: int, mode: str) -> list[dict[str, Any]]:
    """Names and order of a rank and its tracks."""
    name = f"rank {rank}" if mode == "real" else f"rank {rank} ({mode})"
    named: list[tuple[str, int, dict[str, Any]]] = [
        ("process_name", 0, {"name": name}),
        ("process_sort_index", 0, {"sort_index": rank}),
    ]
    for key, row in _ROW_OF.items():
        if key != _REQUESTS or rank == 0:
            named += [
                ("thread_name", row, {"name": _TRACKS[key].name}),
                ("thread_sort_index", row, {"sort_index": row}),
            ]
    return [{"ph": "M", "pid": rank, "tid": tid, "name": name, "args": args} for name, tid, args in named]


def _bar(rank: int, event: Event, zero: int) -> dict[str, Any]:
    key = event.purpose or event.activity
    track = _TRACKS[key]
    told = {"slot": event.slot, "chunk": event.chunk}
    args: dict[str, Any] = {name: number for name, number in told.items() if number >= 0}
    if event.label:
        args[track.about] = event.label
    name = f"{track.name} {event.fate}".strip()
    return _plain_bar(rank, key, name, *_bounds(event.start_ns, event.end_ns, zero), args, event.fate)


def _plain_bar(
    rank: int, key: str, name: str, start: int, end: int, args: dict[str, Any], fate: str = ""
) -> dict[str, Any]:
    """A bar from `start` to `end`, in microseconds."""
    track = _TRACKS[key]
    bar = {"ph": "X", "pid": rank, "tid": _ROW_OF[key], "name": name, "cat": track.name, "cname": track.colours[fate]}
    return {**bar, "ts": start, "dur": end - start, "args": args}


def _bounds(start_ns: int, end_ns: int, zero: int) -> tuple[int, int]:
    return (start_ns - zero) // 1000, (end_ns - zero) // 1000


def _gaps(events: Sequence[Event], spans: Sequence[RequestSpan], zero: int) -> list[tuple[int, int]]:
    """Microseconds within `spans` in which a rank neither computes nor moves messages; `events` in time order."""
    busy = [e for e in events if e.activity is not Activity.WAIT]
    bounds = [_bounds(event.start_ns, event.end_ns, zero) for event in busy]
    gaps: list[tuple[int, int]] = []
    for span in spans:
        clock, last = _bounds(span.start_ns, span.end_ns, zero)
        for start, end in bounds:
            if clock < min(start, last):
                gaps.append((clock, min(start, last)))
            clock = max(clock, end)
        if clock < last:
            gaps.append((clock, last))
    return gaps
