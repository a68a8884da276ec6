"""One window sequence: the slots from a restart to the next, as long as every verdict accepts.

Times are ticks since the restart (`TICKS` to a slot). Positions are those of a frame of its own; what leaves here
is relative to the text committed at the restart, so that equal windows of a text are generated once.
"""

from __future__ import annotations

import itertools

from pearl_pp.decoding.window import Chunk, SequenceState
from pearl_pp.messages import Outcome, Verdict
from pearl_pp.schedule.drafting import Occupancy, PlacedPass, PrefillProgress, split_pass
from pearl_pp.schedule.instructions import Draft, ForwardTarget, Instruction, Kind, SendVerdict, Transfer, Verify
from pearl_pp.schedule.schedule import TICKS, Schedule
from pearl_pp.schedule.windows import Phase, WindowSlot, WindowStart


class WindowGenerator:
    """Generates the slots after a restart one by one; `accept` stands for a verdict that accepts all."""

    def __init__(self, schedule: Schedule, start: WindowStart) -> None:
        lowest = [-start.num_unfed, *(length for lengths in start.kv_lengths for length in lengths)]
        self._base = base = -min([*lowest, *(start.prompt or ())])
        self._prompt = [base + position for position in start.prompt or ()]
        self.state = SequenceState(base, base + start.remaining, base + start.draftable)
        self.state.fed = base - start.num_unfed
        self.kv_lengths = [[base + length for length in lengths] for lengths in start.kv_lengths]
        self._planned_kv = [min(lengths) for lengths in self.kv_lengths]
        self._prefill = PrefillProgress([len(replica) for replica in schedule.replicas], start.ready)
        self.schedule = schedule
        self._in_use = schedule.in_use
        self._shares = [split_pass(replica, schedule.pass_ticks) for replica in schedule.replicas]
        self._reports = start.reports
        self._num_verdicts = 0
        self._num_hops = 0
        self._replica = start.replica
        self._slot = self._clock = self._number = 0
        self._origin: int | None = None
        self._scheduled = base
        self._events: list[tuple[int, int, Phase, int, Instruction]] = []
        # Draft parts on a rank: (rank, start, finish). Passes under way and tokens not yet told to the others:
        # (finish, replica, position).
        self._parts: list[tuple[int, int, int]] = []
        self._finishing: list[tuple[int, int, int]] = []
        self._unshared: list[tuple[int, int, int]] = []

    def accept(self) -> None:
        """The verdict of the slot just generated accepts all that it judges."""
        chunk = self.state.in_flight[0]
        judged = (0,) * chunk.num_judged
        self._num_verdicts += 1
        self.state.apply(Verdict(self._slot, judged, len(judged), Outcome.ACCEPTED))

    def next_slot(self) -> WindowSlot:
        slot = self._slot
        self._num_hops = 0
        self._parts = [part for part in self._parts if part[2] > slot * TICKS]
        self._enter_chunk(slot)
        self._forward_target(slot)
        self._draft(slot)
        self._prefill_idle_replicas(slot)
        leaving = next((c for c in self.state.in_flight if c.entry_slot + self.schedule.last_rank == slot), None)
        self._share_tokens(slot, leaving)
        has_verdict = False
        if leaving is not None:
            has_verdict = leaving.num_judged > 0
            if has_verdict:
                self._verify(slot, leaving)
            else:
                self.state.retire()
        due = sorted(e for e in self._events if e[0] == slot)
        self._events = [e for e in self._events if e[0] != slot]
        self._slot += 1
        return self._finished_slot(tuple(e[-1] for e in due), has_verdict)

    def _finished_slot(self, instructions: tuple[Instruction, ...], has_verdict: bool) -> WindowSlot:
        num_draft_tokens = 0
        for instruction in instructions:
            if isinstance(instruction, Draft):
                self.kv_lengths[instruction.replica][instruction.shard] = instruction.end
                num_draft_tokens += instruction.samples
            elif isinstance(instruction, Transfer) and instruction.kind is Kind.KV:
                for number, shard in enumerate(self.schedule.replicas[instruction.replica]):
                    if shard.rank == instruction.dst:
                        self.kv_lengths[instruction.replica][number] = instruction.end
        return WindowSlot(
            tuple(instruction.moved(-self._base) for instruction in instructions),
            has_verdict,
            tuple(tuple(length - self._base for length in lengths) for lengths in self.kv_lengths),
            tuple(self._prefill.is_ready(i) for i in range(len(self.kv_lengths))),
            self._replica,
            num_draft_tokens,
            self._num_hops,
            self._scheduled - self._base,
        )

    # -- entries and target passes

    def _is_entry_slot(self, slot: int, drafted: int) -> bool:
        if self._origin is None:  # the first chunk may have to wait for the first window
            return drafted >= min(self.state.committed + self.schedule.first_window, self._draft_end())
        since_fill = slot - self._origin - (self.schedule.fill - 1)
        return since_fill <= 0 or since_fill % self.schedule.verify_interval == 0

    def _enter_chunk(self, slot: int) -> None:
        if self._num_pieces_left:
            self.state.take_piece(slot, self.schedule.prefill_piece)
        elif self._is_entry_slot(slot, self.state.drafted) and self.state.take_chunk(slot) and self._origin is None:
            self._origin = slot

    @property
    def _num_pieces_left(self) -> int:
        """Pieces of the prompt before its last one, which waits for what is drafted meanwhile."""
        size = self.schedule.prefill_piece
        return max(0, self.state.prompt_len - 1 - self.state.fed) // size if size else 0

    def _next_entries(self, slot: int) -> list[int]:
        """Slots after `slot` in which chunks will enter if nothing more is drafted until then."""
        pieces = [slot + 1 + i for i in range(self._num_pieces_left)]
        if min(self._scheduled, self.state.total_len - 1) <= self.state.fed:
            return pieces
        later = slot + len(pieces) + 1
        if self._origin is None:
            return [*pieces, later] if self._is_entry_slot(later, self._scheduled) else pieces
        return [next(k for k in itertools.count(later) if self._is_entry_slot(k, self._scheduled))]

    def _forward_target(self, slot: int) -> None:
        for chunk in self.state.in_flight:
            rank = slot - chunk.entry_slot
            is_last = rank == self.schedule.last_rank
            rows = chunk.num_judged if is_last else 0
            self._emit(slot, slot * TICKS, Phase.COMPUTE, ForwardTarget(rank, chunk.start, chunk.end, rows))
            if not is_last:
                move = Transfer(Kind.ACTIVATION, rank, rank + 1, chunk.start, chunk.end)
                self._emit(slot, (slot + 1) * TICKS, Phase.OUTPUT, move)

    def _verify(self, slot: int, chunk: Chunk) -> None:
        last, end = self.schedule.last_rank, (slot + 1) * TICKS
        if self._num_verdicts in self._reports:
            for rank in range(self.schedule.world_size):
                if rank != last:
                    self._emit(slot, end, Phase.OUTPUT, Transfer(Kind.REPORT, rank, last, 0, 2))
        drafted = self.state.num_drafted_for(chunk)
        bonus = drafted < chunk.num_judged
        self._emit(slot, end, Phase.VERIFY, Verify(last, chunk.first_judged, drafted, bonus))
        self._emit(slot, end, Phase.VERDICT, SendVerdict(last, chunk.num_judged))

    # -- draft passes

    def _draft_end(self) -> int:
        if not self._in_use:
            return self.state.committed
        limit = self.schedule.draft_limit
        return self.state.draft_end if limit is None else min(self.state.draft_end, self.state.committed + limit)

    def _draft(self, slot: int) -> None:
        """Passes that start in this slot: each when the one before has ended, where it ends first."""
        end = (slot + 1) * TICKS
        self._clock = max(self._clock, slot * TICKS)
        while self._clock < end and self._scheduled < self._draft_end():
            placed = self._place_pass(slot)
            if placed.start >= end:
                return
            self._emit_pass(placed)
            self._clock = placed.finish

    def _place_pass(self, slot: int) -> PlacedPass:
        entries = [chunk.entry_slot for chunk in self.state.in_flight]
        entries += self._next_entries(slot)
        occupancy = Occupancy(self.schedule.num_stages, entries, self._parts)
        replicas = self.schedule.replicas
        usable = [i for i in self._in_use if self._prefill.is_ready(i)] or self._in_use
        choices = [occupancy.place(i, replicas[i], self._shares[i], self._clock) for i in usable]
        return min(choices, key=lambda placed: (placed.finish, placed.replica != self._replica, placed.replica))

    def _emit_pass(self, placed: PlacedPass) -> None:
        index, position = placed.replica, self._scheduled
        self._num_hops += self._replica not in (index, -1)
        self._replica = index
        self._prefill.mark_ready(index)
        self._hand_off(index, placed.start)
        # A replica that has read the whole prompt feeds its last token again: a guess needs that row.
        self._emit_parts(placed, min(self._planned_kv[index], position - 1), position)
        self._planned_kv[index] = position
        self._finishing.append((placed.finish, index, position))
        self._scheduled = position + 1

    def _emit_parts(self, placed: PlacedPass, feed_start: int, feed_end: int) -> None:
        replica = self.schedule.replicas[placed.replica]
        for number, (shard, (start, finish)) in enumerate(zip(replica, placed.parts, strict=True)):
            is_last = number == len(replica) - 1
            draft = Draft(shard.rank, placed.replica, number, feed_start, feed_end, is_last)
            self._emit(start // TICKS, start, Phase.COMPUTE, draft)
            self._parts.append((shard.rank, start, finish))
            if not is_last:
                target = replica[number + 1].rank
                move = Transfer(Kind.DRAFT_ACTIVATION, shard.rank, target, feed_start, feed_end, placed.replica)
                self._emit((finish - 1) // TICKS, finish, Phase.OUTPUT, move)

    def _hand_off(self, index: int, time: int) -> None:
        """`ship`: entries the replica lacks come from the one that has most (DESIGN section 5)."""
        source = max(self._in_use, key=lambda number: self._planned_kv[number])
        have, available = self._planned_kv[index], self._planned_kv[source]
        if not self.schedule.ships_kv or available <= have or self._is_empty(have):
            return
        for dst in self.schedule.replicas[index]:
            for src in self.schedule.replicas[source]:
                start, end = max(src.start, dst.start), min(src.end, dst.end)
                if start < end:
                    move = Transfer(Kind.KV, src.rank, dst.rank, have, available, index, source, start, end)
                    self._emit(time // TICKS, time, Phase.HANDOFF, move)
        self._planned_kv[index] = available

    def _is_empty(self, length: int) -> bool:
        """Before it has read the prompt a replica is not handed one: prompts never travel."""
        return bool(self._prompt) and length == self._prompt[0]

    def _prefill_idle_replicas(self, slot: int) -> None:
        """A replica not yet used reads the prompt on a rank that is idle for this whole slot, shard after shard."""
        due = self._prefill.due()
        if not due or self.state.draft_end <= self._base:  # a draft that can guess nothing need not read anything
            return
        occupancy = Occupancy(self.schedule.num_stages, [c.entry_slot for c in self.state.in_flight], self._parts)
        for index, shard_number in due:
            replica = self.schedule.replicas[index]
            shard, start = replica[shard_number], slot * TICKS
            if not occupancy.is_free(shard.rank, start, start + TICKS):
                continue
            first, end = self._prompt
            self._emit(slot, start, Phase.COMPUTE, Draft(shard.rank, index, shard_number, first, end, False))
            self._parts.append((shard.rank, start, start + TICKS))
            if shard_number < len(replica) - 1:
                target = replica[shard_number + 1].rank
                move = Transfer(Kind.DRAFT_ACTIVATION, shard.rank, target, first, end, index)
                self._emit(slot, start + TICKS, Phase.OUTPUT, move)
            if self._prefill.advance(index):
                self._planned_kv[index] = end

    def _share_tokens(self, slot: int, leaving: Chunk | None) -> None:
        """Drafted tokens go to rank 0, the last stage and every replica when one of them needs some: one message a
        stay, mostly. They count as drafted from the slot in which their pass ends.
        """
        end = (slot + 1) * TICKS
        done = [f for f in self._finishing if f[0] <= end]
        self._finishing = self._finishing[len(done) :]
        self._unshared += done
        if done:
            self.state.drafted = done[-1][2] + 1
        is_needed = (
            leaving is not None or self._num_pieces_left > 0 or self._is_entry_slot(slot + 1, self.state.drafted)
        )
        while self._unshared:
            index = self._unshared[0][1]
            size = next((i for i, f in enumerate(self._unshared) if f[1] != index), len(self._unshared))
            source = self.schedule.replicas[index][-1].rank
            if len(self._shares[index]) > 1:  # each token is needed on the replica's first rank at once
                size = 1
            elif size == len(self._unshared) and index == self._replica and not is_needed:
                return
            finish, _, last = self._unshared[size - 1]
            self._send_tokens(slot, max(finish, slot * TICKS), source, self._unshared[0][2], last + 1)
            self._unshared = self._unshared[size:]

    def _send_tokens(self, slot: int, time: int, src: int, start: int, end: int) -> None:
        readers = {0, self.schedule.last_rank}
        for number in self._in_use:
            replica = self.schedule.replicas[number]
            readers |= {shard.rank for shard in (replica[0], replica[-1])}
        for dst in sorted(readers - {src}):
            self._emit(slot, time, Phase.OUTPUT, Transfer(Kind.TOKENS, src, dst, start, end))
        if self.schedule.sends_probs and src != self.schedule.last_rank:
            self._emit(slot, time, Phase.OUTPUT, Transfer(Kind.PROBS, src, self.schedule.last_rank, start, end))

    def _emit(self, slot: int, time: int, phase: Phase, instruction: Instruction) -> None:
        self._number += 1
        self._events.append((slot, time, phase, self._number, instruction))
