"""The whole engine over gloo, each kind once: processes, DeepSpeed, real messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError
from pearl_pp.transport.base import Channel, Transport
from tests.integration.conftest import PairOf
from tests.integration.test_lossless import PLACEMENTS, PROMPT
from tests.pairs import oracle
from tests.rank_pool import shared_pool

NUM_TOKENS = 40


def answer(transport: Transport, folders: tuple[str, str], options: dict, params: dict) -> tuple[list, dict]:
    """One prompt through `PearlPP` on this rank: ids, and rank 0's metrics."""
    from pearl_pp import PearlPP, Prompt

    models = {"target": folders[0]}
    if options.get("strategy") != "ar":
        models["draft"] = folders[1]
    engine = PearlPP(transport=transport, **models, **options)
    output = engine.generate([Prompt(token_ids=tuple(PROMPT), params=SamplingParams(**params))])[0]
    engine.close()
    assert output.error is None
    return output.token_ids, output.metrics


# Rings of the same kinds as in the sweeps, on 1, 2, 3, 4 and 5 processes.
ON_GLOO = [
    "sd alone",
    "ar",
    "sd",
    "single",
    "hop ship",
    "hop catchup",
    "hop of two",
    "hop of three",
    "sharded on two",
    "sharded on four",
    "dedicated",
    "pipelined F=3 p=2",
]


@pytest.mark.case("P3")
@pytest.mark.parametrize("name", ON_GLOO)
def test_greedy_text_is_the_oracles_over_gloo(name: str, pair_of: PairOf) -> None:
    num_ranks, options = PLACEMENTS[name]
    layers = max(4, num_ranks)
    folders = pair_of("noisy", num_hidden_layers=layers)
    params = {"max_new_tokens": NUM_TOKENS, "ignore_eos": True}
    results = shared_pool(num_ranks).run(answer, tuple(map(str, folders)), options, params)
    expected = oracle(folders[0], PROMPT, NUM_TOKENS)
    assert [ids for ids, _ in results] == [expected] * num_ranks, "every rank returns the same text"
    metrics = results[0][1]
    assert len(metrics["per_rank"]) == num_ranks
    assert metrics["num_output_tokens"] == NUM_TOKENS
    drafted = metrics["num_accepted_tokens"] + metrics["num_rejected_tokens"] + metrics["num_discarded_tokens"]
    assert metrics["num_draft_tokens"] == drafted


@pytest.mark.parametrize("verify", ["rejection", "coupled"])
def test_sampled_text_is_the_same_over_gloo_and_in_process(verify: str, pair_of: PairOf) -> None:
    from tests.inprocess import Cluster

    folders = pair_of("noisy")
    options = {"placement": "hop", "gamma": 4, "verify": verify}
    params = {"max_new_tokens": NUM_TOKENS, "ignore_eos": True, "temperature": 0.8, "seed": 3}
    expected = Cluster(*folders, 4, **options).run(PROMPT, **params).ids
    results = shared_pool(4).run(answer, tuple(map(str, folders)), options, params)
    assert results[0][0] == expected


def test_bfloat16_activations_travel_over_gloo(pair_of: PairOf) -> None:
    from tests.inprocess import Cluster

    folders = pair_of("self")
    options = {"placement": "hop", "gamma": 4, "dtype": "bfloat16"}
    params = {"max_new_tokens": NUM_TOKENS, "ignore_eos": True}
    expected = Cluster(*folders, 4, **options).run(PROMPT, **params).ids
    results = shared_pool(4).run(answer, tuple(map(str, folders)), options, params)
    assert results[0][0] == expected


def disagree(transport: Transport, folders: tuple[str, str]) -> None:
    from pearl_pp import PearlPP

    dtype = "bfloat16" if transport.rank == 1 else "float32"
    PearlPP(transport=transport, target=folders[0], draft=folders[1], dtype=dtype)


@pytest.mark.case("N3")
def test_ranks_with_different_dtypes_do_not_start(pair_of: PairOf) -> None:
    with pytest.raises(UserError, match=r"^rank 1: has dtype torch\.bfloat16, rank 0 has torch\.float32"):
        shared_pool(2).run(disagree, tuple(map(str, pair_of("self"))))


def answer_with_trace(transport: Transport, folders: tuple[str, str], path: str) -> int:
    from pearl_pp import PearlPP, Prompt

    engine = PearlPP(transport=transport, target=folders[0], draft=folders[1], placement="hop", gamma=4, trace=path)
    params = SamplingParams(max_new_tokens=20, ignore_eos=True)
    engine.generate([Prompt(token_ids=tuple(PROMPT), params=params)])
    shipped = transport.bytes_sent(Channel.HANDOFF)
    engine.close()
    return shipped


def test_trace_shows_every_ranks_passes(pair_of: PairOf, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    shared_pool(4).run(answer_with_trace, tuple(map(str, pair_of("noisy"))), str(path))
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]
    kinds = {rank: {e["cat"] for e in events if e["pid"] == rank} for rank in range(4)}
    assert all("target" in kinds[rank] for rank in range(4))
    assert [rank for rank in range(4) if "draft" in kinds[rank]] == [0, 3]
    assert all(e["dur"] >= 0 for e in events)
