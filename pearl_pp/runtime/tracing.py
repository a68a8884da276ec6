"""From what every rank recorded to one timeline of all ranks: clocks that agree, requests by name, fates of passes."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pearl_pp.messages import Verdict
from pearl_pp.schedule.fates import with_fates
from pearl_pp.telemetry import Activity, Event, Recorder, RequestSpan
from pearl_pp.transport.base import Transport

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass
class _Traced:
    """A request as this rank saw it; times in nanoseconds of its clock."""

    name: str
    prompt_len: int
    start_ns: int
    end_ns: int
    verdicts: list[Verdict] = field(default_factory=list)


class Trace(NamedTuple):
    """Events of each rank on rank 0's clock, and the requests that they belong to."""

    events: list[list[Event]]
    requests: list[RequestSpan]


class Tracer:
    """Keeps what a trace needs beside a rank's events, if the recorder keeps these; otherwise it does nothing.

    Args:
        last_rank: of the last stage.
    """

    def __init__(self, transport: Transport, recorder: Recorder, last_rank: int) -> None:
        self._transport = transport
        self._recorder = recorder
        self._last_rank = last_rank
        self._requests: list[_Traced] = []

    def start(self, prompt: str, prompt_len: int) -> None:
        """Collective: a request begins; all ranks note their clocks at the same moment, as far as a barrier goes."""
        if self._recorder.keeps_events:
            self._transport.barrier()
            now = time.perf_counter_ns()
            self._requests.append(_Traced(prompt, prompt_len, now, now))

    def add(self, verdict: Verdict) -> None:
        """A verdict of the request that began last."""
        if self._recorder.keeps_events:
            self._requests[-1].verdicts.append(verdict)
            self._requests[-1].end_ns = time.perf_counter_ns()

    def take(self) -> Trace | None:
        """Collective: on rank 0 the requests since the last call; None elsewhere. What was before them is dropped."""
        requests, self._requests = self._requests, []
        starts = [request.start_ns for request in requests]
        recorded = {"clock": _clock_name(), "starts": starts, "events": self._recorder.events}
        gathered = self._transport.gather_bytes(json.dumps(recorded).encode(), dst=0)
        self._recorder.events.clear()
        if gathered is None:
            return None
        ranks = [json.loads(payload) for payload in gathered]
        shifts = clock_shifts([rank["clock"] for rank in ranks], [rank["starts"] for rank in ranks])
        parts = [_by_request(rank["events"], rank["starts"]) for rank in ranks]
        events: list[list[Event]] = [[] for _ in ranks]
        for number, request in enumerate(requests):
            of_ranks = [
                [event._replace(start_ns=event.start_ns + shift[number]) for event in part[number]]
                for part, shift in zip(parts, shifts, strict=True)
            ]
            judged = with_fates(of_ranks, request.verdicts, request.prompt_len, self._last_rank)
            for of_rank, known in zip(events, judged, strict=True):
                of_rank.extend(known)
        return Trace(events, [_span(number, request) for number, request in enumerate(requests, start=1)])


def clock_shifts(clocks: Sequence[str], starts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Nanoseconds to add, for each rank and request, so that its times are those of rank 0's clock.

    Ranks on rank 0's clock keep their times. On any other machine the first rank's start of a request is taken
    for the same moment as rank 0's, and the others there follow it: they share a clock.

    Args:
        clocks: which clock each rank reads.
        starts: of each rank, what its clock said at the barrier before each request.
    """
    first = {clock: rank for rank, clock in reversed(list(enumerate(clocks)))}
    return [[zero - own for zero, own in zip(starts[0], starts[first[clock]], strict=True)] for clock in clocks]


def _by_request(rows: Sequence[Sequence[Any]], starts: Sequence[int]) -> list[list[Event]]:
    """Events of one rank as JSON holds them, one list for each request; those before the first are left out."""
    events = [
        Event(Activity(name), start, duration, label, slot, tuple(about), *rest)
        for name, start, duration, label, slot, about, *rest in rows
    ]
    bounds = [*starts, max((event.start_ns for event in events), default=0) + 1]
    return [[e for e in events if first <= e.start_ns < end] for first, end in pairwise(bounds)]


def _span(number: int, request: _Traced) -> RequestSpan:
    text = " ".join(request.name.split())
    name = f"request {number}: {text[:40]}".rstrip(" :")
    return RequestSpan(name, request.start_ns, request.end_ns)


def _clock_name() -> str:
    """Ranks that give the same name read the same monotonic clock: that of one start of one machine."""
    return _BOOT_ID.read_text() if _BOOT_ID.is_file() else platform.node()
