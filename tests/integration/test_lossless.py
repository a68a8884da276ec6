"""The output is the target's: whole runs over the in-process transport against one-process `generate`."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from pearl_pp.decoding.stopping import StopReason
from pearl_pp.messages import Outcome, Verdict
from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.schedule.schedule import TICKS
from pearl_pp.stages.rank_module import RankModule
from tests.inprocess import Cluster, check_caches
from tests.integration.conftest import ClusterOf, PairOf
from tests.pairs import oracle

PROMPT = [1, 5, 9, 33, 71]

# Every placement, and every entry pattern that two replicas on four ranks allow.
PLACEMENTS = {
    "ar": (4, {"strategy": "ar"}),
    "sd": (4, {"strategy": "sd", "gamma": 3}),
    "sd alone": (1, {"gamma": 3}),
    "single": (4, {"placement": "single", "gamma": 4}),
    "hop ship": (4, {"placement": "hop", "gamma": 4, "handoff": "ship"}),
    "hop catchup": (4, {"placement": "hop", "gamma": 4, "handoff": "catchup"}),
    "hop of two": (2, {"placement": "hop", "gamma": 3}),
    "hop of three": (3, {"placement": "hop", "gamma": 5}),
    "dedicated": (5, {"placement": "dedicated", "gamma": 4}),
    "sharded on two": (2, {"placement": "sharded", "gamma": 2}),
    "sharded on four": (4, {"placement": "sharded", "gamma": 4}),
    "without pre-verify": (4, {"placement": "hop", "gamma": 4, "no_pre_verify": True}),
    "without post-verify": (4, {"placement": "hop", "gamma": 4, "no_post_verify": True}),
    "pipelined p=2": (4, {"placement": "pipelined", "gamma": 2, "fill": 1}),
    "pipelined F=3 p=2": (4, {"placement": "pipelined", "gamma": 2, "fill": 3}),
    "pipelined p=1": (4, {"placement": "single", "gamma": 1, "verify_interval": 1, "fill": 4}),
    "pipelined p=3": (
        4,
        {"placement": "pipelined", "gamma": 3, "verify_interval": 3, "fill": 2, "handoff": "catchup"},
    ),
}
SPECULATIVE = [name for name in PLACEMENTS if name != "ar"]


@pytest.mark.case("C1", "C2")
@pytest.mark.parametrize("pair", ["self", "noisy", "anti"])
@pytest.mark.parametrize("name", PLACEMENTS)
def test_greedy_text_is_the_oracles(name: str, pair: str, cluster_of: ClusterOf, pair_of: PairOf) -> None:
    num_ranks, options = PLACEMENTS[name]
    layers = max(4, num_ranks)
    cluster = cluster_of(pair, num_ranks, layers, **options)
    expected = oracle(pair_of(pair, num_hidden_layers=layers)[0], PROMPT, 48)
    outcome = cluster.run(PROMPT, check_caches, max_new_tokens=48, ignore_eos=True)
    assert outcome.ids == expected
    assert outcome.reason is StopReason.LENGTH
    metrics = outcome.metrics
    if name != "ar":
        assert metrics["num_draft_tokens"] > 0
        assert metrics["acceptance_rate"] == {"self": 1.0, "anti": 0.0}.get(pair, metrics["acceptance_rate"])
        if pair == "noisy":
            assert 0 < metrics["acceptance_rate"] < 1, "the pair must exercise both outcomes"


def patterns(num_ranks: int) -> list[tuple[int, dict]]:
    """(N, options) of every entry pattern: `pipelined` where there is a second rank for it, else one replica."""
    return [
        (
            num_ranks,
            {
                "placement": "pipelined" if interval > 1 else "single",
                "verify_interval": interval,
                "fill": fill,
                "gamma": 2,
            },
        )
        for interval in range(1, num_ranks + 1)
        for fill in range(1, num_ranks + 1)
    ]


ENTRY_PATTERNS = {f"N={n} F={o['fill']} p={o['verify_interval']}": (n, o) for k in (2, 3, 4) for n, o in patterns(k)}


@pytest.mark.case("C1", "C2")
@pytest.mark.parametrize("name", ENTRY_PATTERNS)
def test_every_entry_pattern_gives_the_oracles_text(name: str, cluster_of: ClusterOf, pair_of: PairOf) -> None:
    num_ranks, options = ENTRY_PATTERNS[name]
    cluster = cluster_of("noisy", num_ranks, **options)
    num_replicas = len(cluster.pair.placement.replicas)
    assert num_replicas == (2 if options["placement"] == "pipelined" else 1)
    outcome = cluster.run(PROMPT, check_caches, max_new_tokens=24, ignore_eos=True)
    assert outcome.ids == oracle(pair_of("noisy", num_hidden_layers=4)[0], PROMPT, 24)
    assert outcome.metrics["num_accepted_tokens"] > 0 and outcome.metrics["num_rejected_tokens"] > 0


@pytest.mark.case("E1")
@pytest.mark.parametrize("name", ENTRY_PATTERNS)
def test_every_entry_pattern_ends_at_the_first_eos(name: str, cluster_of: ClusterOf, pair_of: PairOf) -> None:
    num_ranks, options = ENTRY_PATTERNS[name]
    cluster = cluster_of("noisy", num_ranks, **options)
    text = oracle(pair_of("noisy", num_hidden_layers=4)[0], PROMPT, 24)
    for place in range(2, 9):
        object.__setattr__(cluster.pair.target, "eos_token_ids", frozenset({text[place]}))
        try:
            outcome = cluster.run(PROMPT, max_new_tokens=24)
        finally:
            object.__setattr__(cluster.pair.target, "eos_token_ids", frozenset({127}))
        assert outcome.ids == text[: text.index(text[place]) + 1]
        assert outcome.reason is StopReason.EOS


@pytest.mark.case("C1")
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_everything_rejected_on_any_number_of_ranks(num_ranks: int, cluster_of: ClusterOf, pair_of: PairOf) -> None:
    cluster = cluster_of("anti", num_ranks, 8, placement="hop", gamma=4)
    outcome = cluster.run(PROMPT, check_caches, max_new_tokens=64, ignore_eos=True)
    assert outcome.ids == oracle(pair_of("anti", num_hidden_layers=8)[0], PROMPT, 64)
    assert outcome.metrics["num_accepted_tokens"] == 0


@pytest.mark.case("E1")
@pytest.mark.parametrize(
    "name", ["sd", "hop ship", "dedicated", "sharded on four", "pipelined F=3 p=2", "pipelined p=1"]
)
def test_ends_at_the_first_eos_wherever_it_falls(name: str, cluster_of: ClusterOf, pair_of: PairOf) -> None:
    num_ranks, options = PLACEMENTS[name]
    layers = max(4, num_ranks)
    folder = pair_of("noisy", num_hidden_layers=layers)[0]
    text = oracle(folder, PROMPT, 24)
    cluster = cluster_of("noisy", num_ranks, layers, **options)
    for place in range(1, 14):
        eos = text[place]
        end = text.index(eos) + 1
        object.__setattr__(cluster.pair.target, "eos_token_ids", frozenset({eos}))
        try:
            outcome = cluster.run(PROMPT, max_new_tokens=24)
        finally:
            object.__setattr__(cluster.pair.target, "eos_token_ids", frozenset({127}))
        assert outcome.ids == text[:end] == oracle(folder, PROMPT, 24, eos_token_id=eos)
        assert outcome.reason is (StopReason.EOS)


@pytest.mark.case("E1")
@pytest.mark.parametrize("gamma", range(1, 9))
def test_eos_with_every_gamma(gamma: int, cluster_of: ClusterOf, pair_of: PairOf) -> None:
    text = oracle(pair_of("self", num_hidden_layers=4)[0], PROMPT, 30)
    cluster = cluster_of("self", 4, placement="hop", gamma=gamma)
    for place in (0, 3, gamma, 2 * gamma, 2 * gamma + 1):
        object.__setattr__(cluster.pair.target, "eos_token_ids", frozenset({text[place]}))
        outcome = cluster.run(PROMPT, max_new_tokens=30)
        object.__setattr__(cluster.pair.target, "eos_token_ids", frozenset({127}))
        assert outcome.ids == text[: text.index(text[place]) + 1]


@pytest.mark.case("E3")
@pytest.mark.parametrize("pair", ["anti", "noisy"])
@pytest.mark.parametrize("name", ["sd", "hop ship", "hop catchup", "single", "sharded on four", "pipelined p=2"])
def test_exactly_as_many_tokens_as_asked_for(name: str, pair: str, cluster_of: ClusterOf, pair_of: PairOf) -> None:
    num_ranks, options = PLACEMENTS[name]
    cluster = cluster_of(pair, num_ranks, **options)
    text = oracle(pair_of(pair, num_hidden_layers=4)[0], PROMPT, 12)
    for count in range(1, 13):
        outcome = cluster.run(PROMPT, max_new_tokens=count, ignore_eos=True)
        assert outcome.ids == text[:count]
        assert outcome.reason is StopReason.LENGTH


@pytest.mark.case("E6")
@pytest.mark.parametrize("name", PLACEMENTS)
def test_one_token_has_rates_or_none_but_never_nan(name: str, cluster_of: ClusterOf) -> None:
    num_ranks, options = PLACEMENTS[name]
    metrics = cluster_of("self", num_ranks, max(4, num_ranks), **options).run(PROMPT, max_new_tokens=1).metrics
    assert metrics["num_output_tokens"] == 1
    for value in metrics.values():
        assert not isinstance(value, float) or not math.isnan(value)


@pytest.mark.case("C4")
@pytest.mark.parametrize("name", ["hop ship", "hop catchup", "sd", "sharded on two", "pipelined F=3 p=2"])
def test_short_prompts(name: str, cluster_of: ClusterOf, pair_of: PairOf) -> None:
    num_ranks, options = PLACEMENTS[name]
    cluster = cluster_of("noisy", num_ranks, **options)
    folder = pair_of("noisy", num_hidden_layers=4)[0]
    for length in range(1, 8):
        prompt = (PROMPT * 2)[:length]
        assert cluster.run(prompt, max_new_tokens=16, ignore_eos=True).ids == oracle(folder, prompt, 16)


@pytest.mark.case("C5")
def test_acceptance_does_not_decay_over_a_long_text(cluster_of: ClusterOf) -> None:
    cluster = cluster_of("noisy", 4, placement="hop", gamma=4)
    whole = cluster.run(PROMPT, max_new_tokens=600, ignore_eos=True)
    late = [0, 0]

    def count(rank: int, module: RankModule, generator: SlotGenerator, verdict: Verdict) -> None:
        if rank == 0 and generator.state.committed > len(PROMPT) + 500:
            late[0] += verdict.num_accepted
            late[1] += verdict.outcome is Outcome.REJECTED

    cluster.run(PROMPT, count, max_new_tokens=600, ignore_eos=True)
    fresh = cluster.run(PROMPT + whole.ids[:500], max_new_tokens=100, ignore_eos=True)
    # Greedy drafts are functions of the prefix, so the same prefix gives the same acceptance up to one window.
    assert late[0] / sum(late) == pytest.approx(fresh.metrics["acceptance_rate"], abs=0.05)


@pytest.mark.case("C6")
@pytest.mark.parametrize("gamma", range(1, 9))
@pytest.mark.parametrize("placement", ["hop", "single", "sharded"])
def test_a_draft_equal_to_the_target_is_always_right(placement: str, gamma: int, cluster_of: ClusterOf) -> None:
    num_tokens = 256 if placement == "hop" else 96
    cluster = cluster_of("self", 4, placement=placement, gamma=gamma)
    metrics = cluster.run(PROMPT, max_new_tokens=num_tokens, ignore_eos=True).metrics
    assert metrics["num_output_tokens"] == num_tokens
    assert metrics["num_rejected_tokens"] == 0
    drafted = metrics["num_accepted_tokens"] + metrics["num_discarded_tokens"]
    assert metrics["num_draft_tokens"] == drafted


@pytest.mark.case("C6")
def test_a_window_in_which_nothing_was_drafted_changes_nothing(cluster_of: ClusterOf, pair_of: PairOf) -> None:
    """A pass longer than the pipeline leaves windows empty: the target goes on alone, with bonus tokens."""
    cluster = cluster_of("self", 4, placement="hop", gamma=1)
    slow = replace(cluster.schedule, pass_ticks=6 * TICKS)
    outcome = cluster.run(PROMPT, check_caches, schedule=slow, max_new_tokens=40, ignore_eos=True)
    assert outcome.ids == oracle(pair_of("self", num_hidden_layers=4)[0], PROMPT, 40)
    assert outcome.metrics["num_rejected_tokens"] == 0


@pytest.mark.case("P2")
@pytest.mark.parametrize("name", ["hop ship", "sharded on four", "dedicated", "pipelined F=3 p=2"])
def test_random_delays_change_nothing(name: str, pair_of: PairOf) -> None:
    num_ranks, options = PLACEMENTS[name]
    layers = max(4, num_ranks)
    target, draft = pair_of("noisy", num_hidden_layers=layers)
    rng = random.Random(3)
    cluster = Cluster(target, draft, num_ranks, delay=lambda src, dst, channel: rng.random() * 2e-3, **options)
    expected = oracle(target, PROMPT, 120)
    assert cluster.run(PROMPT, check_caches, max_new_tokens=120, ignore_eos=True).ids == expected


def test_many_requests_on_the_same_ranks(cluster_of: ClusterOf, pair_of: PairOf) -> None:
    """Caches and wires are clean after each request, whatever its length and end."""
    cluster = cluster_of("noisy", 4, placement="hop", gamma=4)
    folder = pair_of("noisy", num_hidden_layers=4)[0]
    rng = random.Random(1)
    for _ in range(20):
        prompt = [rng.randrange(120) for _ in range(rng.randint(1, 40))]
        count = rng.randint(1, 30)
        assert cluster.run(prompt, max_new_tokens=count, ignore_eos=True).ids == oracle(folder, prompt, count)


def test_measured_pace_reaches_every_rank_in_a_verdict(cluster_of: ClusterOf, pair_of: PairOf) -> None:
    cluster = cluster_of("noisy", 4, placement="hop")
    outcome = cluster.run(PROMPT, max_new_tokens=40, ignore_eos=True, report_at=(2, 5))
    assert outcome.ids == oracle(pair_of("noisy", num_hidden_layers=4)[0], PROMPT, 40)
    paces = {result.generator.schedule.pass_ticks for result in outcome.results}
    assert len(paces) == 1
    assert paces != {cluster.schedule.pass_ticks}
