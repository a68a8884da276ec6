"""Emulated runs, a thread per rank: the simulator's verdicts, real messages, a profile's times."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

from pearl_pp import run
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError
from pearl_pp.messages import Verdict
from pearl_pp.simulation.costs import Overheads, ProfileCosts
from pearl_pp.simulation.simulator import Simulator
from pearl_pp.simulation.timeline import Timeline
from pearl_pp.simulation.verdicts import independent
from pearl_pp.transport.base import Channel, Transport
from tests.inprocess import Cluster
from tests.rank_pool import shared_pool
from tests.unit.simulation.machines import profile, save_profile

pytestmark = pytest.mark.alone

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


def test_a_sampled_run_has_the_same_verdicts(tmp_path: Path) -> None:
    path = save_profile(tmp_path, **FAST)
    cluster = Cluster(None, None, 5, emulate=path, placement="dedicated", gamma=8)
    greedy, sampled = emulate(cluster, 40, seed=1), emulate(cluster, 40, seed=1, temperature=0.8)
    assert shapes(greedy.verdicts) == shapes(sampled.verdicts), "acceptance is the profile's either way"


@pytest.mark.parametrize(
    ("num_ranks", "options"),
    [
        (3, {"placement": "dedicated"}),
        (4, {"placement": "hop"}),
        (4, {"placement": "pipelined", "verify_interval": 2, "fill": 3}),
    ],
)
def test_the_measured_pace_holds_from_the_middle_of_a_window(num_ranks: int, options: dict, tmp_path: Path) -> None:
    """Everything is accepted, so verdicts 2 and 6 change the pace of the first window while it goes on."""
    path = save_profile(tmp_path, target__pass_ms=4.0, draft__pass_ms=0.5, acceptance=1.0)
    cluster = Cluster(None, None, num_ranks, emulate=path, **options)
    outcome = cluster.run(PROMPT, max_new_tokens=60, report_at=(2, 6))
    assert len(outcome.ids) == 60
    assert outcome.results[0].generator.schedule.pass_ticks != cluster.schedule.pass_ticks


def answer(transport: Transport, options: dict, params: dict) -> tuple[dict, int, list[str], int]:
    """One prompt through the whole engine on this rank; metrics, bytes of q this rank sent, plan, peak memory."""
    from pearl_pp import PearlPP, Prompt

    sent = []
    isend = transport.isend
    transport.isend = lambda channel, dst, tensor: (  # type: ignore[method-assign]
        sent.append(tensor.nbytes) if channel is Channel.PROBS else None,
        isend(channel, dst, tensor),
    )[1]
    try:
        engine = PearlPP(transport=transport, **options)
        output = engine.generate([Prompt(text="Hello", params=SamplingParams(**params))])[0]
        engine.close()
    finally:
        transport.isend = isend  # type: ignore[method-assign]
    return output.metrics, sum(sent), engine.plan.lines, len(output.token_ids)


def test_the_engine_emulates_over_gloo_and_measures_gamma(tmp_path: Path) -> None:
    options = {"emulate": save_profile(tmp_path, target__pass_ms=16.0, draft__pass_ms=4.0), "placement": "dedicated"}
    results = shared_pool(3).run(answer, options, {"max_new_tokens": 30, "temperature": 0.7, "seed": 2})
    metrics, _, lines, num_tokens = results[0]
    assert num_tokens == metrics["num_output_tokens"] == 30
    strategy = next(line for line in lines if line.startswith("strategy"))
    gamma = float(strategy.partition("gamma ")[2].split()[0])
    assert gamma == pytest.approx(4, rel=0.2) and "measured" in strategy
    assert all(rank["sleep_overrun_s"] > 0 and "peak_bytes" not in rank for rank in metrics["per_rank"])
    # q travels from the draft's rank to the last stage, a row of the real vocabulary and a stamp for each message.
    sizes = [sent for _, sent, _, _ in results]
    assert sizes[:2] == [0, 0] and sizes[2] >= metrics["num_accepted_tokens"] * 4096 * 4


def test_a_command_says_emulated_wherever_there_are_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On one rank, where no launcher is needed."""
    record, path = tmp_path / "out.json", save_profile(tmp_path, **FAST)
    options = ["--emulate", path, "--json", str(record), "--prompt", "Hello", "--max-new-tokens", "20"]
    assert run.main(options) == 0
    content = json.loads(record.read_text())
    assert content["mode"] == "emulated"
    assert content["requests"][0]["text"] == "." * 20
    numbers = [line for line in capsys.readouterr().out.splitlines() if re.search(r"\d+\.\d", line)]
    assert len(numbers) >= 4 and all(line.strip().startswith("emulated") for line in numbers)


def test_more_ranks_than_the_profile_describes_are_refused(tmp_path: Path) -> None:
    path = save_profile(tmp_path)
    with pytest.raises(UserError, match=f"^--emulate {path}: ranks: describes 5 ranks, this run has 6$"):
        Cluster(None, None, 6, emulate=path)


def test_links_slow_a_run_by_their_latency(tmp_path: Path) -> None:
    """Plain decoding on four ranks waits for three activations and a verdict a token."""
    times = {}
    for latency_us in (0, 5000):
        path = save_profile(tmp_path, link={"latency_us": latency_us, "bandwidth_gb_s": 1000}, **FAST)
        times[latency_us] = emulate(Cluster(None, None, 4, emulate=path, strategy="ar"), 21).seconds / 20
    assert times[5000] - times[0] == pytest.approx(0.020, rel=0.25)


def message_s(path: str) -> float:
    """What a message costs here: plain decoding takes N of them a token."""
    cluster = Cluster(None, None, 4, emulate=path, strategy="ar")
    seconds = emulate(cluster, 16).seconds / 15
    return max(0.0, (seconds - cluster.pair.profile.target.pass_ms * 1e-3) / 4)


SPEEDS = [
    ({"placement": "hop", "gamma": 8}, 4),
    ({"placement": "pipelined", "verify_interval": 2, "gamma": 4, "fill": 3}, 4),
]


@pytest.mark.slow(reason="slots of 10 ms: a loaded machine wakes ranks late by several of them")
@pytest.mark.parametrize(("options", "num_ranks"), SPEEDS)
def test_emulated_and_simulated_speeds_agree(options: dict, num_ranks: int, tmp_path: Path) -> None:
    """T = 40 ms: the median of three within 7 % of the simulator with the message cost of this machine."""
    path = save_profile(tmp_path)
    cluster = Cluster(None, None, num_ranks, emulate=path, **options)

    def ratio() -> float:
        overheads = Overheads(message_s=message_s(path))
        simulated = simulate(cluster, 0.7, 60, 0, overheads)
        emulated = emulate(cluster, 60, seed=0)
        return (simulated.duration - simulated.verdicts[0][0]) / emulated.seconds

    assert median(ratio() for _ in range(3)) == pytest.approx(1.0, abs=0.07)


@pytest.mark.parametrize(("options", "num_ranks"), SPEEDS)
def test_an_emulated_run_takes_the_simulated_time_and_little_more(
    options: dict, num_ranks: int, tmp_path: Path
) -> None:
    """T = 160 ms: slots of 40 ms, beside which late wake-ups are short. Sleeps are never too short, on any load."""
    path = save_profile(tmp_path, target__pass_ms=160.0, draft__pass_ms=20.0)
    cluster = Cluster(None, None, num_ranks, emulate=path, **options)
    simulated = simulate(cluster, 0.7, 24, 0, Overheads())
    free = simulated.duration - simulated.verdicts[0][0]
    assert 0.99 * free < emulate(cluster, 24, seed=0).seconds < 1.25 * free
