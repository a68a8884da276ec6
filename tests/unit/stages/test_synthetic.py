"""Synthetic models: weights that depend on nothing but seed and name, and a draft that is a part of its target."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from pearl_pp.stages.agreement import find_eps, measure
from pearl_pp.stages.shapes import DraftShape, PairShape
from pearl_pp.stages.stage import Stage, build_stage
from pearl_pp.stages.synthetic import CHUNKS, GeneratedTensor, SyntheticSource, open_synthetic

CPU = torch.device("cpu")


def small_shape(**changes: Any) -> PairShape:
    """Hidden 64, 6 against 2 layers, vocabulary 256."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_layers": 6, "num_heads": 4, "num_kv_heads": 2}
    rest = {"name": "small", "vocab_size": 256, "max_positions": 512, "draft": DraftShape(num_layers=2)}
    return PairShape(**(sizes | rest | changes))


def source(shape: PairShape, is_draft: bool = False) -> SyntheticSource:
    found = open_synthetic(shape, Path("small.yaml"), "--target", is_draft=is_draft)
    found.check()
    return found


def stage(source: SyntheticSource, start: int, end: int, dtype: torch.dtype = torch.float32) -> Stage:
    return build_stage(source, start, end, dtype=dtype, device="cpu", max_len=64)


def weights(stage: Stage) -> dict[str, torch.Tensor]:
    """By the names of the uncut model."""
    return {
        name.replace(f"layers.{number}.", f"layers.{stage.start + number}.", 1): weight
        for name, weight in stage.model.named_parameters()
        for number in [int(name.split(".")[2]) if ".layers." in name else 0]
    }


@pytest.mark.parametrize("edges", [(0, 6), (0, 2, 4, 6), (0, 1, 6)])
def test_a_layers_weights_are_the_same_however_the_model_is_cut(edges: tuple[int, ...]) -> None:
    whole = weights(stage(source(small_shape()), 0, 6))
    cut: dict[str, torch.Tensor] = {}
    for start, end in itertools.pairwise(edges):
        cut |= weights(stage(source(small_shape()), start, end))
    assert cut.keys() == whole.keys() and len(whole) == 6 * 9 + 3
    assert all(torch.equal(cut[name], whole[name]) for name in whole)


def test_the_draft_is_the_targets_first_layers_and_eps_scales_only_the_later_ones() -> None:
    shape = small_shape(eps=0.25)
    target, draft = weights(stage(source(shape), 0, 6)), weights(stage(source(shape, is_draft=True), 0, 2))
    unscaled = weights(stage(source(small_shape(eps=1.0)), 0, 6))
    assert len(draft) == 2 * 9 + 3
    assert all(torch.equal(weight, target[name]) for name, weight in draft.items())
    scaled = {name for name in target if not torch.equal(target[name], unscaled[name])}
    assert scaled == {
        f"model.layers.{i}.{part}.weight" for i in range(2, 6) for part in ("self_attn.o_proj", "mlp.down_proj")
    }
    assert all(torch.allclose(target[name], unscaled[name] * 0.25) for name in scaled)


def test_weights_follow_the_seed_and_are_spread_as_they_should_be() -> None:
    one, again, other = (weights(stage(source(small_shape(seed=seed)), 0, 6)) for seed in (3, 3, 4))
    matrices = [name for name, weight in one.items() if weight.ndim == 2]
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in matrices)
    head = one["lm_head.weight"]
    assert head.std().item() == pytest.approx(64**-0.5, rel=0.02)
    assert head.mean().abs().item() < 0.005
    assert not torch.equal(head, one["model.embed_tokens.weight"])
    assert torch.equal(one["model.norm.weight"], torch.ones(64))


def test_numbers_of_different_tensors_and_rows_have_nothing_to_do_with_each_other() -> None:
    tensors = [GeneratedTensor(name, (512, 512), 0, 1.0).materialize(..., CPU, torch.float32) for name in "abcd"]
    flat = torch.stack([tensor.flatten() for tensor in tensors])
    assert (torch.corrcoef(flat) - torch.eye(4)).abs().max() < 0.01
    assert (torch.corrcoef(tensors[0]) - torch.eye(512)).abs().max() < 0.25  # 5.5 standard errors


def test_a_number_depends_on_its_place_alone_also_across_chunks_and_types() -> None:
    rows = CHUNKS["cpu"] // 64 + 2  # the last two rows come out of a second chunk
    long = GeneratedTensor("w", (rows, 64), 0, 0.1)
    short = GeneratedTensor("w", (8, 64), 0, 0.1)
    exact = long.materialize(..., CPU, torch.float32)
    assert torch.equal(exact[:8], short.materialize(..., CPU, torch.float32))
    assert torch.equal(long.materialize(..., CPU, torch.bfloat16), exact.to(torch.bfloat16))
    assert exact[-2:].std() > 0.05
    assert not torch.equal(exact[-2:], exact[:2])


def test_the_first_numbers_are_these() -> None:
    """On every device and in every version: files hold an eps that was measured with these weights."""
    tensor = GeneratedTensor("model.layers.0.mlp.up_proj.weight", (2, 2), 0, 1.0)
    found = tensor.materialize(..., CPU, torch.float32).flatten().tolist()
    assert found == pytest.approx([1.720643, -0.118831, 0.001317, 0.782746], abs=2e-6)


def test_stages_in_a_row_are_the_whole_model() -> None:
    target = source(small_shape())
    ids = torch.arange(3, 15)
    model = LlamaForCausalLM(target.config).eval()
    model.load_state_dict({k: t.materialize(..., CPU, torch.float32) for k, t in target.tensors.items()})
    with torch.inference_mode():
        expected = model.float()(ids[None]).logits[0]
    output = ids
    for start, end in ((0, 1), (1, 4), (4, 6)):
        output = stage(target, start, end).run(output, 0, num_logits=12)
    assert torch.allclose(output, expected, atol=1e-5)


def test_the_models_agree_everywhere_at_eps_0_and_less_the_larger_eps_is() -> None:
    shares = [measure(small_shape(eps=eps), 256).agreement for eps in (0.0, 0.05, 0.2, 1.0)]
    assert shares[0] == 1.0
    assert shares == sorted(shares, reverse=True)
    assert shares[1] > shares[2] + 0.1 > shares[3] + 0.2


@pytest.mark.parametrize(("agreement", "first"), [(0.8, 0.05), (0.5, 0.001), (0.6, 1.0)])
def test_the_search_finds_the_agreement_asked_for(agreement: float, first: float) -> None:
    steps: list[tuple[float, float]] = []
    found = find_eps(small_shape(eps=first), agreement, on_step=lambda *step: steps.append(step))
    assert found.num_tokens == 2048
    assert abs(found.agreement - agreement) < 0.04  # 3.5 standard errors, fresh tokens
    assert min(abs(share - agreement) for _, share in steps) <= 0.02
    assert steps[0][0] == first


def test_agreement_on_the_targets_own_text_is_that_on_random_contexts() -> None:
    shape = small_shape(eps=0.1)
    target, draft = stage(source(shape), 0, 6), stage(source(shape, is_draft=True), 0, 2)
    target.reset(512)
    draft.reset(512)
    text, same = [5], 0
    for position in range(400):
        last = torch.tensor(text[-1:])
        chosen, guessed = (int(m.run(last, position, num_logits=1).argmax()) for m in (target, draft))
        text.append(chosen)
        same += chosen == guessed
    assert abs(same / 400 - measure(shape).agreement) < 0.1
