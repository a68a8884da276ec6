"""Where draft passes go: on a replica whose ranks hold no chunk for as long as the pass needs them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from pearl_pp.schedule.placement import Replica
from pearl_pp.schedule.schedule import TICKS


class PlacedPass(NamedTuple):
    """A draft pass: replica and, for each of its shards, [start, finish) in ticks since the restart."""

    replica: int
    parts: tuple[tuple[int, int], ...]

    @property
    def start(self) -> int:
        return self.parts[0][0]

    @property
    def finish(self) -> int:
        return self.parts[-1][1]


def split_pass(replica: Replica, pass_ticks: int) -> tuple[int, ...]:
    """Shares of a pass, proportional to the shards' layers; they sum to `pass_ticks`."""
    num_layers = sum(shard.num_layers for shard in replica)
    bounds, done = [0], 0
    for shard in replica:
        done += shard.num_layers
        bounds.append(pass_ticks * done // num_layers)
    return tuple(max(1, b - a) for a, b in pairwise(bounds))


class Occupancy:
    """Which ranks hold a chunk or a draft part at which time. Rebuilt for every pass: exact, because while one
    pass runs nothing else is drafted, so what can enter (pieces of the prompt, at most one window) is known.

    Args:
        num_stages: N; higher ranks hold no stage and are always free of chunks.
        entries: entry slots of the chunks in flight and of those that will enter.
        parts: (rank, start, finish) of draft parts already placed.
    """

    def __init__(self, num_stages: int, entries: Iterable[int], parts: Sequence[tuple[int, int, int]]) -> None:
        self._num_stages = num_stages
        self._entries = frozenset(entries)
        self._parts = parts

    def is_free(self, rank: int, start: int, finish: int) -> bool:
        if rank < self._num_stages:
            for slot in range(start // TICKS, (finish - 1) // TICKS + 1):
                if slot - rank in self._entries:
                    return False
        return all(r != rank or finish <= s or f <= start for r, s, f in self._parts)

    def earliest(self, rank: int, start: int, length: int) -> int:
        """`start` if `rank` is free for `length` ticks from there, else the next slot boundary at which it is."""
        while not self.is_free(rank, start, start + length):
            start = (start // TICKS + 1) * TICKS
        return start

    def place(self, index: int, replica: Replica, shares: Sequence[int], clock: int) -> PlacedPass:
        """Each shard's part starts as early as its rank allows after the part before it."""
        parts = []
        for shard, share in zip(replica, shares, strict=True):
            start = self.earliest(shard.rank, clock, share)
            clock = start + share
            parts.append((start, clock))
        return PlacedPass(index, tuple(parts))


class PrefillProgress:
    """Which replicas hold the prompt, and how far the others have got, shard by shard.

    A restart drops hidden states on their way to a next shard: a replica in the middle starts over.

    Args:
        num_shards: shards of each replica.
        ready: whether it has read the prompt already.
    """

    def __init__(self, num_shards: Sequence[int], ready: Sequence[bool]) -> None:
        self._num_shards = tuple(num_shards)
        self._done = [num if is_ready else 0 for num, is_ready in zip(num_shards, ready, strict=True)]

    def is_ready(self, replica: int) -> bool:
        return self._done[replica] == self._num_shards[replica]

    def mark_ready(self, replica: int) -> None:
        """The first pass of a request reads the prompt on the way."""
        self._done[replica] = self._num_shards[replica]

    def due(self) -> list[tuple[int, int]]:
        """(replica, its next shard) of those that have not read the prompt."""
        return [(i, done) for i, done in enumerate(self._done) if done < self._num_shards[i]]

    def advance(self, replica: int) -> bool:
        """One more shard has read the prompt; true when that was the last."""
        self._done[replica] += 1
        return self.is_ready(replica)
