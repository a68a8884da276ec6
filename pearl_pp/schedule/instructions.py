"""What a rank can be told to do in a slot. Pure data: the worker executes it, the simulator times it.

Every message is one instruction that both of its ranks see, so send and receive cannot disagree.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """What a message carries."""

    ACTIVATION = 0  # hidden states [n, hidden] from one target stage to the next
    DRAFT_ACTIVATION = 1  # hidden states [n, hidden] from one draft shard to the next
    TOKENS = 2  # drafted ids, int64 [n]
    PROBS = 3  # q of drafted ids, float32 [n, vocab]
    KV = 4  # draft KV entries of a layer range
    REPORT = 5  # measured pass times, int64 [2] ns


class ForwardTarget(NamedTuple):
    """Stage `rank` passes positions [start, end) on; the last stage makes logits of the last `num_logits` rows."""

    rank: int
    start: int
    end: int
    num_logits: int

    def moved(self, by: int) -> ForwardTarget:
        return ForwardTarget(self.rank, self.start + by, self.end + by, self.num_logits)


class Draft(NamedTuple):
    """A shard feeds positions [start, end); the replica's last shard draws the token at `end` if `samples`."""

    rank: int
    replica: int
    shard: int
    start: int
    end: int
    samples: bool

    def moved(self, by: int) -> Draft:
        return Draft(self.rank, self.replica, self.shard, self.start + by, self.end + by, self.samples)


class Transfer(NamedTuple):
    """`src` sends positions [start, end) of `kind` to `dst`; replicas and layers where they matter."""

    kind: Kind
    src: int
    dst: int
    start: int
    end: int
    replica: int = -1
    source_replica: int = -1
    layer_start: int = 0
    layer_end: int = 0

    def moved(self, by: int) -> Transfer:
        kind, src, dst, start, end, *rest = self
        return self if kind is Kind.REPORT else Transfer(kind, src, dst, start + by, end + by, *rest)


class Verify(NamedTuple):
    """The last stage judges `num_drafted` positions from `first` on; `bonus`: one more row gives a token."""

    rank: int
    first: int
    num_drafted: int
    bonus: bool

    def moved(self, by: int) -> Verify:
        return Verify(self.rank, self.first + by, self.num_drafted, self.bonus)


class SendVerdict(NamedTuple):
    """`src` tells every other rank; at most `max_ids` ids."""

    src: int
    max_ids: int

    def moved(self, by: int) -> SendVerdict:
        return self


# What a rank can be told; `moved` gives the same at positions `by` further on.
Instruction = ForwardTarget | Draft | Transfer | Verify | SendVerdict
