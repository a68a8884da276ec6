"""What a simulated request did: passes, verdicts, rates, idle time, and the events of a Chrome trace."""

from __future__ import annotations

from typing import NamedTuple

from pearl_pp.messages import Verdict
from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.schedule.instructions import Draft, ForwardTarget
from pearl_pp.telemetry import Activity, Event


class Busy(NamedTuple):
    """A rank at work."""

    rank: int
    start: float
    end: float
    instruction: ForwardTarget | Draft


class Timeline(NamedTuple):
    """A simulated request, in the cost model's unit of time.

    Args:
        verdicts: (time at which rank 0 knew it, verdict).
        world_size: ranks, idle ones included.
    """

    busy: list[Busy]
    verdicts: list[tuple[float, Verdict]]
    generator: SlotGenerator
    world_size: int

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

    def events(self) -> list[list[Event]]:
        """Passes of each rank as `telemetry.write_chrome_trace` takes them; times are read as seconds."""
        events: list[list[Event]] = [[] for _ in range(self.world_size)]
        for rank, start, end, instruction in self.busy:
            activity = Activity.TARGET if isinstance(instruction, ForwardTarget) else Activity.DRAFT
            label = f"[{instruction.start}, {instruction.end})"
            events[rank].append(Event(activity, round(start * 1e9), round((end - start) * 1e9), label))
        return events
