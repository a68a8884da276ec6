"""Whole runs in one process: a thread per rank over the in-process transport. For sweeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pearl_pp.config import RunConfig
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.decoding.stopping import StopChecker, StopReason
from pearl_pp.messages import Verdict
from pearl_pp.runtime.engine import make_schedule
from pearl_pp.runtime.intake import make_request
from pearl_pp.runtime.loading import build_rank, open_pair
from pearl_pp.runtime.metrics import request_metrics
from pearl_pp.runtime.rank_engine import RankEngine, RankResult
from pearl_pp.runtime.request import Prompt
from pearl_pp.runtime.worker import Decide
from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.schedule.schedule import Schedule
from pearl_pp.stages.rank_module import RankModule
from pearl_pp.telemetry import Recorder
from pearl_pp.transport.base import Channel
from pearl_pp.transport.inprocess import Delay, InProcessGroup, InProcessTransport

CPU = torch.device("cpu")

OnRankVerdict = Callable[[int, RankModule, SlotGenerator, Verdict], None]


@dataclass
class Outcome:
    """A finished request: what rank 0 saw, and what must be the same everywhere."""

    ids: list[int]
    results: list[RankResult]
    metrics: dict
    text: str
    reason: StopReason
    handoff_bytes: int

    @property
    def logprobs(self) -> list[float] | None:
        return next((r.logprobs for r in self.results if r.logprobs is not None), None)


class Cluster:
    """Ranks in threads, loaded once and used for many requests.

    Args:
        delay: seconds that a message from one rank to another is under way, for random timing.
    """

    def __init__(
        self,
        target: Path | str | None,
        draft: Path | str | None,
        num_ranks: int,
        *,
        delay: Delay | None = None,
        rendezvous: bool = True,
        **options: object,
    ) -> None:
        models = {} if target is None else {"target": str(target)}
        if draft is not None:
            models["draft"] = str(draft)
        self.config = RunConfig(**models, **options)
        self.num_ranks = num_ranks
        self.pair = open_pair(self.config, num_ranks, CPU)
        self.modules = [build_rank(self.pair, rank, CPU) for rank in range(num_ranks)]
        self.schedule: Schedule = make_schedule(self.config, self.pair)
        self._rendezvous = rendezvous
        self._delay = delay

    def run(
        self,
        prompt: Sequence[int] | str,
        on_verdict: OnRankVerdict | None = None,
        *,
        schedule: Schedule | None = None,
        decide: Decide | None = None,
        report_at: tuple[int, ...] = (),
        **params: object,
    ) -> Outcome:
        """Answers one prompt on all ranks."""
        sampling = SamplingParams(**({"seed": 0} | params))
        content = {"text": prompt} if isinstance(prompt, str) else {"token_ids": tuple(prompt)}
        request = replace(make_request(Prompt(params=sampling, **content), self.pair), report_at=report_at)
        group = InProcessGroup(self.num_ranks, 30.0, self._delay, self._rendezvous)
        links = [self.pair.linked(group.transport(rank)) for rank in range(self.num_ranks)]
        streams: list[list[int]] = [[] for _ in range(self.num_ranks)]

        def work(transport: InProcessTransport) -> tuple[RankResult, StopChecker]:
            rank = transport.rank
            engine = RankEngine(
                links[rank], self.pair, self.modules[rank], Recorder(), self.config.verify, self.config.prefill_piece
            )
            checker = engine.stop_checker(request)

            def hook(generator: SlotGenerator, verdict: Verdict) -> None:
                streams[rank].extend(verdict.token_ids)
                checker.feed(verdict.token_ids, verdict.stop)
                if on_verdict is not None:
                    on_verdict(rank, self.modules[rank], generator, verdict)

            return engine.run(request, schedule or self.schedule, hook, decide), checker

        results, checkers = zip(*group.run(work), strict=True)
        assert all(stream == streams[0] for stream in streams), "ranks differ in what was verified"
        metrics = request_metrics(results[0].generator, results[0].progress, (0.0, 1.0, 2.0), len(streams[0]))
        handoff = sum(link.bytes_sent(Channel.HANDOFF) for link in links)
        reasons = {checker.reason for checker in checkers}
        assert len(reasons) == 1, "ranks differ in why the text ended"
        return Outcome(streams[0], list(results), metrics, checkers[0].text(), reasons.pop(), handoff)


def check_caches(rank: int, module: RankModule, generator: SlotGenerator, verdict: Verdict) -> None:
    """**inv**: after a restart each cache has the length that the state machine says."""
    if verdict.stop or not verdict.restarts:
        return
    kept = generator.state.committed - 1
    if module.target is not None:
        assert module.target.cache.length == kept
    for index, shard in module.shards.items():
        number = [s.rank for s in generator.schedule.replicas[index]].index(rank)
        assert shard.cache.length == generator.kv_lengths[index][number]
