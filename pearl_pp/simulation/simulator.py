"""The other interpreter of the schedule: it adds up times from a cost model instead of doing the work.

It executes the same instructions in the same order as the workers do, so a schedule is never written twice.
Times are in any one unit that the cost model uses.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from pearl_pp.messages import Verdict
from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.schedule.instructions import Draft, ForwardTarget, Kind, SendVerdict, SlotPlan, Transfer, Verify
from pearl_pp.schedule.schedule import Schedule


class CostModel(Protocol):
    """How long things take."""

    def target(self, rank: int, num_tokens: int) -> float:
        """One pass of a stage over `num_tokens` positions."""
        ...

    def draft(self, rank: int, replica: int, shard: int, num_tokens: int) -> float:
        """One pass of a draft shard over `num_tokens` positions."""
        ...

    def message(self, kind: Kind | None, src: int, dst: int, num_positions: int) -> float:
        """From the post of a send to its arrival; kind None is a verdict."""
        ...


class Busy(NamedTuple):
    """A rank at work."""

    rank: int
    start: float
    end: float
    instruction: ForwardTarget | Draft


class Timeline(NamedTuple):
    """What a simulated request did.

    Args:
        verdicts: (time at which rank 0 knew it, verdict).
    """

    busy: list[Busy]
    verdicts: list[tuple[float, Verdict]]
    generator: SlotGenerator


class Simulator:
    """Runs one request through the cost model.

    Args:
        schedule: the generator's parameters.
        costs: how long passes and messages take.
        judge: makes the verdict of a slot: (slot, what is to be verified, generator) -> verdict.
    """

    def __init__(
        self,
        schedule: Schedule,
        costs: CostModel,
        judge: Callable[[int, Verify, SlotGenerator], Verdict],
    ) -> None:
        self._schedule = schedule
        self._costs = costs
        self._judge = judge

    def run(self, prompt_len: int, total_len: int, draft_end: int | None = None) -> Timeline:
        self._generator = SlotGenerator(self._schedule, prompt_len, total_len, draft_end or total_len)
        self._clock = [0.0] * self._schedule.world_size
        self._known: dict[int, float] = {}  # rank -> when its newest token message arrives
        self._restart()
        timeline = Timeline([], [], self._generator)
        while not self._generator.finished:
            plan = self._generator.next_slot()
            self._execute(plan, timeline)
        return timeline

    def _restart(self) -> None:
        self._inbox: dict[tuple[Kind, int, int], deque[float]] = defaultdict(deque)

    def _execute(self, plan: SlotPlan, timeline: Timeline) -> None:
        verdict = None
        for instruction in plan.instructions:
            match instruction:
                case ForwardTarget(rank, start, end):
                    arrived = self._tokens(rank) if rank == 0 else self._take(Kind.ACTIVATION, rank)
                    self._work(instruction, arrived, self._costs.target(rank, end - start), timeline)
                case Draft(rank, replica, shard, start, end):
                    arrived = self._tokens(rank) if shard == 0 else self._take(Kind.DRAFT_ACTIVATION, rank, replica)
                    arrived = max([arrived, *self._inbox.pop((Kind.KV, rank, replica), ())])
                    self._work(instruction, arrived, self._costs.draft(rank, replica, shard, end - start), timeline)
                case Transfer():
                    self._send(instruction)
                case Verify(rank):
                    self._wait(rank, self._tokens(rank))
                    self._wait(rank, max(self._inbox.pop((Kind.PROBS, rank, -1), (0.0,))))
                    verdict = self._judge(plan.slot, instruction, self._generator)
                case SendVerdict(src):
                    assert verdict is not None
                    self._conclude(src, verdict, timeline)

    def _work(self, instruction: ForwardTarget | Draft, arrived: float, duration: float, timeline: Timeline) -> None:
        rank = instruction.rank
        self._wait(rank, arrived)
        start = self._clock[rank]
        self._clock[rank] += duration
        timeline.busy.append(Busy(rank, start, self._clock[rank], instruction))

    def _send(self, transfer: Transfer) -> None:
        count = transfer.end - transfer.start
        arrival = self._clock[transfer.src]
        if transfer.src != transfer.dst:
            arrival += self._costs.message(transfer.kind, transfer.src, transfer.dst, count)
        if transfer.kind is Kind.TOKENS:
            self._known[transfer.dst] = max(self._tokens(transfer.dst), arrival)
        else:
            self._inbox[transfer.kind, transfer.dst, transfer.replica].append(arrival)

    def _conclude(self, src: int, verdict: Verdict, timeline: Timeline) -> None:
        self._generator.apply(verdict)
        now = self._clock[src]
        for rank in range(self._schedule.world_size):
            if rank != src:
                self._wait(rank, now + self._costs.message(None, src, rank, 1))
        timeline.verdicts.append((self._clock[0], verdict))
        if verdict.restarts:
            self._known.clear()
            self._restart()

    def _wait(self, rank: int, until: float) -> None:
        self._clock[rank] = max(self._clock[rank], until)

    def _tokens(self, rank: int) -> float:
        return self._known.get(rank, 0.0)

    def _take(self, kind: Kind, rank: int, replica: int = -1) -> float:
        return self._inbox[kind, rank, replica].popleft()
