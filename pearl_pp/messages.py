"""Typed messages of the control plane and their wire form.

Token ids travel as int64 and nowhere else (bf16 holds no integer above 256 exactly).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class Outcome(IntEnum):
    """What the last stage says of a chunk (DESIGN section 3)."""

    ACCEPTED = 0  # every judged token was accepted; drafting goes on
    REJECTED = 1  # the last id is the recovered token; restart
    BONUS = 2  # every judged token was accepted and the last row gave one more; restart


@dataclass(frozen=True, slots=True)
class Verdict:
    """The only decision in a run: made by the last stage in `slot`, valid from the next slot on every rank.

    Args:
        slot: slot counted from the start of the request; a receiver checks it against its own.
        token_ids: ids committed by this verdict: accepted ids, then the recovered or bonus id if there is one,
            cut at a stop.
        num_accepted: how many of `token_ids` had been drafted.
        outcome: accepted, rejected or bonus.
        stop: 0 to go on, else a `StopReason`.
        pass_ticks: new length of a draft pass in ticks of a slot; 0 leaves it as it is.
    """

    slot: int
    token_ids: tuple[int, ...]
    num_accepted: int
    outcome: Outcome
    stop: int = 0
    pass_ticks: int = 0

    HEADER = 6  # int64 fields before the ids

    @property
    def restarts(self) -> bool:
        return self.outcome is not Outcome.ACCEPTED

    @staticmethod
    def wire_length(max_ids: int) -> int:
        """Number of int64 fields of a verdict with at most `max_ids` ids."""
        return Verdict.HEADER + max_ids

    def to_wire(self, max_ids: int) -> list[int]:
        """Fixed length for a given chunk, so that the receiver can post its receive before the verdict is made."""
        if len(self.token_ids) > max_ids:
            raise ValueError(f"verdict holds {len(self.token_ids)} ids, its chunk allows {max_ids}")
        header = [self.slot, len(self.token_ids), self.num_accepted, int(self.outcome), self.stop, self.pass_ticks]
        return [*header, *self.token_ids, *([-1] * (max_ids - len(self.token_ids)))]

    @staticmethod
    def from_wire(fields: Sequence[int], expected_slot: int) -> Verdict:
        slot, num_ids, num_accepted, outcome, stop, pass_ticks = fields[: Verdict.HEADER]
        if slot != expected_slot:
            raise RuntimeError(f"verdict of slot {slot} arrived where slot {expected_slot} was expected")
        ids = tuple(fields[Verdict.HEADER : Verdict.HEADER + num_ids])
        return Verdict(slot, ids, num_accepted, Outcome(outcome), stop, pass_ticks)
