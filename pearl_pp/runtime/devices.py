"""What each rank computes on: how much memory there is, and how fast it is read."""

from __future__ import annotations

import json
import socket
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import torch

from pearl_pp.transport.base import Transport

UNEVEN = 1.1
"""Ranks whose memory or speed differs by more than this factor are not alike."""

_COPIED_BYTES = 64 * 2**20  # more than the caches of any card hold
_COPIES = 5


class Device(NamedTuple):
    """One rank's.

    Args:
        card: names it among those of all machines; None on a CPU.
        total_bytes: the card's memory. free_bytes: of that, what this process may have; 0 on a CPU.
        bandwidth_gb_s: 10^9 bytes a second that a copy on the card reads and writes; None on a CPU, which ranks share.
    """

    card: str | None = None
    total_bytes: int = 0
    free_bytes: int = 0
    bandwidth_gb_s: float | None = None


class Machine(NamedTuple):
    """All ranks' devices, as the planner needs to know them.

    Args:
        memory: bytes that each rank may use; None where nothing limits them.
        speed: of each rank: its device's bandwidth, or relative to the others'.
    """

    memory: tuple[float, ...] | None
    speed: tuple[float, ...]
    device_type: str = "cpu"

    @property
    def is_uneven(self) -> bool:
        """Whether an even split would leave memory or speed unused."""
        return are_uneven(self.speed) or (self.memory is not None and are_uneven(self.memory))


def gather_devices(transport: Transport) -> list[Device]:
    """Collective: the device of every rank, on every rank."""
    gathered = transport.gather_bytes(json.dumps(_own(transport.device)).encode(), dst=0)
    everyone = None if gathered is None else json.dumps([json.loads(payload) for payload in gathered]).encode()
    return [Device(*fields) for fields in json.loads(transport.broadcast_bytes(everyone, src=0))]


def _own(device: torch.device) -> Device:
    if device.type != "cuda":
        return Device()
    properties = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device)  # this process has it already
    return Device(f"{socket.gethostname()} {properties.uuid}", total, free, _bandwidth(device))


def _bandwidth(device: torch.device) -> float:
    """Median of a few copies: what decoding at batch 1 lives on."""
    source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    seconds = []
    for _ in range(_COPIES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        copy.copy_(source)
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return 2 * _COPIED_BYTES / statistics.median(seconds) / 1e9


def bandwidths(devices: Sequence[Device]) -> tuple[float, ...]:
    """Of each rank, as far as it tells ranks apart: ranks on CPUs count as equally fast, those that are alike, too."""
    found = [device.bandwidth_gb_s or 0.0 for device in devices]
    if not all(found) or not are_uneven(found):
        return (max(found) or 1.0,) * len(found)
    return tuple(found)


def are_uneven(numbers: Sequence[float]) -> bool:
    return max(numbers) > UNEVEN * min(numbers)
