"""The part of a transport that follows from isend and irecv: byte collectives, counters, warm-up."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import permutations
from types import TracebackType
from typing import Self

import torch

from pearl_pp.transport.base import Channel, Pending, Transport


class Completed:
    """A message with nothing left to wait for."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def wait(self, timeout_s: float | None = None) -> torch.Tensor:
        return self._tensor


class PointToPointTransport(ABC):
    """Base of transports that have isend and irecv. As a context manager it closes, or aborts on an error."""

    def __init__(self, rank: int, world_size: int, device: torch.device) -> None:
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self._bytes = [0] * len(Channel)
        self._messages = [0] * len(Channel)

    @property
    @abstractmethod
    def broken(self) -> bool:
        """Whether a wait has failed, so that the other ranks cannot be met any more."""

    @abstractmethod
    def isend(self, channel: Channel, dst: int, tensor: torch.Tensor) -> Pending: ...

    @abstractmethod
    def irecv(self, channel: Channel, src: int, shape: Sequence[int], dtype: torch.dtype) -> Pending: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def abort(self, reason: str = "aborted") -> None: ...

    def bytes_sent(self, channel: Channel) -> int:
        return self._bytes[channel]

    def messages_sent(self, channel: Channel) -> int:
        return self._messages[channel]

    def reset_counters(self) -> None:
        self._bytes = [0] * len(Channel)
        self._messages = [0] * len(Channel)

    def _count(self, channel: Channel, tensor: torch.Tensor) -> None:
        self._bytes[channel] += tensor.nbytes
        self._messages[channel] += 1

    def broadcast_bytes(self, payload: bytes | None, src: int, timeout_s: float | None = None) -> bytes:
        if self.rank != src:
            return self._receive_bytes(src, timeout_s)
        if payload is None:
            raise ValueError(f"rank {src} broadcasts, but gave no payload")
        sends = [send for dst in self._others() for send in self._send_bytes(dst, payload)]
        for send in sends:
            send.wait(timeout_s)
        return payload

    def gather_bytes(self, payload: bytes, dst: int, timeout_s: float | None = None) -> list[bytes] | None:
        if self.rank != dst:
            for send in self._send_bytes(dst, payload):
                send.wait(timeout_s)
            return None
        sources = range(self.world_size)
        return [payload if src == dst else self._receive_bytes(src, timeout_s) for src in sources]

    def barrier(self, timeout_s: float | None = None) -> None:
        self.gather_bytes(b"", 0, timeout_s)
        self.broadcast_bytes(b"", 0, timeout_s)

    def _others(self) -> list[int]:
        return [rank for rank in range(self.world_size) if rank != self.rank]

    def _send_bytes(self, dst: int, payload: bytes) -> list[Pending]:
        sends = [self.isend(Channel.CONTROL, dst, torch.tensor([len(payload)]))]
        if payload:
            # bytearray: torch warns about tensors over read-only memory
            data = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
            sends.append(self.isend(Channel.CONTROL, dst, data))
        return sends

    def _receive_bytes(self, src: int, timeout_s: float | None) -> bytes:
        size = int(self.irecv(Channel.CONTROL, src, (1,), torch.int64).wait(timeout_s))
        if size == 0:
            return b""
        return self.irecv(Channel.CONTROL, src, (size,), torch.uint8).wait(timeout_s).numpy().tobytes()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort(repr(error))


def warm_up(transport: Transport) -> None:
    """Collective: a message over every ordered pair and channel, so that no request has to make a connection.

    Every rank posts its share of one global order, so no two ranks can wait for each other.
    """
    under_way = []
    for src, dst in permutations(range(transport.world_size), 2):
        for channel in Channel:
            if transport.rank == src:
                device = "cpu" if channel is Channel.CONTROL else transport.device
                hello = torch.zeros(1, dtype=torch.int64, device=device)
                under_way.append(transport.isend(channel, dst, hello))
            elif transport.rank == dst:
                under_way.append(transport.irecv(channel, src, (1,), torch.int64))
    for message in under_way:
        message.wait()
    transport.reset_counters()
