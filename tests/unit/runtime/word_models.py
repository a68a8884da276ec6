"""Tiny model folders with tokenizers of whole words, some of them faulty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from tests.pairs import save, tiny_model

UNKNOWN, BOS = "<unk>", "<s>"
NUM_WORDS = 20
WORDS = (UNKNOWN, BOS, *(f"w{i}" for i in range(2, NUM_WORDS)))
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}{% if add_generation_prompt %}w3{% endif %}"
)


def word_tokenizer(
    words: tuple[str, ...] = WORDS, *, adds_bos: bool = False, chat_template: str | None = None
) -> PreTrainedTokenizerFast:
    """Word i has id i."""
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, UNKNOWN))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    if adds_bos:
        tokenizer.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, words.index(BOS))])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN, bos_token=BOS, chat_template=chat_template
    )


def numbered_tokenizer(num_words: int) -> PreTrainedTokenizerFast:
    """With exactly so many entries, special ones included."""
    return word_tokenizer((UNKNOWN, BOS, *(f"w{i}" for i in range(2, num_words))))


def save_with_words(folder: Path, tokenizer: PreTrainedTokenizerFast | None = None, **changes: Any) -> Path:
    """A tiny Llama of 2 layers, vocabulary 20, with `tokenizer` if there is one."""
    small = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 16, "vocab_size": NUM_WORDS}
    special = {"bos_token_id": 1, "eos_token_id": NUM_WORDS - 1, "max_position_embeddings": 64}
    save(tiny_model(**(small | special | changes)), folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return folder
