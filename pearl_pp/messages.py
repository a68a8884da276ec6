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


class Reason(IntEnum):
    """Why the last stage changes the schedule."""

    PACE = 0  # passes have been measured
    FASTER = 1  # another way of decoding is predicted to be faster
    LOSES = 2  # speculation loses: the target decodes alone for a while
    RETRY = 3  # speculation is tried again


@dataclass(frozen=True, slots=True)
class Change:
    """New parameters of the schedule, by the names of `Schedule`, and why. It holds from a restart in the next slot.

    Args:
        active: replicas that may be used, in rising order; none decodes plainly.
        draft_limit: None lets the draft go on while a chunk is verified.
        acceptance: measured acceptance rate in thousandths, for the line that explains the change.
        hold: tokens that are decoded plainly before speculation is tried again, where it loses.
    """

    active: tuple[int, ...]
    fill: int
    verify_interval: int
    pass_ticks: int
    first_window: int
    draft_limit: int | None
    ships_kv: bool
    reason: Reason = Reason.PACE
    acceptance: int = 0
    hold: int = 0

    NUM_FIELDS = 11  # int64 fields on the wire, the first of which says whether there is a change

    def to_wire(self) -> list[int]:
        return [
            1,
            sum(1 << number for number in self.active),
            self.fill,
            self.verify_interval,
            self.pass_ticks,
            self.first_window,
            -1 if self.draft_limit is None else self.draft_limit,
            int(self.ships_kv),
            int(self.reason),
            self.acceptance,
            self.hold,
        ]

    @staticmethod
    def from_wire(fields: Sequence[int]) -> Change | None:
        is_there, mask, fill, interval, ticks, first_window, limit, ships, reason, acceptance, hold = fields
        if not is_there:
            return None
        active = tuple(number for number in range(mask.bit_length()) if mask >> number & 1)
        draft_limit = None if limit < 0 else limit
        return Change(
            active, fill, interval, ticks, first_window, draft_limit, bool(ships), Reason(reason), acceptance, hold
        )


_NO_CHANGE = [0] * Change.NUM_FIELDS


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
        change: new parameters of the schedule; None leaves it as it is.
    """

    slot: int
    token_ids: tuple[int, ...]
    num_accepted: int
    outcome: Outcome
    stop: int = 0
    change: Change | None = None

    HEADER = 5 + Change.NUM_FIELDS  # int64 fields before the ids

    @property
    def restarts(self) -> bool:
        """Drafted tokens beyond the committed ones are dropped: a change counts slots anew, too."""
        return self.outcome is not Outcome.ACCEPTED or self.change is not None

    @staticmethod
    def wire_length(max_ids: int) -> int:
        """Number of int64 fields of a verdict with at most `max_ids` ids."""
        return Verdict.HEADER + max_ids

    def to_wire(self, max_ids: int) -> list[int]:
        """Fixed length for a given chunk, so that the receiver can post its receive before the verdict is made."""
        if len(self.token_ids) > max_ids:
            raise ValueError(f"verdict holds {len(self.token_ids)} ids, its chunk allows {max_ids}")
        header = [self.slot, len(self.token_ids), self.num_accepted, int(self.outcome), self.stop]
        change = _NO_CHANGE if self.change is None else self.change.to_wire()
        return [*header, *change, *self.token_ids, *([-1] * (max_ids - len(self.token_ids)))]

    @staticmethod
    def from_wire(fields: Sequence[int], expected_slot: int) -> Verdict:
        slot, num_ids, num_accepted, outcome, stop = fields[:5]
        if slot != expected_slot:
            raise RuntimeError(f"verdict of slot {slot} arrived where slot {expected_slot} was expected")
        ids = tuple(fields[Verdict.HEADER : Verdict.HEADER + num_ids])
        change = Change.from_wire(fields[5 : Verdict.HEADER])
        return Verdict(slot, ids, num_accepted, Outcome(outcome), stop, change)
