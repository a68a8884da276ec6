"""Every sampling option, under every strategy, verify interval and rule: the text is the one-process text, id by id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from shutil import copytree

import pytest

from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.decoding.stopping import StopReason
from pearl_pp.messages import Outcome, Verdict
from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.stages.rank_module import RankModule
from tests.inprocess import Cluster
from tests.inprocess import Outcome as Answer
from tests.integration.conftest import PairOf
from tests.integration.test_lossless import PLACEMENTS, PROMPT
from tests.plain_decoding import PlainDecoder, word_decoder
from tests.unit.runtime.word_models import BOS, UNKNOWN, word_tokenizer

STRATEGIES = (
    "ar",
    "sd",
    "sd alone",
    "hop ship",
    "sharded on four",
    "pipelined p=1",
    "pipelined F=3 p=2",
    "pipelined p=3",
)
VERIFY = ("rejection", "coupled")

SAMPLING: dict[str, dict] = {
    "greedy": {},
    "greedy, penalty and least length": {"repetition_penalty": 1.3, "min_new_tokens": 12},
    "temperature": {"temperature": 0.7, "ignore_eos": True},
    "top-k": {"temperature": 1.0, "top_k": 12},
    "top-p": {"temperature": 1.2, "top_p": 0.8},
    "min-p": {"temperature": 1.0, "min_p": 0.1},
    "penalty": {"temperature": 0.9, "repetition_penalty": 1.4, "ignore_eos": True},
    "least length": {"temperature": 1.0, "min_new_tokens": 12},
    "stop strings": {"temperature": 1.0, "stop": ("w1", " w2", "7 w"), "min_new_tokens": 3},
    "all at once": {
        "temperature": 0.8,
        "top_k": 60,
        "top_p": 0.97,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "min_new_tokens": 6,
        "stop": ("99 w1",),
    },
}
# Four of the 128 ids end a text: sampled texts meet them within a few windows.
EOS = frozenset({17, 40, 77, 127})

Run = Callable[[str, str], tuple[Cluster, PlainDecoder]]


@pytest.fixture(scope="module")
def run_on(pair_of: PairOf, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`run_on("hop ship", "coupled")` -> ranks on a pair that is right now and then, and the whole models."""
    tokenizer = word_tokenizer((UNKNOWN, BOS, *(f"w{i}" for i in range(2, 128))))
    folders: tuple[Path, Path] = tuple(
        Path(copytree(folder, tmp_path_factory.mktemp("worded") / folder.name)) for folder in pair_of("noisy")
    )  # pyright: ignore[reportAssignmentType]
    for folder in folders:
        tokenizer.save_pretrained(folder)

    @cache
    def make(name: str, verify: str) -> tuple[Cluster, PlainDecoder]:
        num_ranks, options = PLACEMENTS[name]
        draft = None if options.get("strategy") == "ar" else folders[1]
        cluster = Cluster(folders[0], draft, num_ranks, verify=verify, **options)
        object.__setattr__(cluster.pair.target, "eos_token_ids", EOS)
        return cluster, PlainDecoder(*folders, EOS, word_decoder(tokenizer))

    return make


def answer(cluster: Cluster, params: SamplingParams) -> tuple[Answer, list[int]]:
    """The answer to PROMPT, and the positions in it that no drafted token was judged for."""
    bonus: list[int] = []

    def note(rank: int, module: RankModule, generator: SlotGenerator, verdict: Verdict) -> None:
        if rank == 0 and verdict.outcome is Outcome.BONUS:
            bonus.append(generator.state.committed - 1)

    return cluster.run(PROMPT, note, **params.model_dump()), bonus


@pytest.mark.case("S4", "S8", "E1", "E2")
@pytest.mark.parametrize("options", SAMPLING)
@pytest.mark.parametrize("name", STRATEGIES)
def test_an_option_gives_the_one_process_text(name: str, options: str, run_on: Run) -> None:
    for verify in VERIFY[: 2 if "temperature" in SAMPLING[options] else 1]:
        cluster, decoder = run_on(name, verify)
        params = SamplingParams(max_new_tokens=24, seed=5, logprobs=True, **SAMPLING[options])
        outcome, bonus = answer(cluster, params)
        assert outcome.ids == decoder.text(PROMPT, params, verify, bonus), verify
        assert outcome.logprobs == pytest.approx(decoder.logprobs(PROMPT, outcome.ids), abs=1e-4)
        assert (outcome.metrics["num_draft_tokens"] > 0) == (name != "ar")


def test_the_options_end_texts_in_every_way(run_on: Run) -> None:
    """The sweep above shows something only where its texts end early, late, and differ from one another."""
    _, decoder = run_on("ar", "coupled")
    texts = {}
    for name, options in SAMPLING.items():
        texts[name] = decoder.text(PROMPT, SamplingParams(max_new_tokens=24, seed=5, **options), "coupled")
    assert len(set(map(tuple, texts.values()))) == len(texts)
    assert sum(ids[-1] in EOS for ids in texts.values()) >= 2
    assert sum(len(ids) == 24 for ids in texts.values()) >= 2
    assert len(texts["least length"]) >= 12


@pytest.mark.case("E2")
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_stop_string_over_two_tokens_ends_the_text_wherever_it_falls(name: str, run_on: Run) -> None:
    cluster, decoder = run_on(name, "rejection")
    decode = decoder.decode
    assert decode is not None
    whole = decoder.text(PROMPT, SamplingParams(max_new_tokens=16, ignore_eos=True), "coupled")
    for place in range(1, 11):
        stop = decode(whole[place - 1 : place + 1])[1:]  # without its first letter: it begins within a token
        outcome = cluster.run(PROMPT, max_new_tokens=16, ignore_eos=True, stop=(stop,))
        text = decode(whole)
        assert outcome.text == text[: text.index(stop)]
        assert outcome.ids == whole[: len(outcome.ids)] and outcome.reason is StopReason.STOP_STRING


@pytest.mark.case("E1", "E6")
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_sampled_text_ends_at_the_first_eos_wherever_it_falls(name: str, run_on: Run) -> None:
    """Place 1 is the first drafted token."""
    cluster, decoder = run_on(name, "coupled")
    params = SamplingParams(max_new_tokens=16, temperature=1.0, seed=3)
    whole = replace(decoder, eos=frozenset()).text(PROMPT, params, "coupled")
    for place in range(10):
        eos = whole[place]
        object.__setattr__(cluster.pair.target, "eos_token_ids", frozenset({eos, 126}))
        try:
            outcome = cluster.run(PROMPT, **params.model_dump())
        finally:
            object.__setattr__(cluster.pair.target, "eos_token_ids", EOS)
        assert outcome.ids == whole[: min(whole.index(end) for end in (eos, 126) if end in whole) + 1]
        assert outcome.reason is StopReason.EOS


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_eos_may_be_the_first_token_after_the_least_length(name: str, run_on: Run) -> None:
    cluster, decoder = run_on(name, "coupled")
    params = SamplingParams(max_new_tokens=16, temperature=1.0, seed=3)
    whole = replace(decoder, eos=frozenset()).text(PROMPT, params, "coupled")
    places = [place for place in range(3, 12) if whole.index(whole[place]) == place][:4]
    for place in places:
        object.__setattr__(cluster.pair.target, "eos_token_ids", frozenset({whole[place]}))
        try:
            lengths = [
                len(cluster.run(PROMPT, **params.model_dump() | {"min_new_tokens": least}).ids)
                for least in (place, place + 1)
            ]
        finally:
            object.__setattr__(cluster.pair.target, "eos_token_ids", EOS)
        assert lengths[0] == place + 1 < lengths[1]


@pytest.mark.case("E3", "E6")
@pytest.mark.parametrize("verify", VERIFY)
@pytest.mark.parametrize("name", STRATEGIES)
def test_exactly_as_many_sampled_tokens_as_asked_for(name: str, verify: str, run_on: Run) -> None:
    cluster, decoder = run_on(name, verify)
    for count in range(1, 10):
        params = SamplingParams(max_new_tokens=count, temperature=1.0, seed=count, ignore_eos=True)
        outcome, bonus = answer(cluster, params)
        assert outcome.ids == decoder.text(PROMPT, params, verify, bonus)
        assert outcome.reason is StopReason.LENGTH
