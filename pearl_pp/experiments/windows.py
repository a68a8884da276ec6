"""Where the time of a window goes, from the events of all ranks. Pure arithmetic on nanoseconds.

A window lies between two verdicts. Its critical path is that of the chunk which the second verdict judges: from
stage to stage, and between two stages whatever the receiving rank waits for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from pearl_pp.telemetry import Activity, Event

PARTS: tuple[str, ...] = ("target", "draft", "verify", "messages", "waiting", "python")
"""What a window consists of; `python` is what none of the others is."""

_PART_OF = {
    Activity.TARGET: "target",
    Activity.DRAFT: "draft",
    Activity.VERIFY: "verify",
    Activity.MOVE: "messages",
    Activity.WAIT: "waiting",
}
_NS_PER_MS = 1e6


class Window(NamedTuple):
    """One window; all times in milliseconds.

    Args:
        ms: from verdict to verdict.
        num_fed: tokens of the chunk that the second verdict judges; 1 after a restart.
        target_ms: the stages' passes over that chunk, added.
        draft_ms: draft passes that ended in the window, on any rank.
        path: parts of the critical path; they add up to `ms`.
        ranks: parts of each rank's time; each rank's add up to `ms`.
    """

    ms: float
    num_fed: int
    target_ms: float
    draft_ms: list[float]
    path: dict[str, float]
    ranks: list[dict[str, float]]


class _Pass(NamedTuple):
    """A chunk in one stage; the first gap of the path lies before stage 0, the others between two stages."""

    stage: int
    start: int
    end: int


def windows(events_of_ranks: Sequence[Sequence[Event]], num_stages: int) -> list[Window]:
    """The windows of one request, which begin with its first verdict.

    Args:
        events_of_ranks: a list for each rank, in time order, on clocks that agree (one machine).
    """
    ranks = [_Timeline(events) for events in events_of_ranks]
    verdicts = [e for e in ranks[num_stages - 1].events if e.activity is Activity.VERIFY]
    return [_window(ranks, num_stages, _end(a), b) for a, b in pairwise(verdicts)]


def _window(ranks: list[_Timeline], num_stages: int, start: int, verdict: Event) -> Window:
    end = _end(verdict)
    passes, num_fed = _chunk_passes(ranks, num_stages, verdict)
    drafts = [e for rank in ranks for e in rank.between(start, end) if e.activity is Activity.DRAFT and _end(e) <= end]
    return Window(
        ms=(end - start) / _NS_PER_MS,
        num_fed=num_fed,
        target_ms=sum(p.end - p.start for p in passes) / _NS_PER_MS,
        draft_ms=[e.duration_ns / _NS_PER_MS for e in drafts],
        path=_in_ms(_path(ranks, passes, start, end)),
        ranks=[_in_ms(rank.parts(start, end)) for rank in ranks],
    )


def _chunk_passes(ranks: list[_Timeline], num_stages: int, verdict: Event) -> tuple[list[_Pass], int]:
    """The passes of the judged chunk, found backwards by its positions, and the number of tokens fed."""
    before, label = verdict.start_ns, None
    passes: list[_Pass] = []
    for stage in reversed(range(num_stages)):
        found = ranks[stage].last_pass(before, label)
        passes.append(_Pass(stage, found.start_ns, _end(found)))
        before, label = found.start_ns, found.label
    first, last = (int(part) for part in str(label).strip("[)").split(","))
    return passes[::-1], last - first


def _path(ranks: list[_Timeline], passes: list[_Pass], start: int, end: int) -> dict[str, int]:
    parts = dict.fromkeys(PARTS, 0)
    clock, sender = start, len(passes) - 1
    for stage, begin, finish in passes:
        _add_gap(parts, ranks, sender, stage, clock, max(clock, begin))
        clock = max(clock, begin)
        parts["target"] += max(0, finish - clock)
        clock, sender = max(clock, finish), stage
    _add_gap(parts, ranks, sender, sender, clock, end)
    return parts


def _add_gap(parts: dict[str, int], ranks: list[_Timeline], sender: int, receiver: int, start: int, end: int) -> None:
    """Shares out the time in which the chunk is in no stage."""
    if start >= end:
        return
    sent = ranks[sender].first_move_after(start) if sender != receiver else start
    bounds = {start, end, sent} | {t for rank in ranks for e in rank.between(start, end) for t in (e.start_ns, _end(e))}
    for left, right in pairwise(sorted(b for b in bounds if start <= b <= end)):
        parts[_cause(ranks, sender, receiver, sent, (left + right) / 2)] += right - left


def _cause(ranks: list[_Timeline], sender: int, receiver: int, sent: int, moment: float) -> str:
    """What holds the chunk up: the receiver's own work; else the sender's until it has sent; else the wire."""
    own = ranks[receiver].part_at(moment)
    if own != "waiting":
        return own
    if sender != receiver and moment < sent:
        return ranks[sender].part_at(moment)
    # Stage 0 before a chunk, and the verifier, wait for drafted tokens.
    needs_tokens = receiver in (0, sender)
    if needs_tokens and ranks[receiver].next_is_use(moment) and any(r.part_at(moment) == "draft" for r in ranks):
        return "draft"
    return "waiting"


class _Timeline:
    """One rank's events in time order; they do not overlap."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = sorted(events, key=lambda e: e.start_ns)
        self._starts = [e.start_ns for e in self.events]

    def between(self, start: int, end: int) -> list[Event]:
        """Events of which some part lies in [start, end)."""
        first = max(0, bisect_right(self._starts, start) - 1)
        return [e for e in self.events[first : bisect_right(self._starts, end)] if _end(e) > start and e.start_ns < end]

    def part_at(self, moment: float) -> str:
        number = bisect_right(self._starts, moment) - 1
        if number < 0 or _end(self.events[number]) < moment:
            return "python"
        return _PART_OF[self.events[number].activity]

    def next_is_use(self, moment: float) -> bool:
        """Whether what follows the event at `moment` is a target pass or a verification."""
        following = self.events[bisect_right(self._starts, moment) :][:1]
        return bool(following) and following[0].activity in (Activity.TARGET, Activity.VERIFY)

    def first_move_after(self, moment: int) -> int:
        """End of the first posting of messages that starts at or after `moment`; `moment` where there is none."""
        following = self.events[bisect_right(self._starts, moment - 1) :]
        return next((_end(e) for e in following if e.activity is Activity.MOVE), moment)

    def last_pass(self, before: int, label: str | None) -> Event:
        """The last target pass that ended by `before`, over the positions `label` if given."""
        for event in reversed(self.events[: bisect_right(self._starts, before)]):
            if event.activity is Activity.TARGET and _end(event) <= before and label in (None, event.label):
                return event
        raise ValueError(f"no target pass over {label or 'any positions'} before {before} ns")

    def parts(self, start: int, end: int) -> dict[str, int]:
        """Time in [start, end) by part; they add up to end - start."""
        parts = dict.fromkeys(PARTS, 0)
        for event in self.between(start, end):
            parts[_PART_OF[event.activity]] += min(_end(event), end) - max(event.start_ns, start)
        parts["python"] = end - start - sum(parts.values())
        return parts


def _end(event: Event) -> int:
    return event.start_ns + event.duration_ns


def _in_ms(parts: dict[str, int]) -> dict[str, float]:
    return {name: ns / _NS_PER_MS for name, ns in parts.items()}
