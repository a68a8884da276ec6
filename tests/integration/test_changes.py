"""The schedule may change with any verdict: the text is the target's all the same, on every rank."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.messages import Verdict
from pearl_pp.planning.measured_costs import run_costs
from pearl_pp.planning.modes import Limits, modes
from pearl_pp.schedule.instructions import Verify
from pearl_pp.transport.base import Transport
from tests.inprocess import Cluster, check_caches
from tests.integration.conftest import ClusterOf, PairOf
from tests.integration.test_lossless import PROMPT
from tests.integration.test_sampled import sample_plainly
from tests.pairs import oracle
from tests.rank_pool import shared_pool

NUM_TOKENS = 40


class RandomChanges:
    """A decider that changes to any mode of the cluster, with any verdict."""

    def __init__(self, cluster: Cluster, seed: int, rate: float) -> None:
        placement = cluster.pair.placement
        costs = run_costs([{1: 8e-3}] * placement.num_stages, [[4e-3]] * len(placement.replicas), 0.0)
        found = modes(cluster.schedule, placement, costs, Limits())
        schedules = [replace(mode.schedule, ships_kv=ships) for mode in found for ships in (True, False)]
        self._changes = [schedule.as_change() for schedule in schedules]
        self._rng = random.Random(seed)
        self._rate = rate
        self.num_changes = 0

    def decide(self, verify: Verify, verdict: Verdict) -> Verdict:
        if self._rng.random() >= self._rate:
            return verdict
        self.num_changes += 1
        return replace(verdict, change=self._rng.choice(self._changes))


@pytest.mark.case("C2")
@pytest.mark.parametrize("rate", [0.2, 1.0])
@pytest.mark.parametrize("pair", ["self", "noisy", "anti"])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_greedy_text_under_random_changes_is_the_oracles(
    num_ranks: int, pair: str, rate: float, cluster_of: ClusterOf, pair_of: PairOf
) -> None:
    cluster = cluster_of(pair, num_ranks)
    expected = oracle(pair_of(pair)[0], PROMPT, NUM_TOKENS)
    for seed in range(2):
        changes = RandomChanges(cluster, seed, rate)
        outcome = cluster.run(PROMPT, check_caches, decide=changes.decide, max_new_tokens=NUM_TOKENS, ignore_eos=True)
        assert outcome.ids == expected
        assert outcome.metrics["num_changes"] == changes.num_changes
        assert changes.num_changes > 0 or rate < 1, "with few verdicts there may be none"
        drafted = ("num_accepted_tokens", "num_rejected_tokens", "num_discarded_tokens")
        assert outcome.metrics["num_draft_tokens"] == sum(outcome.metrics[name] for name in drafted)


@pytest.mark.case("S8")
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_coupled_text_under_random_changes_is_plain_sampling(
    num_ranks: int, cluster_of: ClusterOf, pair_of: PairOf
) -> None:
    params = {"temperature": 0.9, "max_new_tokens": NUM_TOKENS, "ignore_eos": True, "seed": 5}
    expected = sample_plainly(pair_of("noisy")[0], PROMPT, NUM_TOKENS, seed=5, temperature=0.9)
    cluster = cluster_of("noisy", num_ranks, verify="coupled")
    for seed in range(3):
        changes = RandomChanges(cluster, seed, 0.3)
        assert cluster.run(PROMPT, check_caches, decide=changes.decide, **params).ids == expected


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_rejection_sampling_runs_under_random_changes(num_ranks: int, cluster_of: ClusterOf) -> None:
    """q travels with the tokens, or is dropped with them: never taken for another position's."""
    cluster = cluster_of("noisy", num_ranks, verify="rejection")
    for seed in range(3):
        changes = RandomChanges(cluster, seed, 0.5)
        outcome = cluster.run(
            PROMPT, check_caches, decide=changes.decide, temperature=1.0, max_new_tokens=NUM_TOKENS, ignore_eos=True
        )
        assert len(outcome.ids) == NUM_TOKENS


@pytest.mark.case("E1")
def test_a_change_near_the_end_of_the_text(cluster_of: ClusterOf, pair_of: PairOf) -> None:
    cluster = cluster_of("noisy", 4)
    text = oracle(pair_of("noisy")[0], PROMPT, 16)
    for count in range(1, 17):
        changes = RandomChanges(cluster, count, 0.7)
        assert cluster.run(PROMPT, decide=changes.decide, max_new_tokens=count, ignore_eos=True).ids == text[:count]


def test_a_decider_may_end_the_text(cluster_of: ClusterOf) -> None:
    """As trials end: every rank stops with the same verdict, and the wires are empty afterwards."""
    cluster = cluster_of("self", 4)
    whole = cluster.run(PROMPT, max_new_tokens=40, ignore_eos=True).ids

    def decide(verify: Verify, verdict: Verdict) -> Verdict:
        return replace(verdict, stop=1) if verify.first > len(PROMPT) + 9 else verdict

    outcome = cluster.run(PROMPT, decide=decide, max_new_tokens=40, ignore_eos=True)
    assert 9 < len(outcome.ids) < 40
    assert outcome.ids == whole[: len(outcome.ids)]


def answer_by_choice(transport: Transport, folders: tuple[str, str], options: dict) -> dict:
    """Two prompts through an engine that chooses for itself."""
    from pearl_pp import PearlPP, Prompt

    engine = PearlPP(transport=transport, target=folders[0], draft=folders[1], **options)
    params = SamplingParams(max_new_tokens=200, ignore_eos=True)
    outputs = engine.generate([Prompt(token_ids=tuple(PROMPT), params=params)] * 2)
    schedule = engine.schedule
    engine.close()
    return {
        "ids": [output.token_ids for output in outputs],
        "metrics": [output.metrics for output in outputs],
        "notes": [output.notes for output in outputs],
        "plan": engine.plan.record(),
        "schedule": schedule,
    }


@pytest.mark.case("P1")
@pytest.mark.parametrize(("pair", "num_ranks"), [("self", 2), ("anti", 4), ("noisy", 3), ("anti", 1)])
def test_an_engine_that_chooses_gives_the_oracles_text(pair: str, num_ranks: int, pair_of: PairOf) -> None:
    folders = tuple(map(str, pair_of(pair)))
    results = shared_pool(num_ranks).run(answer_by_choice, folders, {}, timeout_s=90.0)
    expected = oracle(pair_of(pair)[0], PROMPT, 200)
    assert all(result["ids"] == [expected, expected] for result in results)
    assert len({result["schedule"] for result in results}) == 1, "all ranks end with the same schedule"
    first = results[0]
    assert first["plan"]["adapts"] and any("tokens/s predicted" in note for note in first["plan"]["notes"])
    for metrics, notes in zip(first["metrics"], first["notes"], strict=True):
        assert metrics["num_changes"] == len(notes)
    if pair == "anti":
        assert first["metrics"][0]["num_accepted_tokens"] == 0
        if first["plan"]["starts_with"] == "plain decoding":
            assert any("tried again" in note for note in first["notes"][0])


@pytest.mark.parametrize(
    ("options", "starts_with"),
    [({"strategy": "sd", "gamma": 3}, "sd, gamma 3"), ({"placement": "hop", "gamma": 4}, "F = 1, p = 2, gamma 4")],
)
def test_what_is_named_is_run_as_named(options: dict, starts_with: str, pair_of: PairOf) -> None:
    folders = tuple(map(str, pair_of("anti")))
    first = shared_pool(2).run(answer_by_choice, folders, options, timeout_s=60.0)[0]
    assert first["plan"]["starts_with"] == starts_with
    assert [metrics["num_changes"] for metrics in first["metrics"]] == [0, 0]
    assert {metrics["final_mode"] for metrics in first["metrics"]} == {starts_with}


def test_less_of_the_draft_is_loaded_where_memory_is_short(pair_of: PairOf) -> None:
    """Room for both copies; for one, on the last rank; for one that is cut; for the target alone."""
    folders = tuple(map(str, pair_of("noisy")))
    whole, alone = planned(folders, "auto"), planned(folders, "ar")
    rooms = ((whole, 2), ([whole[0] - 1000, whole[1]], 1), ([size - 1000 for size in whole], 1), (alone, 0))
    for room, num_copies in rooms:
        options = {"memory_gb": tuple((size + 1) / 1e9 for size in room)}
        first = shared_pool(2).run(answer_by_choice, folders, options, timeout_s=60.0)[0]
        assert len(first["plan"]["placement"]["replicas"]) == num_copies
        assert any("short" in note for note in first["plan"]["notes"]) == (num_copies < 2)
        assert first["ids"][0] == oracle(pair_of("noisy")[0], PROMPT, 200)


def planned(folders: tuple[str, str], what: str) -> list[int]:
    """Bytes of each rank under `auto`, or without a draft."""
    import torch

    from pearl_pp.config import RunConfig
    from pearl_pp.runtime.loading import open_pair

    strategy = {"auto": "pearl"}.get(what, what)
    pair = open_pair(RunConfig(target=folders[0], draft=folders[1], strategy=strategy), 2, torch.device("cpu"))
    return [size.total for size in pair.planned_bytes()]
