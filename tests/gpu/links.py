"""Latency and bandwidth of every ordered pair of ranks, by channel. Runs on the ranks."""

import json
import time
from itertools import permutations
from statistics import median
from typing import NamedTuple

import torch

from pearl_pp.transport.base import Channel, Transport

NUM_PINGS = 50
NUM_BYTES, NUM_BULKS = 16 << 20, 4


class Link(NamedTuple):
    channel: str
    latency_us: float
    gb_per_s: float

    def __str__(self) -> str:
        return f"{self.channel} {self.latency_us:.0f} us {self.gb_per_s:.1f} GB/s"


def measure_links(transport: Transport) -> dict[tuple[int, int], list[Link]]:
    """By (src, dst): half the median round trip of 8 bytes, and the rate of 16 MiB messages from src to dst.

    One pair is measured at a time, and every rank learns it.
    """
    links: dict[tuple[int, int], list[Link]] = {}
    for src, dst in permutations(range(transport.world_size), 2):
        mine = []
        for channel in Channel:
            transport.barrier()
            if transport.rank in (src, dst):
                mine.append(_measure(transport, channel, src, dst))
        told = transport.broadcast_bytes(json.dumps(mine).encode(), src)
        links[src, dst] = [Link(*entry) for entry in json.loads(told)]
    return links


def _measure(transport: Transport, channel: Channel, src: int, dst: int) -> Link:
    peer = dst if transport.rank == src else src
    place = torch.device("cpu") if channel is Channel.CONTROL else transport.device
    ping = torch.zeros(1, dtype=torch.int64, device=place)
    bulk = torch.zeros(NUM_BYTES, dtype=torch.uint8, device=place)

    def receive(like: torch.Tensor) -> None:
        transport.irecv(channel, peer, like.shape, like.dtype).wait()
        if place.type == "cuda":
            torch.cuda.synchronize(place)  # NCCL's waits are the stream's, not the host's

    times = []
    for _ in range(NUM_PINGS):
        started = time.perf_counter()
        if transport.rank == src:
            transport.isend(channel, peer, ping)
            receive(ping)
        else:
            receive(ping)
            transport.isend(channel, peer, ping)
        times.append((time.perf_counter() - started) / 2)

    started = time.perf_counter()
    for _ in range(NUM_BULKS):
        if transport.rank == src:
            transport.isend(channel, peer, bulk)
        else:
            receive(bulk)
    if transport.rank == src:
        receive(ping)
    else:
        transport.isend(channel, peer, ping)
    rate = NUM_BULKS * NUM_BYTES / (time.perf_counter() - started)
    return Link(channel.name, median(times) * 1e6, rate / 1e9)
