"""Two tokenizers that should be one."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from pearl_pp.config import RunConfig
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError
from pearl_pp.runtime.loading import open_pair
from pearl_pp.runtime.vocabulary import Vocabulary, load_vocabulary
from pearl_pp.stages.source import open_model
from pearl_pp.transport.base import Transport
from tests.inprocess import Cluster
from tests.pairs import oracle
from tests.rank_pool import shared_pool
from tests.unit.runtime.word_models import NUM_WORDS, WORDS, save_with_words, word_tokenizer

ADDED = ("<a>", "<b>", "<c>")


def load(target: Path, draft: Path | None) -> Vocabulary:
    return load_vocabulary(open_model(target, "--target"), draft and open_model(draft, "--draft"))


def refusal(target: Path, draft: Path | None) -> str:
    with pytest.raises(UserError) as caught:
        load(target, draft)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.case("V4")
def test_two_ids_swapped_are_refused_before_weights_are_looked_at(tmp_path: Path) -> None:
    swapped = list(WORDS)
    swapped[5], swapped[9] = swapped[9], swapped[5]
    target = save_with_words(tmp_path / "t", word_tokenizer())
    draft = save_with_words(tmp_path / "d", word_tokenizer(tuple(swapped)))
    (draft / "model.safetensors").write_bytes(b"not weights")
    config = RunConfig(target=str(target), draft=str(draft))
    with pytest.raises(UserError) as caught:
        open_pair(config, 2, torch.device("cpu"))
    reason = "its tokenizer (20 tokens) is not the target's (20): ids 5 ('w5' / 'w9'), 9 ('w9' / 'w5') differ"
    assert str(caught.value) == f"--draft {draft}: {reason}"


def test_of_many_different_ids_the_first_are_shown(tmp_path: Path) -> None:
    target = save_with_words(tmp_path / "t", word_tokenizer())
    draft = save_with_words(tmp_path / "d", word_tokenizer((*WORDS[:2], *reversed(WORDS[2:]))))
    message = refusal(target, draft)
    assert all(f" {i} (" in message for i in (2, 3, 4))
    assert " 5 (" not in message


@pytest.mark.case("V5")
@pytest.mark.parametrize("larger", ["target", "draft"])
def test_with_tokens_added_to_one_tokenizer_the_text_is_the_oracles(larger: str, tmp_path: Path) -> None:
    """A random target draws its added tokens now and then; the draft must go on behind them."""
    folders = {}
    for name in ("target", "draft"):
        words = (*WORDS, *ADDED) if name == larger else WORDS
        folders[name] = save_with_words(tmp_path / name, word_tokenizer(words), vocab_size=len(words))
    cluster = Cluster(folders["target"], folders["draft"], 2, placement="hop", gamma=2)
    assert cluster.pair.vocabulary.num_unshared == 3
    assert cluster.pair.vocabulary.size == NUM_WORDS + (3 if larger == "target" else 0)
    drawn = set()
    for start in range(2, NUM_WORDS, 3):
        text = oracle(folders["target"], [start], 30)
        assert cluster.run([start], max_new_tokens=30, ignore_eos=True).ids == text
        drawn.update(text)
    assert larger == "draft" or drawn & {20, 21, 22}, "no text holds an added token: nothing was tried"


def warnings_of_a_run(transport: Transport, folders: tuple[str, str]) -> list[str]:
    """What this rank says while it answers two prompts that go beyond the draft's context."""
    from pearl_pp import PearlPP

    handler, said = logging.Handler(), []
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("pearl_pp").addHandler(handler)
    try:
        engine = PearlPP(transport=transport, target=folders[0], draft=folders[1])
        engine.generate(["w4 w5", "w6"], SamplingParams(max_new_tokens=20, ignore_eos=True))
        engine.close()
    finally:
        logging.getLogger("pearl_pp").removeHandler(handler)
    return said


@pytest.mark.case("E5", "V5")
def test_a_warning_is_given_once_for_all_ranks_and_all_prompts(tmp_path: Path) -> None:
    words = (*WORDS, *ADDED)
    target = save_with_words(tmp_path / "t", word_tokenizer(words), vocab_size=len(words))
    draft = save_with_words(tmp_path / "d", word_tokenizer(), max_position_embeddings=16)
    expected = [
        "3 tokens are in one tokenizer only; they are never accepted from the draft",
        "the draft's context ends at position 16: from there on the target decodes alone",
    ]
    assert shared_pool(2).run(warnings_of_a_run, (str(target), str(draft))) == [expected, []]


def test_padding_rows_of_the_head_are_no_ids(tmp_path: Path) -> None:
    target = save_with_words(tmp_path / "t", word_tokenizer(), vocab_size=32)
    draft = save_with_words(tmp_path / "d", word_tokenizer(), vocab_size=24)
    assert (load(target, draft).size, load(target, draft).num_unshared) == (NUM_WORDS, 0)


def test_without_tokenizers_the_sizes_must_agree(tmp_path: Path) -> None:
    target, same = save_with_words(tmp_path / "t"), save_with_words(tmp_path / "same")
    other = save_with_words(tmp_path / "other", vocab_size=24)
    assert load(target, same) == Vocabulary(None, NUM_WORDS)
    reason = "no tokenizers to compare, and the vocabularies differ: 24 and 20"
    assert refusal(target, other) == f"--draft {other}: {reason}"


def test_a_broken_tokenizer_is_one_line(tmp_path: Path) -> None:
    target = save_with_words(tmp_path / "t", word_tokenizer())
    (target / "tokenizer.json").write_text("{")
    assert refusal(target, None).startswith(f"--target {target}: its tokenizer cannot be read: ")
