"""The tensor plane over NCCL: one rank per card, one communicator and one stream per channel."""

import contextlib
import os
from collections import deque
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from pearl_pp.transport.base import Channel, Pending
from pearl_pp.transport.gloo import GlooTransport
from pearl_pp.transport.noticed import NoticedTransport

TENSOR_CHANNELS = [channel for channel in Channel if channel is not Channel.CONTROL]


def over_nccl(control: GlooTransport, control_group: dist.ProcessGroup, timeout_s: float) -> NoticedTransport:
    """Collective: `control` for CONTROL, NCCL for the other channels. Each rank has a card of its own."""
    # Every pair's first message would warn that all pairs of a group share one communicator and are serialised:
    # that is wanted here, each channel has a group of its own.
    os.environ.setdefault("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false")
    groups: dict[Channel, dist.ProcessGroup] = {}
    for channel in TENSOR_CHANNELS:  # in the same order on every rank
        # With device_id the communicator is made now and serves all pairs; without it NCCL would make one for
        # each pair at its first message.
        group = dist.new_group(
            backend="nccl",
            timeout=timedelta(seconds=timeout_s),
            device_id=control.device,
            group_desc=channel.name.lower(),
        )
        assert isinstance(group, dist.ProcessGroup)  # this rank is a member
        groups[channel] = group
    cpu = torch.device("cpu")
    notices = GlooTransport(control_group, control_group, cpu, timeout_s, first_tag=len(Channel))
    return NoticedTransport(control, notices, NcclLauncher(control.device, groups), timeout_s)


class NcclLauncher:
    """Launches on a stream per channel, so that no launch waits for the forward pass or another channel."""

    def __init__(self, device: torch.device, groups: dict[Channel, dist.ProcessGroup]) -> None:
        self.device = device
        self._groups = groups
        self._streams = {channel: torch.cuda.Stream(device) for channel in groups}
        self._unfinished: deque[_Launched] = deque()

    def ready(self, tensor: torch.Tensor) -> None:
        torch.cuda.current_stream(self.device).synchronize()

    def send(self, channel: Channel, dst: int, tensor: torch.Tensor) -> Pending:
        with torch.cuda.stream(self._streams[channel]):
            work = self._groups[channel].send([tensor], dst, 0)
        while self._unfinished and self._unfinished[0].work.is_completed():
            self._unfinished.popleft()
        self._unfinished.append(_Launched(work, tensor))  # keeps the tensor's memory until it has been sent
        return self._unfinished[-1]

    def recv(self, channel: Channel, src: int, shape: Sequence[int], dtype: torch.dtype) -> Pending:
        with torch.cuda.stream(self._streams[channel]):
            # memory of this stream, so the receive need not wait for what the forward pass has queued
            tensor = torch.empty(shape, dtype=dtype, device=self.device)
            return _Launched(self._groups[channel].recv([tensor], src, 0), tensor)

    def close(self) -> None:
        torch.cuda.synchronize(self.device)
        self._unfinished.clear()
        for group in self._groups.values():
            dist.destroy_process_group(group)

    def abort(self) -> None:
        for group in self._groups.values():
            with contextlib.suppress(RuntimeError):
                group.abort()


class _Launched:
    """wait() makes the current stream wait, not the host; deadlines are the control plane's."""

    __slots__ = ("tensor", "work")

    def __init__(self, work: dist.Work, tensor: torch.Tensor) -> None:
        self.work = work
        self.tensor = tensor

    def wait(self, timeout_s: float | None = None) -> torch.Tensor:
        self.work.wait()
        # a received tensor is another stream's memory, not to be reused before this stream is done with it
        self.tensor.record_stream(torch.cuda.current_stream(self.tensor.device))
        return self.tensor
