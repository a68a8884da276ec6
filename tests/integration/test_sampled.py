"""Sampled runs: one seed gives one text, and the target's distribution survives every placement."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from pearl_pp.decoding.noise import gumbel
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.messages import Outcome
from pearl_pp.transport.base import Transport
from tests.inprocess import Cluster
from tests.integration.conftest import ClusterOf, PairOf
from tests.integration.test_lossless import ENTRY_PATTERNS, PLACEMENTS, PROMPT
from tests.pairs import noisy, oracle, reference, save, tiny_model
from tests.rank_pool import shared_pool

# Replicas on two ranks with weights of their own, shards of one replica, and several chunks in flight.
ONE_DECIDER = {
    "greedy hop": (0.0, {"placement": "hop", "gamma": 4}),
    "rejection hop": (1.0, {"placement": "hop", "gamma": 4, "verify": "rejection"}),
    "rejection sharded": (1.0, {"placement": "sharded", "gamma": 3, "verify": "rejection"}),
    "coupled pipelined": (1.0, {"placement": "pipelined", "gamma": 2, "fill": 3, "verify": "coupled"}),
}


def sample_plainly(folder, prompt: list[int], num_new: int, seed: int, temperature: float) -> list[int]:
    """Plain sampling from the target with the seed's Gumbel noise, one whole forward pass a token."""
    model, ids = reference(folder), list(prompt)
    for position in range(len(prompt), len(prompt) + num_new):
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0, -1].double()
        noise = torch.tensor(gumbel(seed, position, logits.shape[0]))
        ids.append(int((logits / temperature + noise).argmax()))
    return ids[len(prompt) :]


@pytest.mark.case("S8")
@pytest.mark.parametrize("pair", ["noisy", "tiny"])
@pytest.mark.parametrize("name", PLACEMENTS)
def test_coupled_text_is_plain_sampling_with_that_seed(
    name: str, pair: str, cluster_of: ClusterOf, pair_of: PairOf
) -> None:
    num_ranks, options = PLACEMENTS[name]
    layers = max(4, num_ranks)
    expected = sample_plainly(pair_of(pair, num_hidden_layers=layers)[0], PROMPT, 32, seed=11, temperature=0.8)
    cluster = cluster_of(pair, num_ranks, layers, verify="coupled", **options)
    outcome = cluster.run(PROMPT, max_new_tokens=32, ignore_eos=True, temperature=0.8, seed=11)
    assert outcome.ids == expected


@pytest.mark.case("C2", "S8")
def test_coupled_text_is_the_same_under_every_entry_pattern(cluster_of: ClusterOf, pair_of: PairOf) -> None:
    expected = sample_plainly(pair_of("noisy")[0], PROMPT, 24, seed=7, temperature=1.0)
    for name, (num_ranks, options) in ENTRY_PATTERNS.items():
        cluster = cluster_of("noisy", num_ranks, verify="coupled", **options)
        outcome = cluster.run(PROMPT, max_new_tokens=24, ignore_eos=True, temperature=1.0, seed=7)
        assert outcome.ids == expected, name


def answer_with_own_noise(
    transport: Transport, folders: tuple[str, str], options: dict, temperature: float
) -> tuple[list[list[int]], int]:
    """Two texts on a rank whose weights are 1e-6 away from all others' and whose random states are its own."""
    from pearl_pp import PearlPP, Prompt

    engine = PearlPP(transport=transport, target=folders[0], draft=folders[1], **options)
    generator = torch.Generator().manual_seed(transport.rank)
    for weights in engine._module.parameters():
        weights.add_(torch.randn(weights.shape, generator=generator) * 1e-6)
    params = SamplingParams(max_new_tokens=48, ignore_eos=True, temperature=temperature, seed=5)
    outputs = []
    for rng_seed in (transport.rank, 100 + transport.rank):
        torch.manual_seed(rng_seed)
        np.random.seed(rng_seed)
        random.seed(rng_seed)
        outputs += engine.generate([Prompt(token_ids=tuple(PROMPT), params=params)])
    engine.close()
    return [output.token_ids for output in outputs], outputs[0].metrics["num_rejected_tokens"]


@pytest.fixture(scope="module")
def near_tied_folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Ids 2i and 2i + 1 have the same logits up to rounding; the draft is right now and then."""
    root = tmp_path_factory.mktemp("near_tied")
    folders = []
    for name, amount in (("target", 0.0), ("draft", 0.1)):
        model = noisy(tiny_model(), amount)
        with torch.no_grad():
            model.lm_head.weight[1::2] = model.lm_head.weight[::2] * (1 + 1e-7)
        folders.append(str(save(model, root / name)))
    return folders[0], folders[1]


@pytest.mark.case("P1")
@pytest.mark.parametrize("name", ONE_DECIDER)
def test_one_rank_decides_where_ranks_compute_and_draw_differently(
    name: str, near_tied_folders: tuple[str, str]
) -> None:
    temperature, options = ONE_DECIDER[name]
    results = shared_pool(4).run(answer_with_own_noise, near_tied_folders, options, temperature)
    texts, num_rejected = results[0]
    assert [ids for ids, _ in results] == [texts] * 4, "every rank returns what one rank decided"
    assert len(texts[0]) == 48
    assert texts[0] == texts[1], "a request's seed draws, no rank's own random state"
    assert 0 < num_rejected < 48, "the draft must be right and wrong"


@pytest.mark.case("S5")
@pytest.mark.parametrize("name", ["sd", "hop ship", "sharded on four", "pipelined p=2"])
def test_a_seed_decides_the_text(name: str, cluster_of: ClusterOf) -> None:
    num_ranks, options = PLACEMENTS[name]
    cluster = cluster_of("noisy", num_ranks, **options)

    def text(seed: int, temperature: float) -> list[int]:
        return cluster.run(PROMPT, max_new_tokens=24, ignore_eos=True, seed=seed, temperature=temperature).ids

    assert text(1, 1.0) == text(1, 1.0)
    assert text(1, 1.0) != text(2, 1.0)
    assert text(1, 0.0) == text(2, 0.0)


@pytest.mark.case("S5")
def test_a_rejection_text_does_not_depend_on_gamma(cluster_of: ClusterOf) -> None:
    """Every draw belongs to a position, so the pace (which `auto` measures) does not change a seed's text."""
    texts = [
        cluster_of("noisy", 4, placement="hop", gamma=gamma).run(
            PROMPT, max_new_tokens=48, ignore_eos=True, seed=4, temperature=1.0
        )
        for gamma in (2, 4, 7)
    ]
    assert texts[0].ids == texts[1].ids == texts[2].ids


@pytest.mark.case("S6")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_draft_equal_to_the_target_is_accepted_when_sampling(dtype: str, cluster_of: ClusterOf) -> None:
    cluster = cluster_of("self", 4, placement="hop", gamma=5, dtype=dtype)
    metrics = cluster.run(PROMPT, max_new_tokens=1_000, ignore_eos=True, temperature=1.0).metrics
    # In bfloat16 a window and a single token round differently, so p and q differ in the last bits.
    assert metrics["acceptance_rate"] > {"float32": 0.999, "bfloat16": 0.97}[dtype]


@pytest.mark.case("N1", "N2")
def test_ids_beyond_256_arrive_unchanged_in_bfloat16(tmp_path: Path) -> None:
    """Every miss of a draft equal to the target is a near-tie: bfloat16 rounds a window and a single token apart."""
    model = tiny_model(vocab_size=32_000)
    with torch.no_grad():
        # A handful of ids carry the text: the more random rows there are, the more of them tie in bfloat16, of which
        # some CPUs round a window by one part in a hundred differently.
        model.lm_head.weight[:20_000] *= 0.1
        model.lm_head.weight[20_008:] *= 0.1
    target, draft = save(model, tmp_path / "target"), save(model, tmp_path / "draft")
    cluster = Cluster(target, draft, 4, placement="hop", gamma=4, dtype="bfloat16")
    prompt = [31_999, 300, 257, 4_097]
    misses = []

    def note(rank, module, generator, verdict) -> None:
        if rank == 0 and verdict.outcome is Outcome.REJECTED:
            misses.append(generator.state.committed - 1)

    outcome = cluster.run(prompt, note, max_new_tokens=400, ignore_eos=True)
    assert min(outcome.ids) > 256
    assert outcome.metrics["acceptance_rate"] >= 0.99
    with torch.inference_mode():
        rows = reference(target)(torch.tensor([prompt + outcome.ids])).logits[0]
    for position in misses:
        best, second = rows[position - 1].topk(2).values.tolist()
        assert best - second < 0.03 * abs(best), "a rejection that is no near-tie"


def test_logprobs_are_those_of_the_target(cluster_of: ClusterOf, pair_of: PairOf) -> None:
    outcome = cluster_of("noisy", 4, placement="hop", gamma=4).run(
        PROMPT, max_new_tokens=20, ignore_eos=True, logprobs=True, temperature=1.0
    )
    model = reference(pair_of("noisy", num_hidden_layers=4)[0])
    with torch.inference_mode():
        rows = model(torch.tensor([PROMPT + outcome.ids])).logits[0].log_softmax(-1)
    expected = [rows[len(PROMPT) + i - 1, token].item() for i, token in enumerate(outcome.ids)]
    assert outcome.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", ["sd", "hop ship", "pipelined p=2"])
def test_repetition_penalty_is_the_oracles(name: str, cluster_of: ClusterOf, pair_of: PairOf) -> None:
    num_ranks, options = PLACEMENTS[name]
    folder = pair_of("noisy", num_hidden_layers=4)[0]
    expected = oracle(folder, PROMPT, 40, repetition_penalty=1.3)
    outcome = cluster_of("noisy", num_ranks, **options).run(
        PROMPT, max_new_tokens=40, ignore_eos=True, repetition_penalty=1.3
    )
    assert outcome.ids == expected
    assert expected != oracle(folder, PROMPT, 40), "the penalty must matter"


@pytest.mark.parametrize("name", ["sd", "hop ship"])
def test_no_eos_before_min_new_tokens(name: str, cluster_of: ClusterOf, pair_of: PairOf) -> None:
    num_ranks, options = PLACEMENTS[name]
    folder = pair_of("self")[0]
    cluster = cluster_of("self", num_ranks, **options)
    eos = oracle(folder, PROMPT, 30)[3]
    object.__setattr__(cluster.pair.target, "eos_token_ids", frozenset({eos}))
    try:
        outcome = cluster.run(PROMPT, max_new_tokens=30, min_new_tokens=9)
    finally:
        object.__setattr__(cluster.pair.target, "eos_token_ids", frozenset({127}))
    assert outcome.ids == oracle(folder, PROMPT, 30, eos_token_id=eos, min_new_tokens=9)
    assert len(outcome.ids) >= 9
