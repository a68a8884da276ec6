"""Where a text ends, and what one rank's context does to the other model."""

from __future__ import annotations

from pathlib import Path

import pytest

from pearl_pp import builtin
from pearl_pp.decoding.stopping import StopReason
from pearl_pp.errors import UserError
from tests.inprocess import Cluster
from tests.integration.conftest import PairOf
from tests.pairs import oracle, save, tiny_model

PROMPT = list(range(2, 52))


@pytest.mark.case("E4")
def test_the_union_of_the_targets_eos_ids_counts_and_the_drafts_do_not(tmp_path: Path) -> None:
    target = tiny_model()
    text = oracle(save(target, tmp_path / "plain"), PROMPT[:5], 30)
    # Two ids that greedy text holds: the earlier one is the draft's EOS only.
    ignored, ends = sorted(set(text) - {5}, key=text.index)[-2:]
    target.config.eos_token_id = 5
    target.generation_config.eos_token_id = [5, ends]
    draft = tiny_model()
    draft.config.eos_token_id = draft.generation_config.eos_token_id = ignored
    cluster = Cluster(save(target, tmp_path / "t"), save(draft, tmp_path / "d"), 4, placement="hop", gamma=4)
    outcome = cluster.run(PROMPT[:5], max_new_tokens=30)
    assert outcome.ids == text[: text.index(ends) + 1]
    assert outcome.reason is StopReason.EOS


@pytest.mark.case("E5")
@pytest.mark.parametrize("placement", ["hop", "sharded", "single"])
def test_generates_to_the_last_position_of_the_target(placement: str, tmp_path: Path) -> None:
    target, draft = (save(tiny_model(max_position_embeddings=64), tmp_path / name) for name in "td")
    cluster = Cluster(target, draft, 4, placement=placement, gamma=5)
    outcome = cluster.run(PROMPT, max_new_tokens=100, ignore_eos=True)
    assert len(PROMPT) + len(outcome.ids) == 64
    assert outcome.reason is StopReason.LENGTH
    assert outcome.ids == oracle(target, PROMPT, 14)


@pytest.mark.case("E5")
@pytest.mark.parametrize("placement", ["hop", "sharded", "single", "pipelined"])
def test_the_drafts_shorter_context_ends_speculation_and_nothing_else(placement: str, tmp_path: Path) -> None:
    target = save(tiny_model(max_position_embeddings=256), tmp_path / "t")
    draft = save(tiny_model(max_position_embeddings=64), tmp_path / "d")
    cluster = Cluster(target, draft, 4, placement=placement, gamma=5)
    fed = []

    def watch(rank, module, generator, verdict) -> None:
        fed.extend(shard.cache.length for shard in module.shards.values())

    outcome = cluster.run(PROMPT, watch, max_new_tokens=70, ignore_eos=True)
    assert outcome.ids == oracle(target, PROMPT, 70)
    assert max(fed) == 64, "the draft is fed up to its last position and not beyond"
    assert outcome.metrics["num_accepted_tokens"] >= 10


def test_a_prompt_that_fills_the_context_is_refused(pair_of: PairOf) -> None:
    target, draft = pair_of("self", num_hidden_layers=4)
    cluster = Cluster(target, draft, 2, placement="hop", max_model_len=50)
    with pytest.raises(UserError, match=r"prompt of 50 tokens: leaves no room in a context of 50"):
        cluster.run(PROMPT, max_new_tokens=1)


@pytest.mark.case("E2")
@pytest.mark.parametrize("options", [{"placement": "hop", "gamma": 3}, {"strategy": "sd", "gamma": 5}])
def test_a_stop_string_over_tokens_and_windows_ends_the_text_before_it(options: dict) -> None:
    cluster = Cluster(builtin.TARGET_DIR, builtin.DRAFT_DIR, 4, **options)
    prompt = builtin.prompts()[0]
    whole = cluster.run(prompt, max_new_tokens=40, ignore_eos=True).text
    for start in range(5, 45, 4):
        stop = whole[start : start + 7]
        outcome = cluster.run(prompt, max_new_tokens=40, ignore_eos=True, stop=(stop,))
        assert outcome.text == whole[: whole.index(stop)]
        assert outcome.reason is StopReason.STOP_STRING


@pytest.mark.parametrize("handoff", ["ship", "catchup"])
def test_a_hop_moves_only_what_was_drafted_elsewhere(handoff: str, pair_of: PairOf) -> None:
    """Per hop at most gamma + 1 tokens' entries; the prompt's entries never travel."""
    gamma = 4
    target, draft = pair_of("noisy", num_hidden_layers=4)
    cluster = Cluster(target, draft, 4, placement="hop", gamma=gamma, handoff=handoff)
    outcome = cluster.run(PROMPT, max_new_tokens=200, ignore_eos=True)
    hops = outcome.metrics["num_hops"]
    assert hops > 10
    per_token = cluster.pair.draft.kv_bytes_per_token(cluster.pair.dtype)
    assert outcome.handoff_bytes <= hops * (gamma + 1) * per_token
    assert (outcome.handoff_bytes > 0) == (handoff == "ship")


@pytest.mark.parametrize(
    "options", [{"placement": "hop"}, {"strategy": "sd"}, {"strategy": "ar"}, {"placement": "sharded"}]
)
@pytest.mark.parametrize("length", [255, 256, 700])
def test_a_long_prompt_in_pieces(options: dict, length: int, pair_of: PairOf) -> None:
    target, draft = pair_of("noisy")
    models = (target, None) if options.get("strategy") == "ar" else (target, draft)
    prompt = [(7 * i) % 120 for i in range(length)]
    passes = []

    def watch(rank, module, generator, verdict) -> None:
        passes.append(generator.schedule.prefill_piece)

    outcome = Cluster(*models, 4, gamma=4, **options).run(prompt, watch, max_new_tokens=12, ignore_eos=True)
    assert outcome.ids == oracle(target, prompt, 12)
    assert (max(passes) > 0) == (length >= 256)
