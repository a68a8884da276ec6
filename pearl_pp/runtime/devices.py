"""What each rank computes on: how much memory there is, and how fast it is read."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch

from pearl_pp.transport.base import Transport

UNEVEN = 1.1
"""Ranks whose memory or speed differs by more than this factor are not alike."""

_COPIED_BYTES = 64 * 2**20  # more than the caches of any card hold
_WAKING_COPIES, _COPIES = 50, 20


class Device(NamedTuple):
    """One rank's.

    Args:
        card: names it among those of all machines; None on a CPU.
        total_bytes: the card's memory; 0 on a CPU. free_bytes: of that, what nobody has. held_bytes: what this rank has
            for tensors already, from earlier runs: it serves the next one, too.
        bandwidth_gb_s: 10^9 bytes a second that a copy on the card reads and writes; None on a CPU, which ranks share.
    """

    card: str | None = None
    total_bytes: int = 0
    free_bytes: int = 0
    held_bytes: int = 0
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
    card = f"{socket.gethostname()} {properties.uuid}"
    return Device(card, total, free, torch.cuda.memory_reserved(device), _bandwidth(device))


@cache
def _bandwidth(device: torch.device) -> float:
    """The best of some copies, after others that wake the card up: what decoding at batch 1 lives on. Measured once,
    so that all runs of a process are planned alike.
    """
    source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    seconds = []
    for _ in range(_WAKING_COPIES + _COPIES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        copy.copy_(source)
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return 2 * _COPIED_BYTES / min(seconds[_WAKING_COPIES:]) / 1e9


def bandwidths(devices: Sequence[Device]) -> tuple[float, ...]:
    """Of each rank, as far as it tells ranks apart: ranks on CPUs count as equally fast; those that are alike, too; and
    those that share a card, however they were in each other's way while it was measured.
    """
    fastest: dict[str | None, float] = {}
    for device in devices:
        fastest[device.card] = max(fastest.get(device.card, 0.0), device.bandwidth_gb_s or 0.0)
    found = [fastest[device.card] for device in devices]
    if not all(found) or not are_uneven(found):
        return (max(found) or 1.0,) * len(found)
    return tuple(found)


def are_uneven(numbers: Sequence[float]) -> bool:
    return max(numbers) > UNEVEN * min(numbers)
