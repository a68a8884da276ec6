"""Latency and bandwidth between all ranks, measured by messages that go to a rank and come back."""

from __future__ import annotations

import json
import statistics
import time
from itertools import combinations
from typing import NamedTuple

import torch

from pearl_pp.transport.base import Channel, Transport

_LARGE_BYTES = 4 * 2**20
_SMALL_ROUNDS, _LARGE_ROUNDS = 40, 8
_WARM_UP_ROUNDS = 2


class LinkTime(NamedTuple):
    """One way between two ranks: a message of b bytes takes latency + b / bandwidth (GB: 10^9 bytes).

    Both are of half a round trip, the median of several.
    """

    latency_us: float
    bandwidth_gb_s: float


LinkTimes = list[list[LinkTime | None]]
"""[src][dst]; None on the diagonal."""


def measure_links(transport: Transport, channel: Channel) -> LinkTimes | None:
    """Collective: every pair of ranks in turn, while the others are silent. On rank 0; None elsewhere.

    Args:
        channel: CONTROL for the control plane; another for the plane of tensors, on the transport's device.
    """
    mine: dict[str, LinkTime] = {}
    for first, second in combinations(range(transport.world_size), 2):
        if transport.rank in (first, second):
            peer = second if transport.rank == first else first
            link = _measure(transport, channel, peer, starts=transport.rank == first)
            if transport.rank == first:
                mine[f"{first} {second}"] = link
        transport.barrier()
    gathered = transport.gather_bytes(json.dumps(mine).encode(), dst=0)
    if gathered is None:
        return None
    size = transport.world_size
    table: LinkTimes = [[None] * size for _ in range(size)]
    for payload in gathered:
        for pair, link in json.loads(payload).items():
            first, second = map(int, pair.split())
            table[first][second] = table[second][first] = LinkTime(*link)
    return table


def _measure(transport: Transport, channel: Channel, peer: int, *, starts: bool) -> LinkTime:
    device = torch.device("cpu") if channel is Channel.CONTROL else transport.device
    small = torch.zeros(1, dtype=torch.int64, device=device)
    large = torch.zeros(_LARGE_BYTES // 8, dtype=torch.int64, device=device)
    latency = _one_way_s(transport, channel, peer, small, _SMALL_ROUNDS, starts)
    whole = _one_way_s(transport, channel, peer, large, _LARGE_ROUNDS, starts)
    # A link whose latency hides all else still has a bandwidth of at least this.
    return LinkTime(round(latency * 1e6, 1), round(_LARGE_BYTES / max(whole - latency, 0.05 * whole) / 1e9, 3))


def _one_way_s(
    transport: Transport, channel: Channel, peer: int, message: torch.Tensor, num_rounds: int, starts: bool
) -> float:
    times = []
    for number in range(_WARM_UP_ROUNDS + num_rounds):
        begin = time.perf_counter()
        if starts:
            transport.isend(channel, peer, message).wait()
        answer = transport.irecv(channel, peer, message.shape, message.dtype).wait()
        if answer.is_cuda:
            torch.cuda.current_stream(answer.device).synchronize()
        if not starts:
            transport.isend(channel, peer, message).wait()
        if number >= _WARM_UP_ROUNDS:
            times.append((time.perf_counter() - begin) / 2)
    return statistics.median(times)
