"""Traces: a run and the simulator of the same schedule show the same chunks with the same fates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pearl_pp import PearlPP
from pearl_pp.config import RunConfig
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.messages import Verdict
from pearl_pp.runtime.intake import make_request
from pearl_pp.runtime.rank_engine import RankEngine
from pearl_pp.runtime.request import Prompt, Request
from pearl_pp.runtime.simulated import simulate
from pearl_pp.runtime.tracing import Trace, Tracer
from pearl_pp.schedule.instructions import Kind, Transfer
from pearl_pp.simulation.simulator import Simulator
from pearl_pp.telemetry import Activity, Event, Recorder
from pearl_pp.transport.inprocess import InProcessGroup, InProcessTransport
from pearl_pp.transport.local import LocalTransport
from tests.inprocess import Cluster
from tests.integration.conftest import ClusterOf, PairOf
from tests.unit.simulation.machines import save_profile

WORK = (Activity.TARGET, Activity.DRAFT, Activity.VERIFY)


class Traced(NamedTuple):
    """A run in threads: its trace, its verdicts as rank 0 saw them, and the request."""

    trace: Trace
    verdicts: list[Verdict]
    request: Request


def traced(cluster: Cluster, prompt: Sequence[int], **params: Any) -> Traced:
    request = make_request(Prompt(token_ids=tuple(prompt), params=SamplingParams(seed=0, **params)), cluster.pair)
    group = InProcessGroup(cluster.num_ranks, 30.0, rendezvous=True)
    links = [cluster.pair.linked(group.transport(rank)) for rank in range(cluster.num_ranks)]
    verdicts: list[Verdict] = []

    def work(transport: InProcessTransport) -> Trace | None:
        rank = transport.rank
        recorder = Recorder(keeps_events=True)
        tracer = Tracer(links[rank], recorder, cluster.schedule.last_rank)
        engine = RankEngine(links[rank], cluster.pair, cluster.modules[rank], recorder, cluster.config.verify)
        tracer.start("prompt", len(prompt))

        def on_verdict(_: object, verdict: Verdict) -> None:
            tracer.add(verdict)
            if rank == 0:
                verdicts.append(verdict)

        engine.run(request, cluster.schedule, on_verdict)
        return tracer.take()

    return Traced(group.run(work)[0], verdicts, request)


def followed(events_of_ranks: Sequence[Sequence[Event]]) -> list[list[tuple]]:
    """What each rank did, without its times: passes and verifications, and messages by their senders."""
    return [
        sorted(
            (event.slot, event.activity, event.label, event.fate, event.chunk, event.purpose)
            for event in events
            if event.activity in WORK or _is_sent(event, rank)
        )
        for rank, events in enumerate(events_of_ranks)
    ]


def _is_sent(event: Event, rank: int) -> bool:
    if event.activity is not Activity.MOVE or not event.about:
        return False
    transfer = Transfer(*event.about)
    return transfer.src == rank != transfer.dst


class FreeCosts:
    slot_s = post_s = 0.0

    def target(self, rank: int, num_tokens: int) -> float:
        return 0.25

    def draft(self, rank: int, replica: int, shard: int, num_tokens: int) -> float:
        return 0.1

    def message(self, kind: Kind | None, src: int, dst: int, count: int, num_layers: int) -> float:
        return 0.0


@pytest.mark.parametrize(
    "options",
    [
        {"placement": "hop", "gamma": 4, "handoff": "ship"},
        {"placement": "hop", "gamma": 3, "handoff": "catchup"},
        {"placement": "pipelined", "verify_interval": 2, "fill": 2, "gamma": 2, "handoff": "ship"},
        {"placement": "single", "fill": 3, "verify_interval": 1, "gamma": 1},
        {"placement": "sharded", "gamma": 4},
        {"placement": "dedicated", "gamma": 3},
        {"strategy": "sd", "gamma": 3},
        {"strategy": "ar"},
    ],
    ids=lambda options: " ".join(str(value) for value in options.values()),
)
def test_a_real_run_and_its_simulation_show_the_same_work(options: dict, cluster_of: ClusterOf) -> None:
    cluster = cluster_of("noisy", 3, **options)
    run = traced(cluster, (3, 5, 7, 9), max_new_tokens=40, ignore_eos=True)
    replay = iter(run.verdicts)
    simulator = Simulator(cluster.schedule, FreeCosts(), lambda *_: next(replay))
    timeline = simulator.run(4, run.request.total_len, run.request.draft_end, keeps_events=True)
    assert followed(run.trace.events) == followed(timeline.events())
    fates = {event.fate for events in run.trace.events for event in events if event.activity in WORK[:2]}
    assert fates >= ({"bonus"} if options.get("strategy") == "ar" else {"accepted", "rejected"})


def test_an_emulated_run_and_its_simulation_show_the_same_work(tmp_path: Path) -> None:
    """The prompt goes through in pieces, q travels with drafted tokens; the simulation finds its own verdicts."""
    path = save_profile(tmp_path, target__pass_ms=2.0, draft__pass_ms=0.25, prefill_tokens_per_s=2_000)
    options = {"placement": "pipelined", "verify_interval": 2, "fill": 2, "gamma": 4, "handoff": "ship", "seed": 0}
    cluster = Cluster(None, None, 4, emulate=path, **options)
    run = traced(cluster, (1,) * 50, max_new_tokens=30, temperature=1.0)
    result = simulate(RunConfig(emulate=path, max_new_tokens=30, temperature=1.0, **options), 4, 50)
    assert followed(run.trace.events) == followed(result.timeline.events())
    assert {e.fate for e in run.trace.events[0] if e.activity is Activity.TARGET} >= {"prompt", "cancelled"}
    moves = [(rank, e) for rank, events in enumerate(run.trace.events) for e in events if e.purpose]
    assert {event.activity for _, event in moves} == {Activity.MOVE}
    sent = sum(_is_sent(event, rank) for rank, event in moves)
    # Its receiver posts a receive and later puts the entries in place.
    assert sent > 0 and len(moves) == 3 * sent


def test_the_emulated_and_the_simulated_speed_have_the_same_pace(tmp_path: Path) -> None:
    """`gamma` auto: where the run measures the pass, the simulation takes it from the profile."""
    path = save_profile(tmp_path)
    result = simulate(RunConfig(emulate=path, placement="hop"), 4, 8)
    fixed = Cluster(None, None, 4, emulate=path, placement="hop", gamma=8)
    assert result.schedule.pass_ticks == fixed.schedule.pass_ticks


def test_a_run_names_its_requests(pair_of: PairOf, tmp_path: Path) -> None:
    target, draft = map(str, pair_of("noisy"))
    path = tmp_path / "trace.json"
    engine = PearlPP(transport=LocalTransport(), target=target, draft=draft, gamma=2, trace=str(path))
    params = SamplingParams(max_new_tokens=6, ignore_eos=True)
    engine.generate([Prompt(token_ids=(3, 5), params=params), Prompt(token_ids=(4, 6, 8), params=params)])
    engine.close()
    rows = [row for row in json.loads(path.read_text())["traceEvents"] if row["ph"] == "X"]
    requests = [row for row in rows if row["cat"] == "requests"]
    assert [row["name"] for row in requests] == ["request 1", "request 2"]
    assert requests[0]["ts"] == 0 < requests[0]["dur"] <= requests[1]["ts"]
    first = [row for row in rows if row["cat"] == "target"]
    assert min(row["ts"] for row in first) >= 0, "the warm-up is not in it"
    assert [row["args"]["positions"][:3] for row in first if row["args"]["chunk"] == 0] == ["[0,", "[0,"]
