"""Placements that only a file can describe, and ranks that are slow at random moments."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import yaml

from pearl_pp.messages import Verdict
from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.stages.rank_module import RankModule
from tests.inprocess import Cluster, check_caches
from tests.integration.conftest import PairOf
from tests.integration.test_lossless import PROMPT
from tests.pairs import oracle, save, tiny_model


def shard(rank: int, start: int, end: int) -> dict:
    return {"rank": rank, "layers": [start, end]}


def placement_file(folder: Path, **content: object) -> str:
    path = folder / "placement.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


@pytest.mark.case("P2")
@pytest.mark.parametrize("pattern", [{"gamma": 2}, {"gamma": 1, "verify_interval": 1, "fill": 3}], ids=["p=3", "p=1"])
def test_hundreds_of_windows_with_the_draft_in_the_middle_and_every_rank_slow_at_times(
    pattern: dict, pair_of: PairOf, tmp_path: Path
) -> None:
    path = placement_file(tmp_path, target=[1, 2, 1], replicas=[[shard(1, 0, 4)]], **pattern)
    target, draft = pair_of("anti")
    rng = random.Random(8)
    cluster = Cluster(target, draft, 3, placement=path, delay=lambda src, dst, channel: rng.random() * 1e-3)
    num_windows = [0, 0, 0]

    def sleep(rank: int, module: RankModule, generator: SlotGenerator, verdict: Verdict) -> None:
        check_caches(rank, module, generator, verdict)
        num_windows[rank] += 1
        if rng.random() < 0.3:
            time.sleep(rng.random() * 5e-3)

    outcome = cluster.run(PROMPT, sleep, max_new_tokens=500, ignore_eos=True)
    assert num_windows == [500] * 3, "nothing is accepted, so every verdict starts a window"
    assert outcome.metrics["num_draft_tokens"] > 400
    assert outcome.ids == oracle(target, PROMPT, 500)


@pytest.mark.parametrize("pair", ["self", "noisy", "anti"])
@pytest.mark.parametrize(
    ("target", "halves", "whole", "pattern"),
    [
        ([2, 2], (0, 1), 1, {"gamma": 3}),
        ([1, 2, 1], (1, 2), 2, {"gamma": 4}),
        ([1, 1, 1, 1], (2, 1), 2, {"gamma": 3, "verify_interval": 2}),
        ([1, 1, 1, 1], (2, 0), 0, {"gamma": 3}),
    ],
)
def test_entries_travel_between_replicas_cut_differently_that_share_a_rank(
    target: list[int], halves: tuple[int, int], whole: int, pattern: dict, pair: str, pair_of: PairOf, tmp_path: Path
) -> None:
    """Half of the whole replica's entries come from another rank, half from its own rank's other shard."""
    folders = pair_of(pair)
    replicas = [[shard(halves[0], 0, 2), shard(halves[1], 2, 4)], [shard(whole, 0, 4)]]
    path = placement_file(tmp_path, target=target, replicas=replicas, handoff="ship", **pattern)
    cluster = Cluster(*folders, len(target), placement=path)
    outcome = cluster.run(PROMPT, check_caches, max_new_tokens=60, ignore_eos=True)
    assert outcome.ids == oracle(folders[0], PROMPT, 60)
    if len(target) > 2:  # on two stages one of the replicas is always the faster
        assert outcome.metrics["num_hops"] > 10
        assert outcome.handoff_bytes > 0
    if pair == "self":
        assert outcome.metrics["num_rejected_tokens"] == 0, "entries handed over are those of the text"


@pytest.mark.case("E5")
@pytest.mark.parametrize("options", [{"strategy": "sd"}, {"placement": "hop"}, {"placement": "sharded"}])
def test_a_prompt_beyond_the_drafts_context_is_never_drafted_for(options: dict, tmp_path: Path) -> None:
    target = save(tiny_model(max_position_embeddings=256), tmp_path / "t")
    draft = save(tiny_model(max_position_embeddings=64), tmp_path / "d")
    cluster = Cluster(target, draft, 4, gamma=4, **options)
    prompt = [(7 * i) % 120 for i in range(80)]
    fed = []

    def watch(rank: int, module: RankModule, generator: SlotGenerator, verdict: Verdict) -> None:
        fed.extend(shard.cache.length for shard in module.shards.values())

    outcome = cluster.run(prompt, watch, max_new_tokens=40, ignore_eos=True)
    assert outcome.ids == oracle(target, prompt, 40)
    assert outcome.metrics["num_draft_tokens"] == 0
    assert set(fed) == {0}, "no replica reads a prompt that it cannot draft for"
