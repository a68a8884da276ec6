"""Links of an emulated machine: no message is read sooner than the link would bring it."""

import math
import time
from collections.abc import Callable, Sequence

import torch

from pearl_pp.transport.base import Channel, Pending, Transport
from pearl_pp.transport.point_to_point import PointToPointTransport

LinkTime = Callable[[int, int, int], float]
"""(src, dst, bytes) -> seconds from the send of a message to its arrival."""

_STAMP_BYTES = 8


class DelayedTransport(PointToPointTransport):
    """Another transport whose messages take at least the time of a link. On the CPU.

    A message carries the moment of its send in front, so the ranks must share a monotonic clock: those of one
    machine do. Counters count payloads, without the stamp.
    """

    def __init__(self, inner: Transport, link_time: LinkTime) -> None:
        super().__init__(inner.rank, inner.world_size, inner.device)
        self._inner = inner
        self._link_time = link_time

    @property
    def broken(self) -> bool:
        return bool(getattr(self._inner, "broken", False))

    def isend(self, channel: Channel, dst: int, tensor: torch.Tensor) -> Pending:
        self._count(channel, tensor)
        if tensor.numel() == 0:  # nothing crosses the wire
            return self._inner.isend(channel, dst, tensor)
        return _Sent(self._inner.isend(channel, dst, _stamped(tensor)), tensor)

    def irecv(self, channel: Channel, src: int, shape: Sequence[int], dtype: torch.dtype) -> Pending:
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes == 0:
            return self._inner.irecv(channel, src, shape, dtype)
        pending = self._inner.irecv(channel, src, (_STAMP_BYTES + num_bytes,), torch.uint8)
        return _Delayed(pending, self._link_time(src, self.rank, num_bytes), shape, dtype)

    def close(self) -> None:
        self._inner.close()

    def abort(self, reason: str = "aborted") -> None:
        self._inner.abort(reason)


def _stamped(tensor: torch.Tensor) -> torch.Tensor:
    message = torch.empty(_STAMP_BYTES + tensor.nbytes, dtype=torch.uint8)
    message[_STAMP_BYTES:] = tensor.contiguous().view(-1).view(torch.uint8)
    message[:_STAMP_BYTES].view(torch.int64)[0] = time.monotonic_ns()
    return message


class _Sent:
    __slots__ = ("_pending", "_tensor")

    def __init__(self, pending: Pending, tensor: torch.Tensor) -> None:
        self._pending = pending
        self._tensor = tensor

    def wait(self, timeout_s: float | None = None) -> torch.Tensor:
        self._pending.wait(timeout_s)
        return self._tensor


class _Delayed:
    __slots__ = ("_dtype", "_link_s", "_pending", "_shape")

    def __init__(self, pending: Pending, link_s: float, shape: Sequence[int], dtype: torch.dtype) -> None:
        self._pending = pending
        self._link_s = link_s
        self._shape = tuple(shape)
        self._dtype = dtype

    def wait(self, timeout_s: float | None = None) -> torch.Tensor:
        message = self._pending.wait(timeout_s)
        sent_s = int(message[:_STAMP_BYTES].view(torch.int64)[0]) * 1e-9
        remaining = sent_s + self._link_s - time.monotonic()
        if remaining > 0:
            time.sleep(remaining)
        return message[_STAMP_BYTES:].view(self._dtype).view(self._shape)
