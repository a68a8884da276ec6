"""Properties of every schedule: a symbolic worker refuses what a real one could not do."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl_pp.messages import Outcome, Verdict
from pearl_pp.schedule import generator as generator_module
from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.schedule.instructions import Draft, ForwardTarget, Kind, SendVerdict, Transfer, Verify
from pearl_pp.schedule.placement import Placement, Shard
from pearl_pp.schedule.schedule import TICKS, Schedule, plain, speculative
from tests.unit.schedule.strategies import Changes, changes, play, random_judge, schedules


class SymbolicRanks:
    """Caches, known tokens and wires of all ranks, as numbers. Every step asserts what the real one needs."""

    def __init__(self, schedule: Schedule, prompt_len: int, total_len: int) -> None:
        self.schedule = schedule
        self.total_len = total_len
        self.target_kv = [0] * schedule.num_stages
        self.draft_kv = {(i, j): 0 for i, replica in enumerate(schedule.replicas) for j in range(len(replica))}
        self.tokens = [prompt_len] * schedule.world_size
        self.wires: dict[tuple[int, int], deque] = defaultdict(deque)
        self.output: dict[tuple, tuple[int, int]] = {}
        self.drafted: set[int] = set()
        self.handed: list[tuple[Transfer, int]] = []
        self.slot_work: dict[int, list] = {}

    def execute(self, plan) -> None:
        self.slot_work = defaultdict(list)
        for instruction in plan.instructions:
            getattr(self, f"do_{type(instruction).__name__}")(instruction)

    def do_ForwardTarget(self, forward: ForwardTarget) -> None:
        rank, start, end, _ = forward
        self.slot_work[rank].append(forward)
        assert end <= self.total_len - 1, "the last token is judged, never fed"
        assert self.target_kv[rank] == start, "positions are fed in order"
        if rank == 0:
            assert self.tokens[0] >= end, "rank 0 knows what it feeds"
        else:
            assert self.take(Kind.ACTIVATION, rank) == (start, end)
        self.target_kv[rank] = end
        self.output[Kind.ACTIVATION, rank] = (start, end)

    def do_Draft(self, draft: Draft) -> None:
        self.slot_work[draft.rank].append(draft)
        replica = self.schedule.replicas[draft.replica]
        self.import_entries(draft.replica)
        assert replica[draft.shard].rank == draft.rank
        assert self.draft_kv[draft.replica, draft.shard] >= draft.start, "a shard has all before what it is fed"
        assert draft.start < draft.end, "a pass feeds something"
        if draft.shard == 0:
            assert self.tokens[draft.rank] >= draft.end, "the first shard knows the ids"
        else:
            assert self.take(Kind.DRAFT_ACTIVATION, draft.rank, draft.replica) == (draft.start, draft.end)
        self.draft_kv[draft.replica, draft.shard] = draft.end
        self.output[Kind.DRAFT_ACTIVATION, draft.rank, draft.replica] = (draft.start, draft.end)
        if draft.samples:
            assert draft.shard == len(replica) - 1
            assert self.tokens[draft.rank] == draft.end < self.total_len, "it draws the next unknown token"
            self.tokens[draft.rank] += 1
            self.drafted.add(draft.end)

    def do_Transfer(self, t: Transfer) -> None:
        span = (t.start, t.end)
        if t.kind is Kind.ACTIVATION:
            assert self.output[Kind.ACTIVATION, t.src] == span
        elif t.kind is Kind.DRAFT_ACTIVATION:
            assert self.output[Kind.DRAFT_ACTIVATION, t.src, t.replica] == span
        elif t.kind is Kind.TOKENS:
            assert self.tokens[t.src] >= t.end and self.tokens[t.dst] == t.start, "tokens arrive in order, once"
            self.tokens[t.dst] = t.end
        elif t.kind is Kind.PROBS:
            assert t.dst == self.schedule.last_rank and set(range(*span)) <= self.drafted
        elif t.kind is Kind.KV:
            self.hand_off(t)
        if t.kind in (Kind.ACTIVATION, Kind.DRAFT_ACTIVATION):
            self.wires[t.kind, t.dst, t.replica].append(span)

    def hand_off(self, t: Transfer) -> None:
        (src,) = [j for j, s in enumerate(self.schedule.replicas[t.source_replica]) if s.rank == t.src]
        (dst,) = [j for j, s in enumerate(self.schedule.replicas[t.replica]) if s.rank == t.dst]
        assert self.draft_kv[t.source_replica, src] >= t.end, "the source has what it ships"
        assert self.draft_kv[t.replica, dst] >= t.start, "and the destination all before it"
        self.handed.append((t, dst))

    def import_entries(self, replica: int) -> None:
        """What was handed over is written before the replica's next pass, in the order of the messages."""
        for t, dst in [entry for entry in self.handed if entry[0].replica == replica]:
            held = self.draft_kv[replica, dst] = min(self.draft_kv[replica, dst], t.start)
            assert held == t.start, "entries follow those that are held"
            if t.layer_end == self.schedule.replicas[replica][dst].end:
                self.draft_kv[replica, dst] = t.end
        self.handed = [entry for entry in self.handed if entry[0].replica != replica]

    def do_Verify(self, verify: Verify) -> None:
        assert self.tokens[verify.rank] >= verify.first + verify.num_drafted

    def do_SendVerdict(self, send: SendVerdict) -> None:
        assert send.src == self.schedule.last_rank

    def take(self, kind: Kind, rank: int, replica: int = -1) -> tuple[int, int]:
        assert self.wires[kind, rank, replica], "what is used has been sent before"
        return self.wires[kind, rank, replica].popleft()

    def apply(self, verdict: Verdict, generator: SlotGenerator) -> None:
        state = generator.state
        for replica in range(len(self.schedule.replicas)):
            self.import_entries(replica)
        if verdict.restarts or verdict.stop:
            kept = state.committed - 1
            self.target_kv = [min(length, kept) for length in self.target_kv]
            self.draft_kv = {key: min(length, kept) for key, length in self.draft_kv.items()}
            self.tokens = [state.committed] * len(self.tokens)
            self.wires.clear()
            self.drafted.clear()
        else:
            self.tokens = [max(known, state.committed) for known in self.tokens]

    def check_against(self, generator: SlotGenerator) -> None:
        for (i, j), length in self.draft_kv.items():
            assert length == generator.kv_lengths[i][j], "the generator knows every cache's length"


def play_symbolically(schedule: Schedule, prompt_len: int, num_new: int, rng: random.Random, change: Changes) -> None:
    total = prompt_len + num_new
    draft_end = rng.choice([total, total + 5, max(1, total - 7)])
    generator = SlotGenerator(schedule, prompt_len, total, draft_end)
    ranks = SymbolicRanks(schedule, prompt_len, total)
    committed = prompt_len
    judge = random_judge(lambda n: rng.choice([n, rng.randint(0, n)]))
    for plan, verdict in play(generator, judge, change=change):
        ranks.execute(plan)
        for rank, work in ranks.slot_work.items():
            if any(isinstance(w, ForwardTarget) for w in work):
                assert len(work) == 1, f"rank {rank} competes with itself in slot {plan.slot}"
        if verdict is not None:
            ranks.apply(verdict, generator)
            committed += len(verdict.token_ids)
            assert generator.state.committed == committed
            if not verdict.stop:
                ranks.check_against(generator)
    assert generator.state.committed == total, "exactly as many tokens as asked for"


@given(schedules(), st.integers(1, 12), st.integers(1, 30), st.randoms(use_true_random=False))
def test_a_symbolic_worker_can_do_every_schedule(
    schedule: Schedule, prompt_len: int, num_new: int, rng: random.Random
) -> None:
    play_symbolically(schedule, prompt_len, num_new, rng, lambda: None)


@given(schedules(), st.integers(1, 12), st.integers(1, 40), st.randoms(use_true_random=False), st.data())
def test_a_symbolic_worker_can_do_any_change_with_any_verdict(
    schedule: Schedule, prompt_len: int, num_new: int, rng: random.Random, data: st.DataObject
) -> None:
    """Replicas that are left out and come back, other patterns, plain decoding and back: also when all is accepted."""
    possible = data.draw(st.lists(changes(schedule), min_size=1, max_size=4))
    rate = rng.choice([0.1, 0.5, 1.0])
    play_symbolically(schedule, prompt_len, num_new, rng, lambda: rng.choice(possible) if rng.random() < rate else None)


@given(schedules(), st.integers(1, 12), st.integers(1, 30), st.randoms(use_true_random=False))
def test_every_position_is_judged_once_and_in_order(
    schedule: Schedule, prompt_len: int, num_new: int, rng: random.Random
) -> None:
    total = prompt_len + num_new
    generator = SlotGenerator(schedule, prompt_len, total, total)
    expected = prompt_len
    judge = random_judge(lambda n: rng.randint(0, n))
    for plan, verdict in play(generator, judge):
        if verdict is not None:
            verify = next(i for i in plan.instructions if isinstance(i, Verify))
            assert verify.first == expected
            rows = next(i.num_logits for i in plan.instructions if isinstance(i, ForwardTarget) and i.num_logits)
            assert rows == verify.num_drafted + verify.bonus, "logits for the judged rows and no others"
            expected += len(verdict.token_ids)


@given(schedules(), st.integers(1, 4))
def test_one_rank_and_another_generate_the_same_slots(schedule: Schedule, prompt_len: int) -> None:
    first, second = (SlotGenerator(schedule, prompt_len, prompt_len + 20, 10**6) for _ in range(2))
    plans = [[p for p, _ in play(g, lambda verify: verify.num_drafted // 2)] for g in (first, second)]
    assert plans[0] == plans[1]


@given(st.integers(2, 8), st.sampled_from([1, 2, 4]))
def test_hop_never_makes_the_draft_wait(num_stages: int, passes_a_slot: int) -> None:
    """PEARL on idle stages drafts as much as with a rank of its own, once both replicas have read the prompt."""
    shared = ((Shard(num_stages - 1, 0, 2),), (Shard(0, 0, 2),))
    alone = ((Shard(num_stages, 0, 2),),)
    for replicas in (shared, alone):
        placement = Placement("", (1,) * num_stages, replicas, 1, num_stages, None, "ship")
        schedule = speculative(placement, 1).with_pass_ticks(TICKS // passes_a_slot)
        generator = SlotGenerator(schedule, 1, 10**6, 10**6)
        slots = play(generator, lambda verify: verify.num_drafted)
        for _ in range(num_stages):
            next(slots)
        before = generator.num_draft_tokens
        for _ in range(4 * num_stages):
            next(slots)
        assert generator.num_draft_tokens - before == 4 * num_stages * passes_a_slot


@given(schedules(), st.integers(1, 3), st.integers(60, 200), st.randoms(use_true_random=False))
def test_remembered_windows_are_those_generated_anew(
    schedule: Schedule, prompt_len: int, num_new: int, rng: random.Random
) -> None:
    """Windows of earlier requests are used again, also where the end of the text comes into sight within one."""
    total = prompt_len + num_new
    draft_end = rng.choice([total, total - 30])
    choices = [rng.random() for _ in range(num_new + 1)]

    def judge(verify: Verify) -> int:
        choice = choices[verify.first % len(choices)]
        return verify.num_drafted if choice < 0.8 else int(choice * 10) % (verify.num_drafted + 1)

    remembered = [p for p, _ in play(SlotGenerator(schedule, prompt_len, total, draft_end), judge)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generator_module, "HORIZON", 10**9)
        patch.setattr(generator_module, "_WINDOWS", generator_module._WindowCache())
        anew = [p for p, _ in play(SlotGenerator(schedule, prompt_len, total, draft_end), judge)]
    assert [p.instructions for p in remembered] == [p.instructions for p in anew]


def test_a_verdict_is_due_before_the_next_slot() -> None:
    generator = SlotGenerator(plain(1), 1, 3, 3)
    generator.next_slot()
    with pytest.raises(RuntimeError, match="verdict is due"):
        generator.next_slot()


def test_a_change_holds_from_the_next_slot_and_drops_what_was_drafted_beyond() -> None:
    placement = Placement("", (1, 1), ((Shard(2, 0, 1),),), 1, 2, 2, "ship")
    schedule = speculative(placement, 2)
    generator = SlotGenerator(schedule, 1, 100, 100)
    generator.next_slot()
    generator.next_slot()
    change = schedule.with_pass_ticks(TICKS // 4).as_change()
    generator.apply(Verdict(1, (0,), 1, Outcome.ACCEPTED, 0, change))
    plan = generator.next_slot()
    assert (plan.slot, plan.slot_in_window, plan.base) == (2, 0, 2)
    drafts = [i for i in plan.instructions if isinstance(i, Draft)]
    assert [draft.end for draft in drafts] == [2, 3, 4, 5]


def test_a_replica_left_out_neither_drafts_nor_reads_nor_hears() -> None:
    replicas = tuple((Shard(rank, 0, 1),) for rank in (3, 0, 1))
    schedule = replace(speculative(Placement("", (1,) * 4, replicas, 1, 4, 4, "catchup"), 4), active=(0,))
    generator = SlotGenerator(schedule, 5, 200, 200)
    for plan, _ in play(generator, lambda verify: verify.num_drafted // 2):
        for instruction in plan.instructions:
            if isinstance(instruction, Draft):
                assert instruction.rank == 3
            if isinstance(instruction, Transfer) and instruction.kind is Kind.TOKENS:
                assert instruction.dst == 0, "rank 0 feeds them; rank 1 has no use for them"
    assert generator.kv_lengths[1:] == [[0], [0]]


def test_without_a_replica_in_use_the_target_decodes_alone() -> None:
    placement = Placement("", (1,) * 4, tuple((Shard(rank, 0, 1),) for rank in (3, 0)), 1, 4, 4, "ship")
    schedule = speculative(placement, 4)
    change = replace(plain(4).as_change(), active=())
    slots = [
        [i for i in plan.instructions if not (isinstance(i, Transfer) and i.kind is Kind.KV)]
        for plan, _ in play(SlotGenerator(schedule.changed(change), 5, 30, 30), lambda verify: 0)
    ]
    alone = [list(plan.instructions) for plan, _ in play(SlotGenerator(plain(4), 5, 30, 30), lambda verify: 0)]
    assert slots == alone


def test_windows_are_remembered_while_a_replica_left_out_falls_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = generator_module._WindowCache()
    monkeypatch.setattr(generator_module, "_WINDOWS", remembered)
    replicas = tuple((Shard(rank, 0, 1),) for rank in (3, 0))
    schedule = replace(speculative(Placement("", (1,) * 4, replicas, 1, 4, 4, "catchup"), 4), active=(0,))
    for _ in play(SlotGenerator(schedule, 5, 405, 405), lambda verify: verify.num_drafted // 2):
        pass
    assert len(remembered._windows) < 60, "the last 48 positions, and few others"
