"""What a simulated request did: passes, verdicts, rates, idle time, and the events of a Chrome trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pearl_pp.messages import Verdict
from pearl_pp.schedule.fates import with_fates
from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.schedule.instructions import Draft, ForwardTarget
from pearl_pp.telemetry import Activity, Event, RequestSpan, write_chrome_trace

_ACTIVITIES = {ForwardTarget: Activity.TARGET, Draft: Activity.DRAFT}


class Busy(NamedTuple):
    """A rank at work on an instruction of `slot`."""

    rank: int
    start: float
    end: float
    instruction: ForwardTarget | Draft
    slot: int = -1


class Spent(NamedTuple):
    """A rank at something else; the last four are those of an `Event`."""

    rank: int
    start: float
    end: float
    activity: Activity
    label: str
    slot: int
    about: tuple[Any, ...] = ()
    purpose: str = ""


class Timeline(NamedTuple):
    """A simulated request, in the cost model's unit of time.

    Args:
        verdicts: (time at which rank 0 knew it, verdict).
        world_size: ranks, idle ones included.
        prompt_len: tokens of the prompt.
        others: what ranks did besides passes, where events are kept.
    """

    busy: list[Busy]
    verdicts: list[tuple[float, Verdict]]
    generator: SlotGenerator
    world_size: int
    prompt_len: int
    others: list[Spent]

    @property
    def duration(self) -> float:
        """From the start to the last verdict."""
        return self.verdicts[-1][0]

    @property
    def num_tokens(self) -> int:
        return sum(len(verdict.token_ids) for _, verdict in self.verdicts)

    @property
    def decode_tokens_per_s(self) -> float | None:
        """(tokens - 1) / time after the first verdict, as a run reports it; None where no time passed."""
        seconds = self.duration - self.verdicts[0][0]
        return (self.num_tokens - 1) / seconds if seconds > 0 else None

    def idle_shares(self) -> list[float]:
        """For each rank, the share of the duration in which it made no pass."""
        working = [0.0] * self.world_size
        for busy in self.busy:
            working[busy.rank] += min(busy.end, self.duration) - min(busy.start, self.duration)
        return [1.0 - seconds / self.duration for seconds in working]

    def seconds(self, activity: Activity, rank: int) -> float:
        """Time in target or draft passes of a rank."""
        passes = (b for b in self.busy if b.rank == rank and _ACTIVITIES[type(b.instruction)] is activity)
        return sum(busy.end - busy.start for busy in passes)

    def events(self) -> list[list[Event]]:
        """Of each rank, with fates, as `telemetry.write_chrome_trace` takes them; times are read as seconds."""
        events: list[list[Event]] = [[] for _ in range(self.world_size)]
        for spent in [*map(_of_pass, self.busy), *self.others]:
            events[spent.rank].append(_event(spent))
        verdicts = [verdict for _, verdict in self.verdicts]
        return with_fates(events, verdicts, self.prompt_len, self.generator.schedule.last_rank)

    def write_trace(self, path: str | Path, name: str = "request 1") -> None:
        """Chrome trace JSON, as `--trace` of a run writes it; times are read as seconds."""
        request = RequestSpan(name, 0, round(self.duration * 1e9))
        write_chrome_trace(path, self.events(), [request], mode="simulated")


def _of_pass(busy: Busy) -> Spent:
    instruction = busy.instruction
    label = f"[{instruction.start}, {instruction.end})"
    return Spent(*busy[:3], _ACTIVITIES[type(instruction)], label, busy.slot, instruction)


def _event(spent: Spent) -> Event:
    # Both ends are rounded, so that what follows one after another does not overlap.
    start_ns, end_ns = round(spent.start * 1e9), round(spent.end * 1e9)
    return Event(spent.activity, start_ns, end_ns - start_ns, spent.label, spent.slot, spent.about, spent.purpose)
