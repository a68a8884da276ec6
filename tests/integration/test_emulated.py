"""Emulated runs, a thread per rank: the simulator's verdicts, real messages, a profile's times."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from pearl_pp.messages import Verdict
from pearl_pp.simulation.costs import Overheads, ProfileCosts
from pearl_pp.simulation.simulator import Simulator
from pearl_pp.simulation.timeline import Timeline
from pearl_pp.simulation.verdicts import independent
from tests.inprocess import Cluster
from tests.unit.simulation.machines import profile, save_profile

PROMPT = (1, 2, 3)
FAST = {"target__pass_ms": 2.0, "draft__pass_ms": 0.25}


class Emulated(NamedTuple):
    """The verdicts as rank 0 learnt them, and the seconds between the first and the last."""

    verdicts: list[Verdict]
    seconds: float
    handoff_bytes: int


def emulate(cluster: Cluster, num_tokens: int, **params: object) -> Emulated:
    verdicts, times = [], []

    def on_verdict(rank: int, module: object, generator: object, verdict: Verdict) -> None:
        if rank == 0:
            verdicts.append(verdict)
            times.append(time.perf_counter())

    outcome = cluster.run(PROMPT, on_verdict, max_new_tokens=num_tokens, **params)
    assert len(outcome.ids) == num_tokens
    return Emulated(verdicts, times[-1] - times[0], outcome.handoff_bytes)


def simulate(cluster: Cluster, acceptance: float, num_tokens: int, seed: int, overheads: Overheads) -> Timeline:
    costs = ProfileCosts(cluster.pair.profile, cluster.pair.placement, overheads)
    simulator = Simulator(cluster.schedule, costs, independent(acceptance, seed))
    return simulator.run(len(PROMPT), len(PROMPT) + num_tokens)


def shapes(verdicts: list[Verdict]) -> list[tuple]:
    return [(v.slot, len(v.token_ids), v.num_accepted, v.outcome, v.stop) for v in verdicts]


@pytest.mark.parametrize("acceptance", [0.0, 0.7, 1.0])
@pytest.mark.parametrize(
    ("num_ranks", "options"),
    [
        (4, {"placement": "hop", "gamma": 8}),
        (4, {"placement": "hop", "gamma": 5, "handoff": "catchup"}),
        (4, {"placement": "pipelined", "verify_interval": 2, "fill": 3, "gamma": 4}),
        (3, {"placement": "pipelined", "verify_interval": 2, "fill": 2, "gamma": 5}),
        (4, {"placement": "sharded", "gamma": 6}),
        (5, {"placement": "dedicated", "gamma": 8}),
        (1, {"strategy": "sd", "gamma": 4}),
        (4, {"strategy": "sd", "gamma": 4}),
        (4, {"placement": "hop", "gamma": 4, "no_pre_verify": True}),
        (4, {"strategy": "ar"}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else str(value),
)
def test_emulated_and_simulated_verdicts_are_the_same(
    num_ranks: int, options: dict, acceptance: float, tmp_path: Path
) -> None:
    path = save_profile(tmp_path, acceptance=acceptance, **FAST)
    cluster = Cluster(None, None, num_ranks, emulate=path, **options)
    emulated = emulate(cluster, 60, seed=3)
    simulated = simulate(cluster, acceptance, 60, 3, Overheads())
    assert shapes(emulated.verdicts) == shapes([verdict for _, verdict in simulated.verdicts])


def test_hand_offs_move_what_the_profile_says(tmp_path: Path) -> None:
    path = save_profile(tmp_path, **FAST)
    cluster = Cluster(None, None, 4, emulate=path, placement="hop", gamma=8, handoff="ship")
    handed = emulate(cluster, 60).handoff_bytes
    assert handed > 0 and handed % profile().draft.kv_bytes_per_token == 0


def test_a_sampled_run_sends_probabilities_of_the_real_size(tmp_path: Path) -> None:
    path = save_profile(tmp_path, **FAST)
    cluster = Cluster(None, None, 5, emulate=path, placement="dedicated", gamma=8)
    greedy, sampled = emulate(cluster, 40, seed=1), emulate(cluster, 40, seed=1, temperature=0.8)
    assert shapes(greedy.verdicts) == shapes(sampled.verdicts), "acceptance is the profile's either way"


def slowest_link(path: str) -> Cluster:
    return Cluster(None, None, 4, emulate=path, strategy="ar")


def test_links_slow_a_run_by_their_latency(tmp_path: Path) -> None:
    """Plain decoding on four ranks waits for three activations and a verdict a token."""
    times = {}
    for latency_us in (0, 5000):
        path = save_profile(tmp_path, link={"latency_us": latency_us, "bandwidth_gb_s": 1000}, **FAST)
        times[latency_us] = emulate(slowest_link(path), 21).seconds / 20
    assert times[5000] - times[0] == pytest.approx(0.020, rel=0.25)


def message_s(path: str) -> float:
    """What a message costs here: plain decoding takes N of them a token."""
    cluster = Cluster(None, None, 4, emulate=path, strategy="ar")
    seconds = emulate(cluster, 16).seconds / 15
    return max(0.0, (seconds - cluster.pair.profile.target.pass_ms * 1e-3) / 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "num_ranks"),
    [({"placement": "hop", "gamma": 8}, 4), ({"placement": "pipelined", "verify_interval": 2, "gamma": 4}, 4)],
)
def test_emulated_and_simulated_speeds_agree(
    options: dict, num_ranks: int, tmp_path: Path, best_of: Callable[..., float]
) -> None:
    """T = 40 ms: within 5 % of the simulator with the message cost of this machine."""
    path = save_profile(tmp_path)
    cluster = Cluster(None, None, num_ranks, emulate=path, **options)

    def ratio() -> float:
        overheads = Overheads(message_s=message_s(path))
        simulated = simulate(cluster, 0.7, 60, 0, overheads)
        emulated = emulate(cluster, 60, seed=0)
        return (simulated.duration - simulated.verdicts[0][0]) / emulated.seconds

    assert best_of(ratio, near=1.0) == pytest.approx(1.0, abs=0.05)


@pytest.fixture
def best_of() -> Callable[..., float]:
    """The nearest of up to three tries: other work on the machine makes an emulated run slower, never faster."""

    def run(measure: Callable[[], float], near: float) -> float:
        results: list[float] = []
        while len(results) < 3 and not any(abs(result - near) < 0.05 for result in results):
            results.append(measure())
        return min(results, key=lambda result: abs(result - near))

    return run
