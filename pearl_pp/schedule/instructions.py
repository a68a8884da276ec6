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


class Draft(NamedTuple):
    """A shard feeds positions [start, end); the replica's last shard draws the token at `end` if `samples`."""

    rank: int
    replica: int
    shard: int
    start: int
    end: int
    samples: bool


class Transfer(NamedTuple):
    """`src` sends positions [start, end) of `kind` to `dst`; `replica`, `source_replica` and layers where they matter."""

    kind: Kind
    src: int
    dst: int
    start: int
    end: int
    replica: int = -1
    source_replica: int = -1
    layer_start: int = 0
    layer_end: int = 0


class Verify(NamedTuple):
    """The last stage judges positions `first` .. `first + num_drafted` (the last one a bonus row if `bonus`)."""

    rank: int
    first: int
    num_drafted: int
    bonus: bool


class SendVerdict(NamedTuple):
    """`src` tells every other rank; at most `max_ids` ids."""

    src: int
    max_ids: int


Instruction = ForwardTarget | Draft | Transfer | Verify | SendVerdict


class SlotPlan(NamedTuple):
    """All instructions of one slot in their global order.

    slot counts from the start of the request, slot_in_window from the last restart.
    """

    slot: int
    slot_in_window: int
    instructions: tuple[Instruction, ...]
    has_verdict: bool
