"""Gloo ranks in processes that outlive a test: imports dominate their start, so a session starts them once.

    results = shared_pool(4).run(fn, *args)      # fn(transport, *args) on every rank; results by rank

`fn` is a module-level function; arguments and results are pickled. The transport belongs to the pool: do not
close it. After an error the ranks are ended, and the next run starts new ones.
"""

import atexit
import functools
import multiprocessing
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pearl_pp.transport.base import PeerLost, Transport
from pearl_pp.transport.torch_distributed import connect

_ROOT = str(Path(__file__).resolve().parents[1])
_PRELOADED = ["torch", "torch.distributed", "transformers", "pearl_pp.transport.torch_distributed"]


class RankPool:
    """`world_size` processes on this machine; the arguments are those of transport.connect()."""

    def __init__(
        self, world_size: int, device: str = "cpu", timeout_s: float = 60.0, use_nccl: bool | None = None
    ) -> None:
        self.world_size = world_size
        self._connect = functools.partial(connect, device, timeout_s, use_nccl)
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._store: dist.TCPStore | None = None

    def run(self, fn: Callable[..., Any], *args: Any, timeout_s: float = 100.0) -> list[Any]:
        """fn(transport, *args) on every rank; raises the first error, with its `rank` and traceback."""
        call = pickle.dumps((fn, args))
        try:
            if not self._processes:
                self._start()
            for pipe in self._pipes:
                pipe.send((sys.path, call))
            return self._collect(fn, timeout_s)
        except BaseException:
            self.close()
            raise

    def _collect(self, fn: Callable[..., Any], timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        results: dict[int, Any] = {}
        consequence: Exception | None = None
        while len(results) < self.world_size:
            waiting = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in results}
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                missing = f"no result of ranks {sorted(waiting.values())} within {timeout_s:g} s"
                raise consequence or TimeoutError(f"{fn.__name__}: {missing}")
            for rank in (waiting[pipe] for pipe in self._pipes if pipe in ready):
                try:
                    results[rank] = _receive(self._pipes[rank], self._processes[rank])
                except Exception as error:
                    error.rank = rank  # type: ignore[attr-defined]
                    if not isinstance(error, PeerLost):
                        raise
                    # not the cause, which may come a moment later
                    results[rank], consequence = None, consequence or error
                    deadline = min(deadline, time.monotonic() + 1.0)
        if consequence:
            raise consequence
        return [results[rank] for rank in range(self.world_size)]

    def _start(self) -> None:
        # the ranks meet as under torchrun: the store lives in the parent, on a port of the kernel's choice
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        context = _context()
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            environment = _environment(rank, self.world_size, self._store.port)
            process = context.Process(
                target=_serve, args=(theirs, environment, self._connect), name=f"rank-{rank}", daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes, self._store = [], [], None


@functools.cache
def shared_pool(world_size: int) -> RankPool:
    """The session's pool of that size."""
    pool = RankPool(world_size)
    atexit.register(pool.close)
    return pool


@functools.cache
def _context() -> Any:
    # new ranks are forked from a process that has the heavy imports behind it: 0.1 s instead of 3
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def _environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }


def _receive(pipe: Any, process: Any) -> Any:
    try:
        answer = pipe.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"{process.name} died with exit code {process.exitcode}") from None
    if isinstance(answer, _Failure):
        raise answer.error()
    return answer


class _Failure:
    """An exception as plain parts: many exceptions pickle, but do not come back."""

    def __init__(self, error: Exception, rank: str) -> None:
        error.add_note(f"on rank {rank}:\n{traceback.format_exc()}")
        self._parts = (type(error), error.args, error.__dict__)

    def error(self) -> Exception:
        kind, args, attributes = self._parts
        error = kind.__new__(kind, *args)
        error.__dict__.update(attributes)
        return error


def _serve(pipe: Connection, environment: dict[str, str], join: Callable[[], Transport]) -> None:
    """Body of a rank: connect once, then one call after another."""
    os.environ.update(environment)
    sys.path.insert(0, _ROOT)
    transport = None
    while True:
        try:
            path, call = pipe.recv()
        except EOFError:
            return  # the parent is gone
        try:
            transport = transport or join()
            sys.path[:] = path  # the test module's folder may have been added since
            fn, args = pickle.loads(call)
            answer = pickle.dumps(fn(transport, *args))
        except Exception as error:
            answer = pickle.dumps(_Failure(error, environment["RANK"]))
        pipe.send_bytes(answer)
