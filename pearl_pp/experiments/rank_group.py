"""Gloo ranks that stay alive for many emulated runs: starting them takes longer than a run."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
import torch.distributed as dist  # noqa: TID251 (a store for the ranks to meet at, sends nothing)

from pearl_pp.config import RunConfig
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.planning.prediction import exact_pass_ticks
from pearl_pp.runtime.emulation import EmulatedPair
from pearl_pp.runtime.intake import make_request
from pearl_pp.runtime.loading import build_rank, open_pair
from pearl_pp.runtime.rank_engine import RankEngine
from pearl_pp.runtime.request import Prompt
from pearl_pp.runtime.warm_up import make_schedule
from pearl_pp.schedule.schedule import Schedule
from pearl_pp.simulation.costs import ProfileCosts
from pearl_pp.telemetry import Activity, Recorder
from pearl_pp.transport.base import Transport, TransportError
from pearl_pp.transport.torch_distributed import connect


@dataclass(frozen=True)
class EmulatedRun:
    """What rank 0 measured: its clock at each verdict, in seconds from the start of the request.

    Args:
        pass_overhead_s: median of what a draft pass (a target pass without a draft) takes beyond the profile's
            time, the largest of all ranks.
        sleep_overrun_s: by how much all sleeps of a rank overran, the largest of all ranks.
    """

    verdict_times: tuple[float, ...]
    num_tokens: int
    pass_overhead_s: float
    sleep_overrun_s: float

    @property
    def first_token_s(self) -> float:
        """From the start of the request to the first verdict."""
        return self.verdict_times[0]

    @property
    def tokens_per_s(self) -> float:
        """(tokens - 1) / time after the first."""
        return (self.num_tokens - 1) / (self.verdict_times[-1] - self.verdict_times[0])


def exact_schedule(config: RunConfig, pair: EmulatedPair) -> Schedule:
    """Where gamma is to be measured, draft passes are exactly as long as the profile says."""
    schedule = make_schedule(config, pair)
    if pair.strategy != "pearl" or pair.placement.gamma is not None:
        return schedule
    return schedule.with_pass_ticks(exact_pass_ticks(pair.placement, ProfileCosts(pair.profile, pair.placement)))


class RankGroup:
    """`num_ranks` processes over gloo. As a context manager it ends them."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        # Ranks are forked from a process that has the heavy imports behind it.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(num_ranks):
            ours, theirs = context.Pipe()
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(num_ranks),
                "LOCAL_WORLD_SIZE": str(num_ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self._store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "OMP_NUM_THREADS": "1",
            }
            process = context.Process(target=_serve, args=(theirs, environment), name=f"rank-{rank}", daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, options: Mapping[str, Any], num_tokens: int, prompt_len: int, exact_pace: bool) -> EmulatedRun:
        """One request under `options`.

        Raises RuntimeError with the traceback of the first rank that failed; the group is ended then, for its
        ranks cannot meet again.

        exact_pace: where gamma is to be measured, draft passes are scheduled as long as the profile says.
        """
        job = pickle.dumps((dict(options), num_tokens, prompt_len, exact_pace))
        try:
            for pipe in self._pipes:
                pipe.send_bytes(job)
            answers = [pickle.loads(pipe.recv_bytes()) for pipe in self._pipes]
        except BaseException:
            self.close()
            raise
        failures = [answer for answer in answers if isinstance(answer, _Failure)]
        if failures:
            self.close()
            raise RuntimeError(min(failures).trace)
        overhead, overrun = (max(answer[i] for answer in answers) for i in (1, 2))
        return EmulatedRun(answers[0][0], num_tokens, overhead, overrun)

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the ranks. More than once does nothing more."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []

    @property
    def closed(self) -> bool:
        return not self._processes


class _Failure(NamedTuple):
    """What ended a rank; the cause sorts before failures that only follow from it."""

    is_consequence: bool
    time: float
    trace: str


def _serve(pipe: Connection, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    torch.set_grad_enabled(False)
    transport = None
    while True:
        try:
            job = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return  # the parent is gone
        try:
            transport = transport or connect("cpu")
            answer: object = _run(transport, *job)
        except Exception as error:
            failed = _Failure(isinstance(error, TransportError), time.monotonic(), traceback.format_exc())
            if transport is not None:
                transport.abort(repr(error))  # the other ranks would wait for this one until their time is up
            pipe.send_bytes(pickle.dumps(failed))
            return
        pipe.send_bytes(pickle.dumps(answer))


def _run(
    wires: Transport, options: dict[str, Any], num_tokens: int, prompt_len: int, exact_pace: bool
) -> tuple[tuple[float, ...], float, float]:
    config = RunConfig(**options)
    pair = open_pair(config, wires.world_size, wires.device)
    module = build_rank(pair, wires.rank, wires.device)
    assert isinstance(pair, EmulatedPair)
    schedule = exact_schedule(config, pair) if exact_pace else make_schedule(config, pair)
    recorder = Recorder()
    engine = RankEngine(pair.linked(wires), pair, module, recorder, config.verify, config.prefill_piece)
    params = SamplingParams(max_new_tokens=num_tokens, seed=config.seed, ignore_eos=True)
    request = make_request(Prompt(token_ids=(0,) * prompt_len, params=params), pair)
    wires.barrier()
    start = time.perf_counter()
    times: list[float] = []
    engine.run(request, schedule, lambda *_: times.append(time.perf_counter() - start))
    observed = pair.measured(module, 0)
    overhead = _pass_overhead(recorder, module)
    return tuple(times), overhead, observed["sleep_overrun_s"]


def _pass_overhead(recorder: Recorder, module: Any) -> float:
    activity, stage = (Activity.DRAFT, next(iter(module.shards.values()), None))
    if stage is None or not recorder.median_ns(activity):
        activity, stage = Activity.TARGET, module.target
    if stage is None or not recorder.median_ns(activity):
        return 0.0
    return max(0.0, recorder.median_ns(activity) * 1e-9 - stage.duration(1))
