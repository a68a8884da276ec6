"""What became of each pass: a pure function of the instructions that were followed and the verdicts.

A chunk that entered in slot e is in stage r in slot e + r and is judged in slot e + N - 1, unless a verdict from
slot e on ends the window first: then it was in flight and is cancelled. A drafted token's fate lies in the verdict
that ends its window, since all before that one accepted what they judged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import accumulate

from pearl_pp.messages import Outcome, Verdict
from pearl_pp.schedule.instructions import Draft, ForwardTarget, Kind, Transfer, Verify
from pearl_pp.telemetry import Activity, Event


class Fate(StrEnum):
    """Of a target pass, that of its chunk; of a draft pass, that of the token it drew or helped to draw."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    BONUS = "bonus"  # a chunk: all accepted, and its last row gave one more token
    CANCELLED = "cancelled"  # a chunk that was in flight at a restart or at the end
    DISCARDED = "discarded"  # a token that was never judged
    PROMPT = "prompt"  # a pass over a piece of the prompt that nothing is judged or drawn from


_FATE_OF = {Outcome.ACCEPTED: Fate.ACCEPTED, Outcome.REJECTED: Fate.REJECTED, Outcome.BONUS: Fate.BONUS}


class FateRule:
    """The fates of one request's passes.

    Args:
        verdicts: all of the request, in their order.
        prompt_len: tokens of the prompt.
        last_rank: the rank of the last stage.
    """

    def __init__(self, verdicts: Sequence[Verdict], prompt_len: int, last_rank: int) -> None:
        self._prompt_len = prompt_len
        self._last_rank = last_rank
        self._by_slot = {verdict.slot: verdict for verdict in verdicts}
        ends = list(accumulate((len(v.token_ids) for v in verdicts), initial=prompt_len))
        # A window ends with a restart or with the text: (verdict, end of what was accepted in that window).
        self._windows = [
            (v, start + v.num_accepted) for v, start in zip(verdicts, ends, strict=False) if v.restarts or v.stop
        ]
        self._window_ends = [verdict.slot for verdict, _ in self._windows]

    def target(self, slot: int, forward: ForwardTarget) -> Fate:
        """Of a target pass that was made in `slot`."""
        entered = entry_slot(slot, forward)
        judged = entered + self._last_rank
        window = self._window(entered)
        if window >= len(self._windows) or self._window_ends[window] < judged:
            return Fate.CANCELLED
        verdict = self._by_slot.get(judged)
        return Fate.PROMPT if verdict is None else _FATE_OF[verdict.outcome]

    def token(self, slot: int, position: int) -> Fate:
        """Of the token at `position` that a draft pass of `slot` drew."""
        window = self._window(slot)
        if window >= len(self._windows):
            return Fate.DISCARDED
        verdict, accepted_end = self._windows[window]
        if position < accepted_end:
            return Fate.ACCEPTED
        is_rejected = position == accepted_end and verdict.outcome is Outcome.REJECTED
        return Fate.REJECTED if is_rejected else Fate.DISCARDED

    def drafts(self, passes: Sequence[tuple[int, Draft]]) -> list[Fate]:
        """Of (slot, draft pass), all of the request: a shard before the last shares its token's fate, but one that
        leads to no token has read the prompt.
        """
        drawn = {self._token_key(slot, draft) for slot, draft in passes if draft.samples}
        return [
            Fate.PROMPT
            if draft.end == self._prompt_len and self._token_key(slot, draft) not in drawn
            else self.token(slot, draft.end)
            for slot, draft in passes
        ]

    def _token_key(self, slot: int, draft: Draft) -> tuple[int, int, int, int]:
        return self._window(slot), draft.replica, draft.start, draft.end

    def _window(self, slot: int) -> int:
        """Number of the window in which `slot` lies: a verdict holds from the slot after its own."""
        return bisect_left(self._window_ends, slot)


def entry_slot(slot: int, forward: ForwardTarget) -> int:
    """The slot in which the chunk that is in stage `forward.rank` in `slot` entered: no two chunks share one."""
    return slot - forward.rank


def with_fates(
    events_of_ranks: Sequence[Sequence[Event]], verdicts: Sequence[Verdict], prompt_len: int, last_rank: int
) -> list[list[Event]]:
    """The events of one request: passes with their fate, chunks with a number, messages with what they carry.

    Args:
        events_of_ranks: a list for each rank, all ranks of the request.
    """
    rule = FateRule(verdicts, prompt_len, last_rank)
    everything = [event for events in events_of_ranks for event in events]
    drafts = [(e.slot, Draft(*e.about)) for e in everything if e.activity is Activity.DRAFT and e.about]
    fates = dict(zip(drafts, rule.drafts(drafts), strict=True))
    chunks = _numbered(everything)

    def told(event: Event) -> Event:
        if not event.about:
            return event
        if event.activity is Activity.TARGET:
            forward = ForwardTarget(*event.about)
            fate = rule.target(event.slot, forward)
            return event._replace(fate=fate, chunk=chunks[entry_slot(event.slot, forward)])
        if event.activity is Activity.VERIFY:
            verify = Verify(*event.about)
            label = f"[{verify.first}, {verify.first + verify.num_drafted + verify.bonus})"
            return event._replace(label=label, chunk=chunks.get(event.slot - last_rank, -1))
        if event.activity is Activity.DRAFT:
            return event._replace(fate=fates[event.slot, Draft(*event.about)])
        return event._replace(label=describe(Transfer(*event.about)))

    return [[told(event) for event in events] for events in events_of_ranks]


def _numbered(events: Iterable[Event]) -> dict[int, int]:
    """Chunks by the slot in which they entered, numbered from 0."""
    targets = [e for e in events if e.activity is Activity.TARGET and e.about]
    entries = {entry_slot(event.slot, ForwardTarget(*event.about)) for event in targets}
    return {entered: number for number, entered in enumerate(sorted(entries))}


def describe(transfer: Transfer) -> str:
    """A message in words."""
    name = Kind(transfer.kind).name.lower().replace("_", " ")
    return f"{name} [{transfer.start}, {transfer.end}) from rank {transfer.src} to rank {transfer.dst}"
