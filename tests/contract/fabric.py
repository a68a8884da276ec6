"""A tensor plane in memory that behaves like NCCL: a stream per rank and channel, heads must meet.

It shows what the real one would only show as a hang: streams in different orders on two ranks never finish.
A receive that is launched before its send is an error.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pearl_pp.transport.base import Channel, TransportTimeout
from pearl_pp.transport.inprocess import InProcessGroup
from pearl_pp.transport.noticed import NoticedTransport


class _Op:
    def __init__(self, fabric: "Fabric", rank: int, peer: int, channel: Channel, tensor: torch.Tensor | None):
        self.fabric, self.rank, self.peer, self.channel = fabric, rank, peer, channel
        self.tensor = tensor  # None: a receive that has not met its send
        self.is_send = tensor is not None
        self.done = False

    def wait(self, timeout_s: float | None = None) -> torch.Tensor:
        with self.fabric.changed:
            if not self.fabric.changed.wait_for(lambda: self.done, self.fabric.timeout_s):
                raise TransportTimeout(self.rank, self.peer, self.channel, self.fabric.timeout_s)
        assert self.tensor is not None
        return self.tensor


class Fabric:
    def __init__(self, timeout_s: float = 10.0) -> None:
        self.timeout_s = timeout_s
        self.changed = threading.Condition()
        self.streams: defaultdict[tuple[int, Channel], deque[_Op]] = defaultdict(deque)
        self.num_sends: defaultdict[tuple[int, int, Channel], int] = defaultdict(int)
        self.num_receives: defaultdict[tuple[int, int, Channel], int] = defaultdict(int)

    def launch(self, op: _Op) -> _Op:
        with self.changed:
            link = (op.rank, op.peer, op.channel) if op.is_send else (op.peer, op.rank, op.channel)
            (self.num_sends if op.is_send else self.num_receives)[link] += 1
            assert self.num_receives[link] <= self.num_sends[link], "a receive was launched before its send"
            self.streams[op.rank, op.channel].append(op)
            while self._meet(op.channel):
                self.changed.notify_all()
        return op

    def _meet(self, channel: Channel) -> bool:
        heads = [stream[0] for (_, of), stream in self.streams.items() if of is channel and stream]
        for send in (op for op in heads if op.is_send):
            for receive in (op for op in heads if not op.is_send):
                if (receive.rank, receive.peer) == (send.peer, send.rank):
                    receive.tensor = send.tensor
                    for op in (send, receive):
                        op.done = True
                        self.streams[op.rank, channel].popleft()
                    return True
        return False


class FabricLauncher:
    """What a NoticedTransport launches with."""

    def __init__(self, fabric: Fabric, rank: int) -> None:
        self.device = torch.device("cpu")
        self._fabric = fabric
        self._rank = rank

    def ready(self, tensor: torch.Tensor) -> None: ...

    def send(self, channel: Channel, dst: int, tensor: torch.Tensor) -> _Op:
        return self._fabric.launch(_Op(self._fabric, self._rank, dst, channel, tensor.clone()))

    def recv(self, channel: Channel, src: int, shape: Sequence[int], dtype: torch.dtype) -> _Op:
        return self._fabric.launch(_Op(self._fabric, self._rank, src, channel, None))

    def close(self) -> None: ...

    def abort(self) -> None: ...


def run_on_fabric(world_size: int, fn: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """fn(transport, *args), a thread per rank; `options` are InProcessGroup's, for both control planes."""
    control, notices = (InProcessGroup(world_size, rendezvous=True, **options) for _ in range(2))
    fabric = Fabric()

    def on_rank(plane: Any) -> Any:
        launcher = FabricLauncher(fabric, plane.rank)
        with NoticedTransport(plane, notices.transport(plane.rank), launcher, control.timeout_s) as transport:
            return fn(transport, *args)

    return control.run(on_rank)
