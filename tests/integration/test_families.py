"""Every decoder family keeps the promise: whole runs against the whole model, and the table of docs/models.md."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import transformers

from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.decoding.stopping import StopReason
from pearl_pp.errors import UserError
from pearl_pp.stages.attention import ATTENTION
from pearl_pp.stages.source import ModelSource, open_model
from tests.families import FAMILIES, ORIGINAL_POSITIONS, REFUSED, Family, save_family
from tests.inprocess import Cluster
from tests.pairs import oracle, save_pair
from tests.plain_decoding import PlainDecoder
from tests.unit.runtime.word_models import numbered_tokenizer
from tests.unit.stages.tiny import save_model

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
TABLES_FROM = (
    "<!-- The tables are written by the tests: PEARL_PP_UPDATE_DOCS=1 pytest tests/integration/test_families.py -->\n"
)
PROMPT = [5, 9, 33, 71, 12, 90, 101, 44, 8, 61, 17, 3]
SAMPLED = {"temperature": 0.3, "seed": 3}
NUM_TOKENS = 32  # with the prompt far beyond a window of 8
CLUSTERS = {
    2: {"placement": "hop", "gamma": 3, "handoff": "ship"},
    3: {"placement": "pipelined", "verify_interval": 2, "gamma": 3, "fill": 2},
    4: {"placement": "pipelined", "verify_interval": 2, "gamma": 2, "fill": 3, "handoff": "catchup"},
}
LEAST = 3  # of the judged tokens so many must be accepted, and so many rejected


@dataclass(frozen=True)
class Seen:
    """What the runs of one family have shown, as the cells of its row say it."""

    greedy: str
    coupled: str
    rollback: str
    layers: str
    attention: str
    note: str


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory):
    @cache
    def look(name: str) -> Seen:
        return run_family(FAMILIES[name], tmp_path_factory.mktemp("family"))

    return look


def run_family(family: Family, root: Path) -> Seen:
    """Greedy and coupled runs on 2, 3 and 4 ranks with a draft that is often wrong."""
    target, draft = save_family(root / "target", family), save_family(root / "draft", family, noise=0.1)
    source = open_model(target, "--target")
    num_tokens = NUM_TOKENS if source.context_note is None else ORIGINAL_POSITIONS
    greedy = oracle(target, PROMPT, num_tokens)
    assert len(set(greedy)) >= 5, "a text that repeats itself tries nothing"
    params = SamplingParams(max_new_tokens=num_tokens, ignore_eos=True, **SAMPLED)
    coupled = PlainDecoder(target, draft).text(PROMPT, params, "coupled")
    num_returned = min(num_tokens, source.max_positions - len(PROMPT))
    unequal: dict[str, list[int]] = {"greedy": [], "coupled": []}
    judged: list[tuple[int, int]] = []
    for num_ranks, options in CLUSTERS.items():
        cluster = Cluster(target, draft, num_ranks, verify="coupled", **options)
        for name, expected, sampling in (("greedy", greedy, {}), ("coupled", coupled, SAMPLED)):
            outcome = cluster.run(PROMPT, max_new_tokens=num_tokens, ignore_eos=True, **sampling)
            assert outcome.reason is StopReason.LENGTH
            if outcome.ids != expected[:num_returned]:
                unequal[name].append(num_ranks)
            judged.append((outcome.metrics["num_accepted_tokens"], outcome.metrics["num_rejected_tokens"]))
    stages = [module.target for module in cluster.modules]
    attention = stages[0].model.config._attn_implementation
    return Seen(
        greedy=_equal_or(unequal["greedy"]),
        coupled=_equal_or(unequal["coupled"]),
        rollback="yes" if min(min(pair) for pair in judged) >= LEAST else "too seldom",
        layers=_who_calls([stage.is_lean for stage in stages]),
        attention="own" if attention == ATTENTION else f"transformers' {attention}",
        note="" if source.context_note is None else source.context_note,
    )


def _equal_or(unequal: list[int]) -> str:
    return "equal" if not unequal else f"differs on {', '.join(map(str, unequal))} ranks"


def _who_calls(lean: list[bool]) -> str:
    if len(set(lean)) == 1:
        return "called directly" if lean[0] else "by the model's forward"
    places = {0: "first", len(lean) - 1: "last"}
    slow = [places.get(number, "middle") for number, is_lean in enumerate(lean) if not is_lean]
    return f"called directly; by the model's forward in the {' and '.join(dict.fromkeys(slow))} stage"


@pytest.mark.case("A2", "A3", "A4", "C2")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_gives_the_texts_of_the_whole_model(name: str, seen) -> None:
    found: Seen = seen(name)
    assert (found.greedy, found.coupled, found.rollback) == ("equal", "equal", "yes")


def _refusal(name: str, folder: Path) -> str:
    refused = REFUSED[name]
    save_model(folder, refused.config) if refused.weights else refused.config.save_pretrained(folder)
    with pytest.raises(UserError) as caught:
        open_model(folder, "--target").check()
    return str(caught.value).split(f"{folder}: ", 1)[1]


def test_the_page_says_what_the_tests_have_seen(seen, tmp_path: Path) -> None:
    lines = [
        f"Seen with transformers {transformers.__version__}.",
        "",
        "| family | what is special | greedy | coupled | rolled back | layers | attention | note |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, family in FAMILIES.items():
        row: Seen = seen(name)
        cells = (row.greedy, row.coupled, row.rollback, row.layers, row.attention, row.note)
        lines.append(f"| {name} | {family.special} | {' | '.join(cells)} |")
    lines += ["", "Refused before any weight is read:", "", "| model | what the user reads |", "|---|---|"]
    lines += [f"| {name} | {_refusal(name, tmp_path / str(i))} |" for i, name in enumerate(REFUSED)]
    text, _, old = PAGE.read_text().partition(TABLES_FROM)
    new = "\n" + "\n".join(lines) + "\n"
    if os.environ.get("PEARL_PP_UPDATE_DOCS"):
        PAGE.write_text(text + TABLES_FROM + new)
        return
    if lines[0] not in old:
        pytest.skip(f"the page is of another version than transformers {transformers.__version__}")
    assert old == new


@pytest.mark.case("A1")
@pytest.mark.parametrize("num_ranks", range(2, 9))
def test_a_tied_model_without_a_stored_head_on_any_number_of_ranks(num_ranks: int, tmp_path: Path) -> None:
    target, draft = save_pair(tmp_path, "noisy", num_hidden_layers=8, tie_word_embeddings=True)
    assert "lm_head.weight" not in open_model(target, "--target").tensors
    outcome = Cluster(target, draft, num_ranks, placement="hop", gamma=3).run(
        PROMPT, max_new_tokens=24, ignore_eos=True
    )
    assert outcome.ids == oracle(target, PROMPT, 24)
    assert outcome.metrics["num_rejected_tokens"] > 0


# Target and draft of different families; their heads have padding rows of their own.
MIXED = [("Llama", "GPT-2"), ("GPT-2", "Mistral"), ("Gemma 3", "Qwen3-MoE"), ("Mixtral", "Falcon")]


@pytest.mark.parametrize(("target_family", "draft_family"), MIXED)
def test_target_and_draft_of_different_families(target_family: str, draft_family: str, tmp_path: Path) -> None:
    tokenizer = numbered_tokenizer(128)
    target = save_family(tmp_path / "target", FAMILIES[target_family])
    draft = save_family(tmp_path / "draft", FAMILIES[draft_family])
    for folder in (target, draft):
        tokenizer.save_pretrained(folder)
    params = SamplingParams(max_new_tokens=NUM_TOKENS, ignore_eos=True, temperature=1.0, seed=3)
    coupled = PlainDecoder(target, draft).text(PROMPT, params, "coupled")
    for num_ranks, options in CLUSTERS.items():
        cluster = Cluster(target, draft, num_ranks, verify="coupled", **options)
        greedy = cluster.run(PROMPT, max_new_tokens=NUM_TOKENS, ignore_eos=True)
        assert greedy.ids == oracle(target, PROMPT, NUM_TOKENS)
        sampled = cluster.run(PROMPT, max_new_tokens=NUM_TOKENS, ignore_eos=True, temperature=1.0, seed=3)
        assert sampled.ids == coupled
        assert sampled.metrics["num_accepted_tokens"] > 0, "the same noise makes strangers agree now and then"


@pytest.mark.case("A4")
@pytest.mark.parametrize("name", ["Llama, rope dynamic", "Phi-3, rope longrope"])
def test_a_rope_that_cannot_be_rolled_back_ends_the_context_and_is_named(name: str, tmp_path: Path) -> None:
    target = save_family(tmp_path / "target", FAMILIES[name])
    draft = save_family(tmp_path / "draft", FAMILIES[name], noise=0.1)
    kind = name.rsplit(" ", 1)[1]
    cluster = Cluster(target, draft, 2, placement="hop", gamma=4)
    assert isinstance(cluster.pair.target, ModelSource)
    assert cluster.pair.notes() == [cluster.pair.target.context_note]
    assert f"rope type {kind} " in cluster.pair.notes()[0]
    with pytest.raises(UserError, match=rf"--max-model-len 65: .* 64 positions \(rope type {kind} "):
        Cluster(target, draft, 2, max_model_len=65)
    prompt = (PROMPT * 5)[:58]
    assert cluster.run(prompt, max_new_tokens=20, ignore_eos=True).ids == oracle(target, prompt, 6)
