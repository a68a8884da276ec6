"""What every transport offers: messages between ranks, FIFO per (sender, receiver, channel), without tags.

Ranks post sends and receives asynchronously, all in the same global order, and wait where a value is used.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol, runtime_checkable

import torch


class Channel(IntEnum):
    """What a message is for. Channels never overtake or block one another's order."""

    CONTROL = 0
    """Small messages that stay on the CPU: token ids, verdicts, notices (int64); setup payloads (uint8)."""
    ACTIVATIONS = 1
    """Hidden states, from one stage to the next."""
    HANDOFF = 2
    """KV entries, from the replica that the draft leaves to the one it hops to."""
    PROBS = 3
    """Draft distributions, from the rank that drafts to the last stage."""


class TransportError(Exception):
    """A message between `rank` (where this is raised) and `peer` on `channel` failed."""

    def __init__(self, rank: int, peer: int, channel: Channel, detail: str | float) -> None:
        # all arguments go to Exception, so that the error can be pickled between processes
        super().__init__(rank, peer, channel, detail)
        self.rank = rank
        self.peer = peer
        self.channel = channel
        self.detail = detail

    def __str__(self) -> str:
        return f"rank {self.rank}: bad message from rank {self.peer} on {self.channel.name}: {self.detail}"


class RanksMissing(TimeoutError):
    """Not all ranks of the job came to where they meet."""


class CannotJoin(ConnectionError):
    """This rank could not connect to the others where they meet."""


class TransportTimeout(TransportError):
    """A wait for `peer` lasted `seconds` without an answer."""

    @property
    def seconds(self) -> float:
        return float(self.detail)

    def __str__(self) -> str:
        where = f"rank {self.peer} on {self.channel.name}"
        return f"rank {self.rank}: no answer from {where} within {self.seconds:g} s"


class PeerLost(TransportError):
    """`peer` left, its connection broke, or the run was aborted."""

    def __str__(self) -> str:
        return f"rank {self.rank}: lost rank {self.peer} on {self.channel.name}: {self.detail}"


class SilentPeer(TransportTimeout):
    """`peer` gave no sign of life for `seconds`: its process is stopped, or its machine cut off."""

    def __str__(self) -> str:
        return f"rank {self.rank}: no sign of life from rank {self.peer} for {self.seconds:g} s: stopped, or cut off"


class MessageMismatch(TransportError):
    """The message has another shape or dtype than the receiver asked for."""


@runtime_checkable
class Pending(Protocol):
    """A message under way."""

    def wait(self, timeout_s: float | None = None) -> torch.Tensor:
        """Block until the message has arrived, or the memory of a sent one may be reused; return its tensor.

        `timeout_s` replaces the transport's own limit. Raises TransportTimeout or PeerLost; after either the
        transport is of no more use. May be called again.
        """
        ...


class Transport(Protocol):
    """One rank's view of the messages between `world_size` ranks."""

    rank: int
    world_size: int
    device: torch.device

    def isend(self, channel: Channel, dst: int, tensor: torch.Tensor) -> Pending:
        """Post a send of `tensor` (any shape and dtype, on `device`; CONTROL: on the CPU) to rank `dst`.

        The tensor must not be changed before its wait() returns. Waiting is optional.
        """
        ...

    def irecv(self, channel: Channel, src: int, shape: Sequence[int], dtype: torch.dtype) -> Pending:
        """Post a receive of the next message of `channel` from rank `src`.

        wait() returns a tensor on `device` (CONTROL: on the CPU). `shape` and `dtype` must be those of the
        message: only bytes cross a network. Where there are fewer than asked for, or more, wait() raises
        MessageMismatch (gloo ends the process where there are more than twice as many, and over 64 KiB).
        """
        ...

    def bytes_sent(self, channel: Channel) -> int:
        """Payload bytes this rank has posted on `channel` since reset_counters()."""
        ...

    def messages_sent(self, channel: Channel) -> int:
        """Messages this rank has posted on `channel` since reset_counters()."""
        ...

    def reset_counters(self) -> None: ...

    def broadcast_bytes(self, payload: bytes | None, src: int, timeout_s: float | None = None) -> bytes:
        """Collective: every rank gets the payload of rank `src`. Travels on CONTROL."""
        ...

    def gather_bytes(self, payload: bytes, dst: int, timeout_s: float | None = None) -> list[bytes] | None:
        """Collective: `dst` gets every rank's payload, by rank; the others get None. Travels on CONTROL."""
        ...

    def barrier(self, timeout_s: float | None = None) -> None:
        """Collective: no rank leaves before every rank has come."""
        ...

    def close(self) -> None:
        """Collective: finish all sends and release everything. After close() or abort() it does nothing."""
        ...

    def abort(self, reason: str = "aborted") -> None:
        """Leave at once, without the others; their waits for this rank raise PeerLost."""
        ...
