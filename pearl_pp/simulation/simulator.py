"""The other interpreter of the schedule: it adds up times from a cost model instead of doing the work.

It executes the same instructions in the same order as the workers do, and waits where they wait, so a schedule
is never written twice. Times are in any one unit that the cost model uses.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pearl_pp.messages import Verdict
from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.schedule.instructions import Draft, ForwardTarget, Kind, SendVerdict, Transfer, Verify
from pearl_pp.schedule.schedule import Schedule
from pearl_pp.simulation.timeline import Busy, Spent, Timeline
from pearl_pp.telemetry import Activity, Purpose


class CostModel(Protocol):
    """How long things take.

    slot_s: of a rank's own time for each slot. post_s: of a sender's own time for each message.
    """

    @property
    def slot_s(self) -> float: ...

    @property
    def post_s(self) -> float: ...

    def target(self, rank: int, num_tokens: int) -> float:
        """One pass of a stage over `num_tokens` positions."""
        ...

    def draft(self, rank: int, replica: int, shard: int, num_tokens: int) -> float:
        """One pass of a draft shard over `num_tokens` positions."""
        ...

    def message(self, kind: Kind | None, src: int, dst: int, count: int, num_layers: int) -> float:
        """From the post of a send to its arrival.

        Args:
            kind: None is a verdict, with room for `count` ids.
            count: positions it is about. num_layers: of KV entries, else 0.
        """
        ...


class _Tape:
    """How many ids a rank knows, and when those on their way will arrive (`TokenTape` of the worker)."""

    def __init__(self, num_known: int) -> None:
        self.num_known = num_known
        self.coming: deque[tuple[int, float]] = deque()

    def settle(self, end: int) -> float:
        """When the ids of positions below `end` are all there; 0 where nothing has to be waited for."""
        moment = 0.0
        while self.coming and self.num_known < end:
            message_end, arrival = self.coming.popleft()
            self.num_known = max(self.num_known, message_end)
            moment = max(moment, arrival)
        return moment

    def commit(self, position: int, end: int, restarts: bool) -> None:
        """A verdict's ids; after a restart what is on its way is of no use."""
        if restarts:
            self.coming.clear()
            self.num_known = end
        elif position <= self.num_known:
            self.num_known = max(self.num_known, end)


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
        self._slot_s, self._post_s = costs.slot_s, costs.post_s

    def run(
        self, prompt_len: int, total_len: int, draft_end: int | None = None, keeps_events: bool = False
    ) -> Timeline:
        """A request of `prompt_len` tokens until `total_len` (or the judge) ends it.

        Args:
            keeps_events: for a trace: what ranks do besides passes, too.
        """
        self._keeps_events = keeps_events
        self._generator = SlotGenerator(self._schedule, prompt_len, total_len, draft_end or total_len)
        self._clock = [0.0] * self._schedule.world_size
        self._tapes = [_Tape(prompt_len) for _ in self._clock]
        self._inbox: dict[tuple[Kind, int, int], deque[float]] = defaultdict(deque)
        self._timeline = Timeline([], [], self._generator, self._schedule.world_size, prompt_len, [])
        handlers = {
            ForwardTarget: self._forward_target,
            Draft: self._draft,
            Transfer: self._transfer,
            Verify: self._verify,
            SendVerdict: self._send_verdict,
        }
        while not self._generator.finished:
            plan = self._generator.next_slot()
            if self._slot_s:
                self._clock = [time + self._slot_s for time in self._clock]
            self._plan = plan
            for instruction in plan.instructions:
                handlers[type(instruction)](instruction)
        return self._timeline

    # -- passes

    def _forward_target(self, forward: ForwardTarget) -> None:
        rank, start, end, _ = forward
        arrived = self._tapes[0].settle(end) if rank == 0 else self._inbox[Kind.ACTIVATION, rank, -1].popleft()
        self._work(forward, arrived, self._costs.target(rank, end - start))

    def _draft(self, draft: Draft) -> None:
        rank, replica, shard, start, end, samples = draft
        tape = self._tapes[rank]
        self._wait_for_entries(rank, self._inbox.pop((Kind.KV, rank, replica), ()))
        arrived = self._inbox[Kind.DRAFT_ACTIVATION, rank, replica].popleft() if shard > 0 else 0.0
        if shard == 0 or samples:
            arrived = max(arrived, tape.settle(end))
        self._work(draft, arrived, self._costs.draft(rank, replica, shard, end - start))
        if samples:
            tape.num_known = end + 1

    def _work(self, instruction: ForwardTarget | Draft, arrived: float, duration: float) -> None:
        rank = instruction.rank
        self._wait(rank, arrived, "a pass's inputs")
        start = self._clock[rank]
        self._clock[rank] = start + duration
        self._timeline.busy.append(Busy(rank, start, start + duration, instruction, self._plan.slot))

    # -- messages

    def _transfer(self, transfer: Transfer) -> None:
        kind, src, dst, start, end = transfer[:5]
        arrival = self._clock[src]
        if src != dst:
            self._post(src, "", transfer, Purpose.HANDOFF if kind is Kind.KV else "")
            num_layers = transfer.layer_end - transfer.layer_start
            arrival += self._costs.message(kind, src, dst, end - start, num_layers)
        if kind is Kind.TOKENS:
            self._tapes[dst].coming.append((end, arrival))
        else:
            self._inbox[kind, dst, transfer.replica].append(arrival)

    # -- verdicts

    def _verify(self, verify: Verify) -> None:
        rank = verify.rank
        self._wait(rank, self._tapes[rank].settle(verify.first + verify.num_drafted), "drafted tokens")
        for kind in (Kind.PROBS, Kind.REPORT):
            self._wait(rank, max(self._inbox.pop((kind, rank, -1), ()), default=0.0), kind.name.lower())
        self._note(rank, self._clock[rank], Activity.VERIFY, "", verify)
        self._verdict = self._judge(self._plan.slot, verify, self._generator)

    def _send_verdict(self, send: SendVerdict) -> None:
        """Every rank waits for the verdict when it has done its part of the slot."""
        verdict, src = self._verdict, send.src
        position = self._generator.state.committed
        self._generator.apply(verdict)
        sent = self._clock[src]
        for rank in range(self._schedule.world_size):
            if rank != src:
                self._post(src, "verdict")
                sent = self._clock[src] if self._post_s else sent
                self._wait(rank, sent + self._costs.message(None, src, rank, send.max_ids, 0), "the verdict")
        ends = verdict.restarts or verdict.stop != 0
        for tape in self._tapes:
            tape.commit(position, position + len(verdict.token_ids), ends)
        self._timeline.verdicts.append((self._clock[0], verdict))
        if ends:
            self._drop_messages()

    def _drop_messages(self) -> None:
        """Entries handed over are waited for and kept; all else is dropped."""
        for (kind, rank, _), arrivals in self._inbox.items():
            if kind is Kind.KV:
                self._wait_for_entries(rank, arrivals)
        self._inbox.clear()

    # -- time besides passes

    def _wait_for_entries(self, rank: int, arrivals: Iterable[float]) -> None:
        self._wait(rank, max(arrivals, default=0.0), "entries")

    def _wait(self, rank: int, until: float, label: str) -> None:
        clock = self._clock[rank]
        if until > clock:
            self._clock[rank] = until
            self._note(rank, clock, Activity.WAIT, label, ())

    def _post(self, rank: int, label: str, about: tuple[Any, ...] = (), purpose: str = "") -> None:
        clock = self._clock[rank]
        self._clock[rank] = clock + self._post_s
        self._note(rank, clock, Activity.MOVE, label, about, purpose)

    def _note(
        self, rank: int, start: float, activity: Activity, label: str, about: tuple[Any, ...], purpose: str = ""
    ) -> None:
        if self._keeps_events:
            slot = self._plan.slot
            self._timeline.others.append(Spent(rank, start, self._clock[rank], activity, label, slot, about, purpose))
