"""What has arrived on a rank and what is still on its way.

Receives are posted in the schedule's order and waited for where a value is used. What a verdict drops is received
all the same (both sides sent and posted it by the same rule) and thrown away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch

from pearl_pp.schedule.instructions import Kind, Transfer
from pearl_pp.transport.base import Pending


class _Arrival(NamedTuple):
    transfer: Transfer
    pending: Pending


class Mailbox:
    """Posted receives of one kind each, first in, first out."""

    def __init__(self) -> None:
        self._queues: dict[tuple[Kind, int], deque[_Arrival]] = {}
        self._dropped: list[Pending] = []

    def post(self, transfer: Transfer, pending: Pending) -> None:
        key = (transfer.kind, transfer.replica)
        self._queues.setdefault(key, deque()).append(_Arrival(transfer, pending))

    def take(self, kind: Kind, start: int, end: int, replica: int = -1) -> torch.Tensor:
        """The oldest message of this kind; it must hold positions [start, end)."""
        arrival = self._queues[kind, replica].popleft()
        if (arrival.transfer.start, arrival.transfer.end) != (start, end):
            held = (arrival.transfer.start, arrival.transfer.end)
            raise RuntimeError(f"{kind.name} holds positions {held} where {(start, end)} were expected")
        return arrival.pending.wait()

    def take_all(self, kind: Kind, replica: int = -1) -> list[tuple[Transfer, torch.Tensor]]:
        queue = self._queues.pop((kind, replica), deque())
        return [(arrival.transfer, arrival.pending.wait()) for arrival in queue]

    def drop_all(self, others: Sequence[Pending] = ()) -> None:
        """After a restart nothing on its way is of use, nor are `others`; the next restart, or the request's end,
        receives it. What the restart before dropped has arrived long since.
        """
        self._receive_dropped()
        self._dropped = [*others, *(arrival.pending for queue in self._queues.values() for arrival in queue)]
        self._queues.clear()

    def _receive_dropped(self) -> None:
        for pending in self._dropped:
            pending.wait()
        self._dropped = []

    def drain(self) -> None:
        """Receives everything that was dropped, so that the next request starts with empty wires."""
        self.drop_all()
        self._receive_dropped()


class TokenTape:
    """Token ids known on this rank: committed ones, and drafted ones as they are drawn here or arrive.

    Args:
        prompt: ids of the prompt.
    """

    def __init__(self, prompt: tuple[int, ...]) -> None:
        self.ids = list(prompt)
        self._coming: deque[_Arrival] = deque()

    def append(self, position: int, token_id: int) -> None:
        """A token drawn on this rank."""
        self._settle(position)
        if position != len(self.ids):
            raise RuntimeError(f"drafted position {position}, but {len(self.ids)} ids are known")
        self.ids.append(token_id)

    def expect(self, transfer: Transfer, pending: Pending) -> None:
        """A token message on its way."""
        self._coming.append(_Arrival(transfer, pending))

    def read(self, start: int, end: int) -> list[int]:
        """Ids of positions [start, end); waits for those on their way."""
        self._settle(end)
        if len(self.ids) < end:
            raise RuntimeError(f"position {end - 1} was never announced to this rank ({len(self.ids)} ids known)")
        return self.ids[start:end]

    def prefix(self, end: int) -> list[int]:
        """Ids of positions [0, end), to be read only: no copy where nothing is known beyond."""
        self.read(end, end)
        return self.ids if len(self.ids) == end else self.ids[:end]

    def commit(self, position: int, token_ids: tuple[int, ...], restarts: bool) -> list[Pending]:
        """Writes a verdict's ids at `position`; after a restart returns the receives that lost their use."""
        end = position + len(token_ids)
        if restarts:
            dropped = [arrival.pending for arrival in self._coming]
            self._coming.clear()
            self.ids[position:] = token_ids
            return dropped
        if position <= len(self.ids):  # a rank that gets no drafted tokens learns them here
            self.ids[position:end] = token_ids
        return []

    def _settle(self, end: int) -> None:
        while self._coming and len(self.ids) < end:
            transfer, pending = self._coming.popleft()
            arrived = pending.wait().tolist()
            # A verdict may have told some of them already.
            self.ids.extend(arrived[max(0, len(self.ids) - transfer.start) :])
