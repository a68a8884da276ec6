"""What is fed and drafted in the slots after a restart while everything is accepted: the generator's rules alone,
without its messages and caches, for the closed form.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import lru_cache
from itertools import count
from typing import NamedTuple

from pearl_pp.schedule.drafting import Occupancy, PlacedPass, split_pass
from pearl_pp.schedule.schedule import TICKS, Schedule


class DraftPart(NamedTuple):
    """A shard's part of the pass that draws token `token` (1 is the first after the restart)."""

    slot: int
    replica: int
    shard: int
    token: int


class WindowShape(NamedTuple):
    """A window.

    Args:
        entries: slots in which a chunk enters, in order.
        ends: for each of them the last token that its rows judge; it carries the tokens before that one.
        drafts: draft passes in order.
        bonus: whether the last chunk's last row judges nothing that was drafted; the window ends there.
    """

    entries: tuple[int, ...]
    ends: tuple[int, ...]
    drafts: tuple[DraftPart, ...]
    bonus: bool


@lru_cache(maxsize=8192)
def window_shape(schedule: Schedule, num_tokens: int) -> WindowShape:
    """The slots until the chunks that judge `num_tokens` tokens have entered, or a bonus token ends the window."""
    builder = _Builder(schedule)
    for slot in count():
        builder.enter(slot)
        builder.draft(slot)
        lacking = builder.lacking(slot)
        if lacking is not None:
            return builder.shape(lacking + 1, bonus=True)
        if builder.num_left(slot) >= num_tokens:
            return builder.shape(builder.num_chunks(num_tokens), bonus=False)
    raise AssertionError("the slots do not end")


class _Builder:
    """Goes slot by slot.

    Args of its state:
        finishes: ticks at which each token is drafted.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.entries: list[int] = []
        self._ends: list[int] = []
        self._finishes: list[int] = []
        self._drafts: list[DraftPart] = []
        self._schedule = schedule
        self._shares = [split_pass(replica, schedule.pass_ticks) for replica in schedule.replicas]
        self._clock = 0
        self._replica = -1

    @property
    def num_judged(self) -> int:
        """Tokens that are judged by the chunks entered so far."""
        return self._ends[-1] if self._ends else 0

    def num_left(self, slot: int) -> int:
        """Those judged by chunks that have left the last stage when `slot` ends."""
        num_chunks = bisect_right(self.entries, slot - self._schedule.last_rank)
        return self._ends[num_chunks - 1] if num_chunks else 0

    def num_chunks(self, num_tokens: int) -> int:
        """Chunks that judge the first `num_tokens` tokens."""
        return bisect_left(self._ends, num_tokens) + 1

    def shape(self, num_chunks: int, bonus: bool) -> WindowShape:
        return WindowShape(tuple(self.entries[:num_chunks]), tuple(self._ends[:num_chunks]), tuple(self._drafts), bonus)

    def enter(self, slot: int) -> None:
        last_judged = self._num_drafted(slot) + 1
        if self._may_enter(slot) and last_judged > self.num_judged:
            self.entries.append(slot)
            self._ends.append(last_judged)

    def lacking(self, slot: int) -> int | None:
        """Number of the chunk that leaves in `slot`, if no token has been drafted for its last row."""
        entry = slot - self._schedule.last_rank
        if entry not in self.entries:
            return None
        number = self.entries.index(entry)
        return number if self._num_drafted(slot + 1) < self._ends[number] else None

    def draft(self, slot: int) -> None:
        """Passes that start in this slot."""
        end = (slot + 1) * TICKS
        self._clock = max(self._clock, slot * TICKS)
        while self._clock < end:
            placed = self._place(slot)
            if placed.start >= end:
                return
            self._replica, self._clock = placed.replica, placed.finish
            self._finishes.append(placed.finish)
            for shard, (start, _) in enumerate(placed.parts):
                self._drafts.append(DraftPart(start // TICKS, placed.replica, shard, len(self._finishes)))

    def _place(self, slot: int) -> PlacedPass:
        num_stages = self._schedule.num_stages
        entries = [entry for entry in self.entries[-num_stages:] if entry + num_stages > slot]
        if len(self._finishes) + 1 > self.num_judged:
            entries.append(next(k for k in count(slot + 1) if self._may_enter(k)))
        occupancy = Occupancy(num_stages, entries, ())
        replicas = enumerate(zip(self._schedule.replicas, self._shares, strict=True))
        places = [occupancy.place(number, *replica, self._clock) for number, replica in replicas]
        return min(places, key=lambda placed: (placed.finish, placed.replica != self._replica, placed.replica))

    def _num_drafted(self, slot: int) -> int:
        """Tokens that are there when `slot` begins."""
        return bisect_right(self._finishes, slot * TICKS)

    def _may_enter(self, slot: int) -> bool:
        since_fill = slot - (self._schedule.fill - 1)
        return since_fill <= 0 or since_fill % self._schedule.verify_interval == 0
