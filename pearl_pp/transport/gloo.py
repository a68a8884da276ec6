"""Messages over gloo: the control plane everywhere, the tensor plane on CPUs and where ranks share a card."""

import contextlib
import ctypes
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from pearl_pp.transport.base import Channel, MessageMismatch, PeerLost, Pending, TransportError, TransportTimeout
from pearl_pp.transport.heartbeat import Heartbeat
from pearl_pp.transport.point_to_point import Completed, PointToPointTransport

MAX_UNFINISHED_SENDS = 32
"""So many sends may be under way before the next one waits for the oldest. gloo cannot say without waiting
whether a send is finished. Ranks post in one global order, so this wait cannot deadlock."""

_UNUSED_TAG = 1 << 20

# Lies in the last bytes of a receive, and right behind it, until a message covers it. gloo takes a message that is
# too short in silence, and ends the process where one is too long: so a receive has room for one of that kind, too.
_NOT_WRITTEN = 0x9D3FA1C64E7B5082
_MARK_BYTES = 8
_LEAST_EXTRA_BYTES = 2**16


def _nothing() -> None: ...


class GlooTransport(PointToPointTransport):
    """CONTROL goes over `control_group`, the other channels over `tensor_group`, each with a tag of its own.

    Both groups span all ranks; `on_close` releases them. Tensors on a CUDA device are staged through pinned
    memory. `first_tag` keeps several transports over one group apart.
    """

    def __init__(
        self,
        control_group: dist.ProcessGroup,
        tensor_group: dist.ProcessGroup,
        device: torch.device,
        timeout_s: float,
        on_close: Callable[[], None] = _nothing,
        first_tag: int = 0,
    ) -> None:
        super().__init__(control_group.rank(), control_group.size(), device)
        self._groups = [control_group] + [tensor_group] * (len(Channel) - 1)
        self._timeout_s = timeout_s
        self._timeout = timedelta(seconds=timeout_s)
        self._on_close = on_close
        self._first_tag = first_tag
        self._unfinished: deque[_Message] = deque()
        self._closed = False
        self._broken = False
        self._failure: TransportError | None = None
        self._heartbeat: Heartbeat | None = None

    @property
    def broken(self) -> bool:
        return self._broken

    def watch(self, heartbeat: Heartbeat) -> None:
        """From now on `heartbeat` ends with this transport."""
        self._heartbeat = heartbeat

    def fail(self, error: TransportError) -> None:
        """Make every wait raise `error`, those under way too. From any thread."""
        self._failure = self._failure or error
        self._broken = True
        self._break_connections()

    def isend(self, channel: Channel, dst: int, tensor: torch.Tensor) -> Pending:
        self._count(channel, tensor)
        if tensor.numel() == 0:  # both sides know the shape, so an empty message need not be sent
            return Completed(tensor)
        host = tensor if tensor.is_cpu else _to_pinned(tensor)
        # ProcessGroup.send is what dist.isend ends in, 4 us instead of 20
        try:
            work = self._groups[channel].send([host.contiguous()], dst, self._first_tag + channel)
        except RuntimeError as error:
            raise self._lost(error, channel, dst) from None
        send = _Message(self, channel, dst, host, work)
        if len(self._unfinished) >= MAX_UNFINISHED_SENDS:
            self._unfinished.popleft().wait()
        self._unfinished.append(send)
        return send if host is tensor else Completed(tensor)

    def irecv(self, channel: Channel, src: int, shape: Sequence[int], dtype: torch.dtype) -> Pending:
        staged = channel is not Channel.CONTROL and self.device.type != "cpu"
        numel = math.prod(shape)
        if numel == 0:
            return Completed(torch.empty(shape, dtype=dtype, device=self.device if staged else "cpu"))
        room = torch.empty(numel + max(numel, _LEAST_EXTRA_BYTES // dtype.itemsize), dtype=dtype, pin_memory=staged)
        host = room[:numel].view(tuple(shape))
        if host.nbytes >= _MARK_BYTES:
            _bytes_at(host, host.nbytes - _MARK_BYTES).value = _NOT_WRITTEN
        _bytes_at(host, host.nbytes).value = _NOT_WRITTEN
        try:
            work = self._groups[channel].recv([room], src, self._first_tag + channel)
        except RuntimeError as error:
            raise self._lost(error, channel, src) from None
        return (_StagedReceive if staged else _Receive)(self, channel, src, host, work)

    def finish(self, work: dist.Work, channel: Channel, peer: int, timeout_s: float | None) -> None:
        """Wait for `work`; turn gloo's errors into ours."""
        seconds, limit = self._timeout_s, self._timeout
        if timeout_s is not None:
            seconds, limit = timeout_s, timedelta(seconds=timeout_s)
        started = time.monotonic()
        try:
            work.wait(limit)
        except RuntimeError as error:
            # gloo has one type and many texts for its errors; the clock tells a timeout from a lost peer
            if self._failure is not None or time.monotonic() - started < seconds - 0.001:
                raise self._lost(error, channel, peer) from None
            self._broken = True
            raise TransportTimeout(self.rank, peer, channel, seconds) from None

    def check(self, received: torch.Tensor, channel: Channel, peer: int) -> None:
        """Raise MessageMismatch where a message did not fill its tensor, or went past its end."""
        size = received.nbytes
        too_long = _bytes_at(received, size).value != _NOT_WRITTEN
        too_short = size >= _MARK_BYTES and _bytes_at(received, size - _MARK_BYTES).value == _NOT_WRITTEN
        if too_long or too_short:
            self._broken = True
            how = "longer" if too_long else "shorter"
            raise MessageMismatch(self.rank, peer, channel, f"{how} than the {size} bytes expected")

    def _lost(self, error: RuntimeError, channel: Channel, peer: int) -> TransportError:
        self._broken = True
        if self._failure is not None:
            return self._failure
        # gloo's text without its source location and its greeting
        text = str(error).splitlines()[0].split("] ", 1)[-1].split(". ")[0]
        return PeerLost(self.rank, peer, channel, text)

    def close(self) -> None:
        if self._broken:
            self.abort()
        if self._closed:
            return
        self._closed = True
        try:
            if self._heartbeat is not None:
                self._heartbeat.stop()
            while self._unfinished:
                self._unfinished.popleft().wait()
            self.barrier()  # nobody tears down a connection that another rank still reads from
        finally:
            if self._heartbeat is not None:
                self._heartbeat.abandon()
            self._release()

    def abort(self, reason: str = "aborted") -> None:
        if self._closed:
            return
        self._closed = True
        if self._heartbeat is not None:
            self._heartbeat.abandon()
        self._break_connections()
        self._unfinished.clear()
        with contextlib.suppress(RuntimeError):  # the error that led here is the one to show
            self._release()

    def _break_connections(self) -> None:
        # Dropping a group closes nothing while somebody holds one of its messages; a wait that times out
        # makes gloo close every connection of the group at once.
        peer = (self.rank + 1) % self.world_size
        for group in set(self._groups):
            with contextlib.suppress(RuntimeError):
                group.recv([torch.empty(1)], peer, _UNUSED_TAG).wait(timedelta(milliseconds=1))

    def _release(self) -> None:
        # connections close when nobody holds their group any more
        self._groups = []
        on_close, self._on_close = self._on_close, _nothing
        on_close()


class _Message:
    """A message under way whose tensor is already in place. gloo's work can be waited for only once."""

    __slots__ = ("_channel", "_peer", "_tensor", "_transport", "_work")

    def __init__(
        self, transport: GlooTransport, channel: Channel, peer: int, tensor: torch.Tensor, work: dist.Work
    ) -> None:
        self._transport = transport
        self._channel = channel
        self._peer = peer
        self._tensor = tensor
        self._work: dist.Work | None = work

    def wait(self, timeout_s: float | None = None) -> torch.Tensor:
        if self._work is not None:
            self._transport.finish(self._work, self._channel, self._peer, timeout_s)
            self._work = None
        return self._tensor


class _Receive(_Message):
    """Lands in memory of its own, and must fill it to the end and no further."""

    __slots__ = ()

    def wait(self, timeout_s: float | None = None) -> torch.Tensor:
        if self._work is not None:
            super().wait(timeout_s)
            self._transport.check(self._tensor, self._channel, self._peer)
        return self._tensor


class _StagedReceive(_Receive):
    """Lands in pinned memory, ends on the transport's device."""

    __slots__ = ()

    def wait(self, timeout_s: float | None = None) -> torch.Tensor:
        tensor = super().wait(timeout_s)
        if tensor.is_cpu:
            # the pinned block is reused only after this copy: torch's host allocator waits for the stream
            self._tensor = tensor = tensor.to(self._transport.device, non_blocking=True)
        return tensor


def _bytes_at(tensor: torch.Tensor, offset: int) -> ctypes.c_uint64:
    """Eight bytes of `tensor`'s memory, which may lie behind its last element."""
    return ctypes.c_uint64.from_address(tensor.data_ptr() + offset)


def _to_pinned(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in pinned host memory, complete on return: gloo reads it from another thread."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor)
