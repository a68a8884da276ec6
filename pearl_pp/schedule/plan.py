"""What the generator says of one slot."""

from __future__ import annotations

from typing import NamedTuple

from pearl_pp.schedule.instructions import Instruction, SendVerdict, Transfer
from pearl_pp.schedule.windows import WindowSlot


class SlotPlan(NamedTuple):
    """A slot of a request.

    Args:
        slot: counted from the start of the request. slot_in_window: from the last restart.
        base: committed length at the last restart, to which the positions in `window_slot` are relative.
    """

    slot: int
    slot_in_window: int
    base: int
    window_slot: WindowSlot

    @property
    def has_verdict(self) -> bool:
        return self.window_slot.has_verdict

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """All instructions in their global order."""
        return tuple(i.moved(self.base) for i in self.window_slot.instructions)

    def for_rank(self, rank: int) -> list[Instruction]:
        """Those that concern `rank`, in the same order."""
        return [i.moved(self.base) for i in self.window_slot.instructions if concerns(i, rank)]


def concerns(instruction: Instruction, rank: int) -> bool:
    """Whether `rank` has a part in it; every rank has in a verdict."""
    if isinstance(instruction, Transfer):
        return rank in (instruction.src, instruction.dst)
    return isinstance(instruction, SendVerdict) or instruction.rank == rank
