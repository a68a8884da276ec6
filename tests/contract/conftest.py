"""The transports under contract: one way each to run a function on all ranks."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pearl_pp.transport.base import Channel, Pending, Transport
from pearl_pp.transport.gloo import GlooTransport
from pearl_pp.transport.inprocess import InProcessGroup
from pearl_pp.transport.noticed import NoticedTransport
from tests.contract.fabric import run_on_fabric
from tests.rank_pool import RankPool, shared_pool

CPU = torch.device("cpu")


class GlooLauncher:
    """Stands in for NCCL on the CPU: the same calls, over gloo."""

    def __init__(self, plane: GlooTransport) -> None:
        self.device = CPU
        self._plane = plane

    def ready(self, tensor: torch.Tensor) -> None: ...

    def send(self, channel: Channel, dst: int, tensor: torch.Tensor) -> Pending:
        return self._plane.isend(channel, dst, tensor)

    def recv(self, channel: Channel, src: int, shape: Sequence[int], dtype: torch.dtype) -> Pending:
        return self._plane.irecv(channel, src, shape, dtype)

    def close(self) -> None:
        self._plane.close()

    def abort(self) -> None:
        self._plane.abort()


def noticed_over_gloo(transport: Transport, fn: Callable[..., Any], *args: Any) -> Any:
    """Runs on a rank of the pool: three planes with tags of their own over the pool's process group."""
    world = dist.group.WORLD
    control, notices, tensors = (GlooTransport(world, world, CPU, 20.0, first_tag=tag) for tag in (100, 200, 300))
    with NoticedTransport(control, notices, GlooLauncher(tensors), 20.0) as noticed:
        return fn(noticed, *args)


class World:
    """`run(fn, *args)` calls fn(transport, *args) on every rank; `spoil` too, where fn breaks connections."""

    world_size = 3

    def __init__(self, run: Callable[..., list[Any]], pool: RankPool | None = None) -> None:
        self.run = run
        self._pool = pool

    def spoil(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        try:
            return self.run(fn, *args)
        finally:
            if self._pool:
                self._pool.close()


@functools.cache
def _gpu_pool(use_nccl: bool) -> RankPool:
    return RankPool(World.world_size, "cuda", use_nccl=use_nccl)


def _make(kind: str) -> World:
    if kind.startswith("in-process"):
        group = InProcessGroup(World.world_size, timeout_s=20.0, rendezvous=kind == "in-process, rendezvous")
        return World(group.run)
    if kind == "noticed, in memory":
        return World(functools.partial(run_on_fabric, World.world_size))
    if kind in ("nccl", "gloo, staged"):
        if kind == "nccl" and torch.cuda.device_count() < World.world_size:
            pytest.skip(f"needs {World.world_size} CUDA devices")
        pool = _gpu_pool(kind == "nccl")
        return World(pool.run, pool)
    pool = shared_pool(World.world_size)
    run = functools.partial(pool.run, noticed_over_gloo) if kind == "noticed, gloo" else pool.run
    return World(run, pool)


@pytest.fixture(
    params=[
        "in-process",
        "in-process, rendezvous",
        "gloo",
        "noticed, in memory",
        "noticed, gloo",
        pytest.param("gloo, staged", marks=pytest.mark.gpu),
        pytest.param("nccl", marks=pytest.mark.gpu),
    ]
)
def world(request: pytest.FixtureRequest) -> World:
    return _make(request.param)
