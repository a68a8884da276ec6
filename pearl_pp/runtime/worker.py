"""The interpreter of the schedule on one rank: it does what the instructions say, in their order."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from pearl_pp.messages import Outcome, Verdict
from pearl_pp.runtime.drafter import Drafter
from pearl_pp.runtime.mailbox import Mailbox, TokenTape
from pearl_pp.runtime.pacing import measured_pass_ticks
from pearl_pp.runtime.request import Request
from pearl_pp.runtime.verifier import Verifier
from pearl_pp.runtime.wiring import Wiring
from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.schedule.instructions import (
    Draft,
    ForwardTarget,
    Kind,
    SendVerdict,
    Transfer,
    Verify,
)
from pearl_pp.schedule.plan import SlotPlan
from pearl_pp.schedule.schedule import Schedule
from pearl_pp.stages.rank_module import RankModule
from pearl_pp.telemetry import Activity, Purpose, Recorder
from pearl_pp.transport.base import Channel, Transport
from pearl_pp.transport.point_to_point import Completed

OnVerdict = Callable[[SlotGenerator, Verdict], None]

Decide = Callable[[Verify, Verdict], Verdict]
"""Called by the last stage with each verdict that goes on, before it is sent: may add a change, or stop there."""


@dataclass
class Progress:
    """What every rank knows of a running request from the verdicts alone."""

    accepted_runs: list[int] = field(default_factory=lambda: [0])
    num_accepted: int = 0
    num_rejected: int = 0
    num_target_passes: int = 0
    num_changes: int = 0

    def count(self, verdict: Verdict) -> None:
        self.num_target_passes += 1
        self.num_changes += verdict.change is not None
        self.num_accepted += verdict.num_accepted
        self.accepted_runs[-1] += verdict.num_accepted
        if verdict.outcome is Outcome.REJECTED:
            self.num_rejected += 1
            self.accepted_runs.append(0)


class Worker:
    """Runs one request on one rank.

    Args:
        transport: the two planes.
        module: what lives on this rank.
        wiring: shapes and dtypes of messages, agreed at start.
        recorder: where time goes.
        request, schedule: the same on every rank.
        drafter: of the shards on this rank.
        verifier: on the last stage's rank, None elsewhere.
        decide: on the last stage's rank, where the schedule may change; None elsewhere.
    """

    def __init__(
        self,
        transport: Transport,
        module: RankModule,
        wiring: Wiring,
        recorder: Recorder,
        request: Request,
        schedule: Schedule,
        drafter: Drafter,
        verifier: Verifier | None,
        decide: Decide | None = None,
    ) -> None:
        self.rank = transport.rank
        self._transport = transport
        self._module = module
        self._wiring = wiring
        self._recorder = recorder
        self._drafter = drafter
        self._verifier = verifier
        self._decide = decide
        self._generator = SlotGenerator(schedule, len(request.token_ids), request.total_len, request.draft_end)
        self._mailbox = Mailbox()
        self._tape = TokenTape(request.token_ids)
        self._target_output = torch.empty(0)
        for stage in module.stages:
            stage.reset(request.total_len)
        self._handlers: dict[type, Callable] = {
            ForwardTarget: self._forward_target,
            Draft: self._draft,
            Transfer: self._transfer,
            Verify: self._verify,
            SendVerdict: self._send_verdict,
        }

    def run(self, on_verdict: OnVerdict | None = None) -> tuple[SlotGenerator, Progress]:
        """Slot by slot until the request ends; `on_verdict` is called after each verdict has taken effect."""
        generator, progress = self._generator, Progress()
        while not generator.finished:
            plan = generator.next_slot()
            self._execute(plan)
            if plan.has_verdict:
                verdict = self._take_verdict(plan)
                self._apply(verdict)
                progress.count(verdict)
                if on_verdict is not None:
                    on_verdict(generator, verdict)
        self._mailbox.drain()
        return generator, progress

    def _execute(self, plan: SlotPlan) -> None:
        self._slot = self._recorder.slot = plan.slot
        for instruction in plan.for_rank(self.rank):
            self._handlers[type(instruction)](instruction)

    # -- passes

    def _forward_target(self, forward: ForwardTarget) -> None:
        stage = self._module.target
        assert stage is not None, "the schedule puts target passes on stages only"
        with self._recorder.measure(Activity.WAIT, "a chunk"):
            if stage.is_first:
                inputs = torch.tensor(self._tape.read(forward.start, forward.end), dtype=torch.int64)
            else:
                inputs = self._mailbox.take(Kind.ACTIVATION, forward.start, forward.end)
        with self._recorder.measure(Activity.TARGET, f"[{forward.start}, {forward.end})", forward):
            self._target_output = stage.run(inputs, forward.start, num_logits=forward.num_logits)

    def _draft(self, draft: Draft) -> None:
        self._import_entries(draft.replica)
        with self._recorder.measure(Activity.WAIT, "a draft pass's inputs"):
            inputs = self._drafter.fetch(draft, self._tape, self._mailbox)
            context = self._tape.prefix(draft.end) if draft.samples else ()
        with self._recorder.measure(Activity.DRAFT, f"[{draft.start}, {draft.end})", draft):
            output = self._drafter.run(draft, inputs)
            if draft.samples:
                self._tape.append(draft.end, self._drafter.draw(draft, output, context))

    # -- messages

    def _transfer(self, transfer: Transfer) -> None:
        purpose = Purpose.HANDOFF if transfer.kind is Kind.KV else ""
        with self._recorder.measure(Activity.MOVE, "", transfer, purpose):
            if transfer.src == transfer.dst:
                # In line with entries from other ranks: layers are written in the order in which they are handed over.
                self._mailbox.post(transfer, Completed(self._payload(transfer)))
            elif transfer.src == self.rank:
                self._transport.isend(self._wiring.channel(transfer.kind), transfer.dst, self._payload(transfer))
            else:
                self._receive(transfer)

    def _payload(self, transfer: Transfer) -> torch.Tensor:
        kind, start, end = transfer.kind, transfer.start, transfer.end
        if kind is Kind.ACTIVATION:
            return self._target_output
        if kind is Kind.DRAFT_ACTIVATION:
            return self._drafter.hidden.pop(transfer.replica)
        if kind is Kind.TOKENS:
            return torch.tensor(self._tape.read(start, end), dtype=torch.int64)
        if kind is Kind.PROBS:
            return self._drafter.take_probs(start, end)
        if kind is Kind.REPORT:
            return torch.tensor(self._pass_times(), dtype=torch.int64)
        cache = self._module.shards[transfer.source_replica].cache
        return cache.export_range(transfer.layer_start, transfer.layer_end, start, end)

    def _receive(self, transfer: Transfer) -> None:
        channel = self._wiring.channel(transfer.kind)
        if transfer.kind is Kind.KV:
            cache = self._module.shards[transfer.replica].cache
            dtype = cache.dtype
            shape = cache.entry_shape(transfer.layer_start, transfer.layer_end, transfer.end - transfer.start)
        else:
            shape, dtype = self._wiring.shape_and_dtype(transfer)
        pending = self._transport.irecv(channel, transfer.src, shape, dtype)
        if transfer.kind is Kind.TOKENS:
            self._tape.expect(transfer, pending)
        else:
            self._mailbox.post(transfer, pending)

    def _import_entries(self, replica: int) -> None:
        """Hand-off: entries that another replica computed take their place in this rank's shard."""
        start = time.perf_counter_ns()
        arrived = self._mailbox.take_all(Kind.KV, replica)
        if not arrived:
            return
        self._recorder.count(Activity.WAIT, "entries", start)
        cache = self._module.shards[replica].cache
        for transfer, entries in arrived:
            with self._recorder.measure(Activity.MOVE, "", transfer, Purpose.HANDOFF):
                cache.cut(min(cache.length, transfer.start))
                cache.import_range(transfer.layer_start, transfer.layer_end, transfer.start, entries)

    # -- verdicts

    def _verify(self, verify: Verify) -> None:
        assert self._verifier is not None, "the last stage's rank has the verifier"
        first, end = verify.first, verify.first + verify.num_drafted
        with self._recorder.measure(Activity.WAIT, "drafted tokens"):
            drafted = self._tape.read(first, end)
            context = self._tape.prefix(first)
            probs = self._drafted_probs(first, end) if self._generator.schedule.sends_probs else None
        with self._recorder.measure(Activity.VERIFY, "", verify):
            verdict = self._verifier.judge(self._slot, verify, self._target_output, context, drafted, probs)
        self._verdict = verdict if verdict.stop else self._completed(verify, verdict)

    def _send_verdict(self, send: SendVerdict) -> None:
        length = Verdict.wire_length(send.max_ids)
        with self._recorder.measure(Activity.MOVE, "verdict"):
            if send.src != self.rank:
                self._verdict_coming = self._transport.irecv(Channel.CONTROL, send.src, (length,), torch.int64)
                return
            fields = torch.tensor(self._verdict.to_wire(send.max_ids), dtype=torch.int64)
            for dst in range(self._transport.world_size):
                if dst != self.rank:
                    self._transport.isend(Channel.CONTROL, dst, fields)

    def _take_verdict(self, plan: SlotPlan) -> Verdict:
        if self._verifier is not None:
            return self._verdict
        with self._recorder.measure(Activity.WAIT, "the verdict"):
            return Verdict.from_wire(self._verdict_coming.wait().tolist(), plan.slot)

    def _apply(self, verdict: Verdict) -> None:
        position = self._generator.state.committed
        self._generator.apply(verdict)
        ends = verdict.restarts or verdict.stop != 0
        useless = self._tape.commit(position, verdict.token_ids, ends)
        if ends:
            # Entries handed over are part of the state that the generator counts on; all else is dropped.
            for replica in self._module.shards:
                self._import_entries(replica)
            self._mailbox.drop_all(useless)
            self._drafter.restart()
            for stage in self._module.stages:
                stage.cache.cut(min(stage.cache.length, self._generator.state.committed - 1))

    # -- what the last stage needs from elsewhere

    def _drafted_probs(self, first: int, end: int) -> torch.Tensor | None:
        """q of positions [first, end), from this rank's own draft passes and from messages."""
        for transfer, rows in self._mailbox.take_all(Kind.PROBS):
            self._drafter.probs.update(zip(range(transfer.start, transfer.end), rows, strict=True))
        return self._drafter.take_probs(first, end) if first < end else None

    def _pass_times(self) -> list[int]:
        return [self._recorder.median_ns(Activity.TARGET), self._recorder.median_ns(Activity.DRAFT)]

    def _completed(self, verify: Verify, verdict: Verdict) -> Verdict:
        """With the pace, where the ranks have just reported it, or with what the decider adds."""
        reports = self._mailbox.take_all(Kind.REPORT)
        if reports and (pass_ticks := self._new_pass_ticks(reports)):
            return replace(verdict, change=self._generator.schedule.with_pass_ticks(pass_ticks).as_change())
        return verdict if self._decide is None else self._decide(verify, verdict)

    def _new_pass_ticks(self, reports: list[tuple[Transfer, torch.Tensor]]) -> int:
        """Length of a draft pass from what the ranks have measured; 0 where something has not been."""
        times = {transfer.src: arrived.tolist() for transfer, arrived in reports} | {self.rank: self._pass_times()}
        target_ns, draft_ns = zip(*(times[rank] for rank in sorted(times)), strict=True)
        schedule = self._generator.schedule
        return measured_pass_ticks(target_ns, draft_ns, schedule.replicas, schedule.num_stages)
