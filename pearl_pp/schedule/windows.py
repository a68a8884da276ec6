"""What a window sequence starts from and what its slots leave behind, relative to the committed length."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from pearl_pp.schedule.instructions import Instruction


class Phase(IntEnum):
    """Order of instructions at the same time: a message follows the pass that made it and precedes its use."""

    OUTPUT = 0
    HANDOFF = 1
    COMPUTE = 2
    VERIFY = 3
    VERDICT = 4


class WindowStart(NamedTuple):
    """All that the slots after a restart depend on. Positions are relative to the committed length.

    Args:
        num_unfed: committed tokens that the target has not been fed: 1, or the whole prompt.
        kv_lengths: entries of each replica's shards; of one that is not active always -1, so that windows are alike.
        ready: replicas that have read the prompt, or are not active. replica: where the draft was last, -1 at first.
        prompt: start and end of the prompt while a replica has yet to read it, else None.
        remaining, draftable: positions up to the end of the text, and up to the end of drafting.
        reports: ranks report their pass times before the window's n-th verdict, for each n in here.
    """

    num_unfed: int
    kv_lengths: tuple[tuple[int, ...], ...]
    ready: tuple[bool, ...]
    replica: int
    prompt: tuple[int, int] | None
    remaining: int
    draftable: int
    reports: frozenset[int] = frozenset()


class WindowSlot(NamedTuple):
    """A generated slot, and what it leaves behind even if its verdict drops the rest.

    Args:
        instructions: in their global order, positions relative to the committed length at the restart.
        reach: relative end of what has been scheduled for drafting.
    """

    instructions: tuple[Instruction, ...]
    has_verdict: bool
    kv_lengths: tuple[tuple[int, ...], ...]
    ready: tuple[bool, ...]
    replica: int
    num_draft_tokens: int
    num_hops: int
    reach: int
