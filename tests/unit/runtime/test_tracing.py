"""One timeline from what all ranks recorded: clocks, requests, and what lies outside them."""

from __future__ import annotations

import pytest

from pearl_pp.messages import Outcome, Verdict
from pearl_pp.runtime import tracing
from pearl_pp.runtime.tracing import Trace, Tracer, clock_shifts
from pearl_pp.schedule.instructions import ForwardTarget
from pearl_pp.telemetry import Activity, Recorder
from pearl_pp.transport.inprocess import InProcessGroup, InProcessTransport
from pearl_pp.transport.local import LocalTransport

END = Verdict(1, (5,), 0, Outcome.BONUS, stop=2)


def test_ranks_of_one_machine_keep_their_times() -> None:
    assert clock_shifts(["a", "a"], [[100, 900], [130, 950]]) == [[0, 0], [0, 0]]


def test_another_machine_is_set_by_its_first_rank_at_every_request() -> None:
    starts = [[100, 900], [105, 905], [7_000, 7_801], [7_003, 7_800]]
    shifts = clock_shifts(["a", "a", "b", "b"], starts)
    assert shifts == [[0, 0], [0, 0], [-6_900, -6_901], [-6_900, -6_901]]


def test_no_requests_no_shifts() -> None:
    assert clock_shifts(["a", "b"], [[], []]) == [[], []]


def pass_in(recorder: Recorder, slot: int, rank: int) -> None:
    recorder.slot = slot
    with recorder.measure(Activity.TARGET, "[0, 3)", ForwardTarget(rank, 0, 3, 0)):
        pass


def test_each_request_has_its_own_events_fates_and_name() -> None:
    def work(transport: InProcessTransport) -> Trace | None:
        recorder = Recorder(keeps_events=True)
        tracer = Tracer(transport, recorder, last_rank=1)
        pass_in(recorder, 0, transport.rank)  # the warm-up
        for name in ("tell me\n a story that is much too long for a name of a bar", ""):
            recorder.reset()
            tracer.start(name, 3)
            pass_in(recorder, transport.rank, transport.rank)
            tracer.add(END)
        return tracer.take()

    trace, nothing = InProcessGroup(2).run(work)
    assert nothing is None
    assert [span.name for span in trace.requests] == [
        "request 1: tell me a story that is much too long fo",
        "request 2",
    ]
    assert [[(e.slot, e.fate, e.chunk) for e in of_rank] for of_rank in trace.events] == [
        [(0, "bonus", 0)] * 2,
        [(1, "bonus", 0)] * 2,
    ]
    for span, event in zip(trace.requests, trace.events[0], strict=True):
        assert span.start_ns <= event.start_ns <= event.end_ns <= span.end_ns


def test_events_of_another_machine_come_on_rank_0s_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of_two_clocks(monkeypatch, ["here", "there"])
    assert abs(trace.events[1][0].start_ns - trace.requests[0].start_ns) < 10**10


def test_events_of_the_same_machine_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of_two_clocks(monkeypatch, ["here", "here"])
    assert trace.events[1][0].start_ns - trace.requests[0].start_ns > 10**13


def trace_of_two_clocks(monkeypatch: pytest.MonkeyPatch, names: list[str]) -> Trace:
    """Rank 1's times are about 28 hours ahead."""
    ahead_ns = 10**14

    def work(transport: InProcessTransport) -> Trace | None:
        recorder = Recorder(keeps_events=True)
        tracer = Tracer(transport, recorder, last_rank=1)
        tracer.start("x", 3)
        pass_in(recorder, transport.rank, transport.rank)
        tracer.add(END)
        if transport.rank == 1:
            recorder.events = [event._replace(start_ns=event.start_ns + ahead_ns) for event in recorder.events]
            tracer._requests[0].start_ns += ahead_ns
        return tracer.take()

    calls = iter(names)
    monkeypatch.setattr(tracing, "_clock_name", lambda: next(calls))
    return InProcessGroup(2).run(work)[0]


def test_what_was_taken_does_not_come_again() -> None:
    recorder = Recorder(keeps_events=True)
    tracer = Tracer(LocalTransport(), recorder, last_rank=0)
    tracer.start("x", 3)
    pass_in(recorder, 0, 0)
    tracer.add(Verdict(0, (5,), 0, Outcome.BONUS, stop=2))
    first, second = tracer.take(), tracer.take()
    assert first is not None and second is not None
    assert (len(first.events[0]), len(first.requests)) == (1, 1)
    assert (second.events, second.requests) == ([[]], [])


def test_without_a_trace_nothing_is_kept_and_nobody_waits() -> None:
    group = InProcessGroup(2, timeout_s=1.0)
    tracer = Tracer(group.transport(0), Recorder(), last_rank=1)
    tracer.start("x", 3)  # no other rank comes
    tracer.add(END)
    assert tracer._requests == []
