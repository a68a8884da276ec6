"""The rule for tensor planes whose waiting receives occupy the device, as NCCL's do (the draft would stall).

A receive is launched only after its sender's notice on the control plane, and the sender gives notice only
when the data is there. So a launched receive never waits long, and deadlines live on the control plane.
"""

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from pearl_pp.transport.base import (
    Channel,
    PeerLost,
    Pending,
    SilentPeer,
    Transport,
    TransportError,
    TransportTimeout,
)
from pearl_pp.transport.point_to_point import Completed, PointToPointTransport

_BYE, _ABORT = -1, -2  # notices that are no channel
_NO_DEADLINE_S = 365 * 86400.0


class Launcher(Protocol):
    """The tensor plane itself. A launch may occupy the device until its partner is launched too.

    All ranks launch the messages of a channel in one global order, so a channel needs only one stream.
    """

    device: torch.device

    def ready(self, tensor: torch.Tensor) -> None:
        """Block until `tensor` has been computed."""
        ...

    def send(self, channel: Channel, dst: int, tensor: torch.Tensor) -> Pending: ...

    def recv(self, channel: Channel, src: int, shape: Sequence[int], dtype: torch.dtype) -> Pending: ...

    def close(self) -> None: ...

    def abort(self) -> None:
        """End what has been launched and will not finish."""
        ...


class NoticedTransport(PointToPointTransport):
    """CONTROL goes over `control`, the other channels over `launcher`, notices over CONTROL of `notices`.

    `notices` connects the same ranks apart from `control`. One thread per peer listens there, so receives are
    launched while this rank computes, too.
    """

    def __init__(
        self, control: PointToPointTransport, notices: Transport, launcher: Launcher, timeout_s: float
    ) -> None:
        super().__init__(control.rank, control.world_size, launcher.device)
        self.timeout_s = timeout_s
        self.failure: TransportError | None = None
        self._control = control
        self._notices = notices
        self._launcher = launcher
        self._lock = threading.Lock()  # guards everything below, and the order of launches
        self._queues: dict[Channel, deque[_Posted]] = {channel: deque() for channel in Channel}
        self._noticed: Counter[tuple[int, Channel]] = Counter()
        self._closed = False
        self._listeners = [
            threading.Thread(target=self._listen, args=(src,), name=f"notices-from-{src}", daemon=True)
            for src in self._others()
        ]
        for listener in self._listeners:
            listener.start()

    @property
    def broken(self) -> bool:
        return self.failure is not None or self._control.broken

    def isend(self, channel: Channel, dst: int, tensor: torch.Tensor) -> Pending:
        self._count(channel, tensor)
        if channel is Channel.CONTROL:
            return self._control.isend(channel, dst, tensor)
        if tensor.numel() == 0:
            return Completed(tensor)
        data = tensor.contiguous()
        self._launcher.ready(data)
        return self._post(_Posted(self, channel, dst, lambda: self._launcher.send(channel, dst, data), sent=tensor))

    def irecv(self, channel: Channel, src: int, shape: Sequence[int], dtype: torch.dtype) -> Pending:
        if channel is Channel.CONTROL:
            return self._control.irecv(channel, src, shape, dtype)
        if 0 in shape:
            return Completed(torch.empty(shape, dtype=dtype, device=self.device))
        return self._post(_Posted(self, channel, src, lambda: self._launcher.recv(channel, src, shape, dtype)))

    def _post(self, message: "_Posted") -> "_Posted":
        with self._lock:
            self._queues[message.channel].append(message)
            self._advance(message.channel)
        return message

    def _advance(self, channel: Channel) -> None:
        """Launch what may be launched, in the order it was posted; the lock is held."""
        queue = self._queues[channel]
        while queue and self.failure is None:
            message = queue[0]
            if message.sent is None:
                if not self._noticed[message.peer, channel]:
                    return
                self._noticed[message.peer, channel] -= 1
            queue.popleft().launch()
            if message.sent is not None:
                self._notices.isend(Channel.CONTROL, message.peer, torch.tensor([int(channel)]))

    def _listen(self, src: int) -> None:
        """Body of one listener thread: take notices from `src` until it says goodbye."""
        try:
            while True:
                receive = self._notices.irecv(Channel.CONTROL, src, (1,), torch.int64)
                notice = int(receive.wait(_NO_DEADLINE_S))
                if notice == _BYE:
                    return
                if notice == _ABORT:
                    raise PeerLost(self.rank, src, Channel.CONTROL, "it left early")
                with self._lock:
                    self._noticed[src, Channel(notice)] += 1
                    self._advance(Channel(notice))
        except Exception as error:  # handed to whoever waits; a thread has nobody to raise to
            self.fail(PeerLost(self.rank, src, Channel.CONTROL, str(error)))

    def fail(self, error: TransportError) -> None:
        """Make every wait for a message that has not been launched raise, now and later."""
        with self._lock:
            self.failure = self.failure or error
            for queue in self._queues.values():
                for message in queue:
                    message.launched.set()

    def close(self) -> None:
        if self.broken:
            self.abort()
        if self._closed:
            return
        self._closed = True
        self._control.barrier()
        self._say(_BYE)
        for listener in self._listeners:
            listener.join(self.timeout_s)
        self._launcher.close()
        self._notices.close()
        self._control.close()

    def abort(self, reason: str = "aborted") -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(Exception):  # some of them may be gone
            self._say(_ABORT)
        self.fail(PeerLost(self.rank, self.rank, Channel.CONTROL, reason))
        self._launcher.abort()
        self._control.abort(reason)

    def _say(self, farewell: int) -> None:
        with self._lock:
            for dst in self._others():
                self._notices.isend(Channel.CONTROL, dst, torch.tensor([farewell]))


class _Posted:
    """A message in its channel's queue: a send of `sent`, or a receive. `launched`: it left or never will."""

    __slots__ = ("_launch", "_owner", "_pending", "channel", "launched", "peer", "sent")

    def __init__(
        self,
        owner: NoticedTransport,
        channel: Channel,
        peer: int,
        launch: Callable[[], Pending],
        sent: torch.Tensor | None = None,
    ) -> None:
        self.channel = channel
        self.peer = peer
        self.sent = sent
        self.launched = threading.Event()
        self._owner = owner
        self._launch = launch
        self._pending: Pending | None = None

    def launch(self) -> None:
        try:
            self._pending = self._launch()
        finally:
            self.launched.set()

    def wait(self, timeout_s: float | None = None) -> torch.Tensor:
        seconds = self._owner.timeout_s if timeout_s is None else timeout_s
        if self._pending is None and self._owner.failure is None and not self.launched.wait(seconds):
            error = TransportTimeout(self._owner.rank, self.peer, self.channel, seconds)
            self._owner.fail(error)
            raise error
        if self._pending is None:
            failure = self._owner.failure
            if isinstance(failure, SilentPeer):
                raise failure
            raise PeerLost(self._owner.rank, self.peer, self.channel, str(failure))
        received = self._pending.wait(timeout_s)
        return received if self.sent is None else self.sent
