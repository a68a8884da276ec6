"""Ranks as threads of one process: for tests of everything above, with chosen delays and rendezvous sends."""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from pearl_pp.transport.base import Channel, MessageMismatch, PeerLost, Pending, TransportTimeout
from pearl_pp.transport.point_to_point import PointToPointTransport

Delay = Callable[[int, int, Channel], float]
"""(src, dst, channel) -> seconds that the next message is under way."""


class _Message:
    """A sent message, not yet or already matched with a receive; it can be read from `ready_at` on."""

    __slots__ = ("matched", "ready_at", "tensor")

    def __init__(self, tensor: torch.Tensor, ready_at: float) -> None:
        self.tensor = tensor
        self.ready_at = ready_at
        self.matched = False


class _Link:
    """One direction of one channel between two ranks: sends and receives meet in order."""

    def __init__(self) -> None:
        self.sent: deque[_Message] = deque()
        self.posted: deque[_Receive] = deque()
        self.last_ready_at = 0.0

    def match(self) -> None:
        while self.sent and self.posted:
            message = self.sent.popleft()
            message.matched = True
            self.posted.popleft().message = message


class InProcessGroup:
    """`world_size` transports that share one memory.

    rendezvous: a send completes only when a receive was posted for it and its delay is over (as with gloo and
    NCCL); otherwise at once. delay: seconds under way per message; order within a link is kept.
    """

    def __init__(
        self, world_size: int, timeout_s: float = 30.0, delay: Delay | None = None, rendezvous: bool = False
    ) -> None:
        self.world_size = world_size
        self.timeout_s = timeout_s
        self.rendezvous = rendezvous
        self.failure: str | None = None
        self.changed = threading.Condition()
        self._delay = delay
        self._links: defaultdict[tuple[int, int, Channel], _Link] = defaultdict(_Link)
        self._transports = [InProcessTransport(self, rank) for rank in range(world_size)]

    def transport(self, rank: int) -> "InProcessTransport":
        return self._transports[rank]

    def run(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        """Run fn(transport, *args), a thread per rank; the first error aborts the others and is raised."""
        errors: list[BaseException] = []

        def on_rank(rank: int) -> Any:
            try:
                return fn(self.transport(rank), *args)
            except BaseException as error:
                errors.append(error)
                self.abort(f"rank {rank} failed: {error!r}")
                return None

        with ThreadPoolExecutor(self.world_size) as threads:
            results = list(threads.map(on_rank, range(self.world_size)))
        if errors:
            raise errors[0]
        return results

    def abort(self, reason: str) -> None:
        """Make every wait, now and later, raise PeerLost with the first reason given."""
        with self.changed:
            self.failure = self.failure or reason
            self.changed.notify_all()

    def send(self, src: int, dst: int, channel: Channel, tensor: torch.Tensor) -> _Message:
        delay = self._delay(src, dst, channel) if self._delay else 0.0
        with self.changed:
            link = self._links[src, dst, channel]
            link.last_ready_at = max(link.last_ready_at, time.monotonic() + delay)
            message = _Message(tensor, link.last_ready_at)
            link.sent.append(message)
            link.match()
            self.changed.notify_all()
        return message

    def receive(self, receive: "_Receive") -> None:
        with self.changed:
            link = self._links[receive.peer, receive.owner.rank, receive.channel]
            link.posted.append(receive)
            link.match()
            self.changed.notify_all()

    def wait(self, message: "_Pending", done: Callable[[], bool], timeout_s: float | None) -> None:
        seconds = self.timeout_s if timeout_s is None else timeout_s
        where = (message.owner.rank, message.peer, message.channel)
        with self.changed:
            if not self.changed.wait_for(lambda: done() or self.failure is not None, seconds):
                self.abort(f"rank {message.owner.rank} timed out")  # as with gloo, a timeout is final
                raise TransportTimeout(*where, seconds)
            if not done():
                raise PeerLost(*where, self.failure or "aborted")


class _Pending:
    def __init__(self, owner: "InProcessTransport", peer: int, channel: Channel) -> None:
        if peer == owner.rank or not 0 <= peer < owner.world_size:
            raise ValueError(f"rank {owner.rank} of {owner.world_size} has no peer {peer}")
        self.owner, self.peer, self.channel = owner, peer, channel


class _Send(_Pending):
    def __init__(self, owner: "InProcessTransport", peer: int, channel: Channel, tensor: torch.Tensor) -> None:
        super().__init__(owner, peer, channel)
        self._tensor = tensor
        self._message = owner.group.send(owner.rank, peer, channel, tensor.detach().clone())

    def wait(self, timeout_s: float | None = None) -> torch.Tensor:
        if self.owner.group.rendezvous:
            self.owner.group.wait(self, lambda: self._message.matched, timeout_s)
            _sleep_until(self._message.ready_at)
        return self._tensor


class _Receive(_Pending):
    def __init__(
        self,
        owner: "InProcessTransport",
        peer: int,
        channel: Channel,
        shape: Sequence[int],
        dtype: torch.dtype,
    ) -> None:
        super().__init__(owner, peer, channel)
        self.message: _Message | None = None
        self._expected = (tuple(shape), dtype)
        owner.group.receive(self)

    def wait(self, timeout_s: float | None = None) -> torch.Tensor:
        self.owner.group.wait(self, lambda: self.message is not None, timeout_s)
        assert self.message is not None
        _sleep_until(self.message.ready_at)
        tensor = self.message.tensor
        if (tuple(tensor.shape), tensor.dtype) != self._expected:
            detail = f"expected {self._expected}, got {(tuple(tensor.shape), tensor.dtype)}"
            raise MessageMismatch(self.owner.rank, self.peer, self.channel, detail)
        return tensor


class InProcessTransport(PointToPointTransport):
    """One rank of an InProcessGroup. A send copies its tensor; a receive checks shape and dtype."""

    def __init__(self, group: InProcessGroup, rank: int) -> None:
        super().__init__(rank, group.world_size, torch.device("cpu"))
        self.group = group

    @property
    def broken(self) -> bool:
        return self.group.failure is not None

    def isend(self, channel: Channel, dst: int, tensor: torch.Tensor) -> Pending:
        self._count(channel, tensor)
        return _Send(self, dst, channel, tensor)

    def irecv(self, channel: Channel, src: int, shape: Sequence[int], dtype: torch.dtype) -> Pending:
        return _Receive(self, src, channel, shape, dtype)

    def close(self) -> None: ...

    def abort(self, reason: str = "aborted") -> None:
        self.group.abort(f"rank {self.rank} left: {reason}")


def _sleep_until(moment: float) -> None:
    remaining = moment - time.monotonic()
    if remaining > 0:
        time.sleep(remaining)
