"""The transport of a world of one: no peers, no process group."""

from collections.abc import Sequence

import torch

from pearl_pp.transport.base import Channel, Pending
from pearl_pp.transport.point_to_point import PointToPointTransport


class LocalTransport(PointToPointTransport):
    """Rank 0 of 1. The collectives are trivial, and there is nobody to send to."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__(rank=0, world_size=1, device=torch.device(device))

    @property
    def broken(self) -> bool:
        return False

    def isend(self, channel: Channel, dst: int, tensor: torch.Tensor) -> Pending:
        raise ValueError(f"rank 0 of 1 has no peer {dst} to send to ({channel.name})")

    def irecv(self, channel: Channel, src: int, shape: Sequence[int], dtype: torch.dtype) -> Pending:
        raise ValueError(f"rank 0 of 1 has no peer {src} to receive from ({channel.name})")

    def close(self) -> None: ...

    def abort(self, reason: str = "aborted") -> None: ...
