"""Half precision, and heads with rows that are no tokens."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.families import FAMILIES, save_family
from tests.inprocess import Cluster
from tests.integration.conftest import PairOf
from tests.integration.test_gloo import answer
from tests.integration.test_lossless import PROMPT as GLOO_PROMPT
from tests.pairs import noisy, oracle, reference, save, tiny_model
from tests.rank_pool import shared_pool
from tests.unit.runtime.word_models import numbered_tokenizer

PROMPT = [5, 9, 33, 71, 12, 90, 101, 44, 8, 61, 17, 3]

# Where a text differs from the whole model's, the two tokens' logits are at most so many times the rounding of the
# largest logit apart. docs/models.md states it.
MAX_ROUNDINGS = 4


def whole(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def greedy_text(model: PreTrainedModel, prompt: list[int], num_tokens: int) -> list[int]:
    """One-process `generate`."""
    with torch.inference_mode():
        ids = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=num_tokens,
            eos_token_id=None,
        )
    return ids[0, len(prompt) :].tolist()


@pytest.mark.case("N2")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("Llama", torch.bfloat16),
        ("Mistral", torch.bfloat16),
        ("GPT-2", torch.bfloat16),
        ("Mistral", torch.float16),
        ("Gemma 3", torch.float16),
    ],
)
def test_half_precision_leaves_the_oracles_text_only_at_a_near_tie(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """A window of several rows and a single row round differently; nothing else may change a token."""
    target = save_family(tmp_path / "target", FAMILIES[name])
    draft = save_family(tmp_path / "draft", FAMILIES[name], noise=0.1)
    model = whole(target, dtype)
    options = {"placement": "pipelined", "verify_interval": 2, "gamma": 2, "fill": 3}
    cluster = Cluster(target, draft, 4, dtype=str(dtype).removeprefix("torch."), **options)
    num_equal = 0
    for turn in range(4):
        prompt = PROMPT[turn:] + PROMPT[:turn]
        text = cluster.run(prompt, max_new_tokens=24, ignore_eos=True).ids
        expected = greedy_text(model, prompt, 24)
        place = next((i for i in range(24) if text[i] != expected[i]), 24)
        num_equal += place
        if place < 24:
            with torch.inference_mode():
                row = model(torch.tensor([prompt + text[:place]])).logits[0, -1].float()
            gap = (row[text[place]] - row[expected[place]]).abs() / row.abs().max()
            assert gap <= MAX_ROUNDINGS * torch.finfo(dtype).eps, f"token {place} is no near-tie"
    assert num_equal > 4 * 8, "texts part after a few tokens: the bound was hardly tried"


@pytest.mark.case("N3")
@pytest.mark.parametrize("agreed", ["float32", "bfloat16"])
def test_checkpoints_in_other_dtypes_are_brought_into_the_agreed_one(agreed: str, tmp_path: Path) -> None:
    target = save(tiny_model().to(torch.bfloat16), tmp_path / "target")
    draft = save(tiny_model().to(torch.float16), tmp_path / "draft")
    cluster = Cluster(target, draft, 4, placement="hop", gamma=4, dtype=agreed)
    dtypes = {weights.dtype for module in cluster.modules for weights in module.parameters()}
    dtypes |= {stage.cache.entries.dtype for module in cluster.modules for stage in module.stages}
    assert dtypes == {getattr(torch, agreed)}
    outcome = cluster.run(PROMPT, max_new_tokens=24, ignore_eos=True)
    if agreed == "float32":
        assert outcome.ids == oracle(target, PROMPT, 24)


@pytest.mark.case("N4")
@pytest.mark.parametrize(("dtype", "temperature"), [("bfloat16", 0.0), ("bfloat16", 1.0), ("float16", 1.0)])
def test_half_precision_over_gloo_gives_the_same_text(dtype: str, temperature: float, pair_of: PairOf) -> None:
    """Activations, KV entries and draft distributions as they really travel."""
    folders = pair_of("noisy")
    options = {"placement": "hop", "gamma": 4, "handoff": "ship", "dtype": dtype, "verify": "rejection"}
    params = {"max_new_tokens": 40, "ignore_eos": True, "temperature": temperature, "seed": 5}
    expected = Cluster(*folders, 4, **options).run(GLOO_PROMPT, **params).ids
    results = shared_pool(4).run(answer, tuple(map(str, folders)), options, params)
    assert results[0][0] == expected


# -- heads with more rows than the tokenizer has entries

STRATEGIES = {
    "ar": (2, {"strategy": "ar"}),
    "sd": (2, {"strategy": "sd", "gamma": 3}),
    "hop": (4, {"placement": "hop", "gamma": 3}),
    "pipelined": (3, {"placement": "pipelined", "verify_interval": 2, "gamma": 3}),
}


def save_padded(folder: Path, num_words: int, rows: int, seed: int, noise: float, loud: int | None = None) -> Path:
    """`rows` rows for a tokenizer of `num_words` entries; `loud` is a row whose logit is often the largest."""
    model = tiny_model(seed, vocab_size=rows, num_hidden_layers=4, eos_token_id=num_words - 1)
    with torch.no_grad():
        if loud is not None:
            model.lm_head.weight[loud] *= 20
    save(noisy(model, noise), folder)
    numbered_tokenizer(num_words).save_pretrained(folder)
    return folder


@cache
def padded_pair(root: Path, num_words: int, rows: int, draft_rows: int, loud: int | None) -> tuple[Path, Path]:
    target = save_padded(root / "target", num_words, rows, 0, 0.0, loud)
    return target, save_padded(root / "draft", num_words, draft_rows, 0, 0.1)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("padded")


@pytest.mark.case("V1", "V2")
@pytest.mark.parametrize("loud", [None, 130], ids=["quiet padding", "the largest logit is padding"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_rows_beyond_the_tokenizer_are_never_chosen(name: str, loud: int | None, root: Path) -> None:
    num_ranks, options = STRATEGIES[name]
    target, draft = padded_pair(root / str(loud), 120, 136, 128, loud)
    expected = oracle(target, PROMPT, 40, suppress_tokens=list(range(120, 136)))
    raw = oracle(target, PROMPT, 40)
    assert (loud in raw) == (loud is not None), "the padding row must tempt, or not"
    cluster = Cluster(target, None if name == "ar" else draft, num_ranks, **options)
    assert cluster.pair.vocabulary.size == 120
    assert cluster.run(PROMPT, max_new_tokens=40, ignore_eos=True).ids == expected


@pytest.mark.case("V1")
def test_with_padding_rows_frequencies_are_those_of_the_real_ids(root: Path) -> None:
    """Pairs of two sampled tokens over many seeds; the second one is judged, not drawn by the target alone."""
    target, draft = padded_pair(root / "toy", 6, 9, 8, 7)
    cluster = Cluster(target, draft, 2, placement="hop", gamma=2, verify="rejection")
    prompt, num_runs = [1, 2, 3], 250
    with torch.inference_mode():
        model = reference(target)
        first = model(torch.tensor([prompt])).logits[0, -1, :6].softmax(-1)
        second = model(torch.tensor([[*prompt, i] for i in range(6)])).logits[:, -1, :6].softmax(-1)
    expected = (first[:, None] * second).double().flatten().numpy() * num_runs
    counts = Counter(
        tuple(cluster.run(prompt, max_new_tokens=2, ignore_eos=True, temperature=1.0, seed=seed).ids)
        for seed in range(num_runs)
    )
    observed = [counts[i, j] for i in range(6) for j in range(6)]
    assert sum(observed) == num_runs
    rare = expected < 5  # counted together, as the test wants
    pooled = [
        [
            *(v for v, r in zip(values, rare, strict=True) if not r),
            sum(v for v, r in zip(values, rare, strict=True) if r),
        ]
        for values in (observed, expected)
    ]
    if not rare.any():
        pooled = [values[:-1] for values in pooled]
    scale = sum(pooled[0]) / sum(pooled[1])
    assert chisquare(pooled[0], [v * scale for v in pooled[1]]).pvalue > 1e-3


@pytest.mark.case("V3")
def test_two_thousand_tokens_at_temperature_two_are_words(tmp_path: Path) -> None:
    changes = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 16, "vocab_size": 136}
    folders = []
    for name, noise in (("target", 0.0), ("draft", 0.1)):
        model = tiny_model(max_position_embeddings=2100, **changes)
        folders.append(save(noisy(model, noise), tmp_path / name))
        numbered_tokenizer(120).save_pretrained(folders[-1])
    cluster = Cluster(*folders, 2, placement="hop", gamma=4)
    outcome = cluster.run(PROMPT, max_new_tokens=2000, ignore_eos=True, temperature=2.0)
    assert len(outcome.ids) == 2000 and max(outcome.ids) < 120 and len(set(outcome.ids)) > 100
