"""The text the pair is made from: the running Python's own standard library, split by file."""

import hashlib
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

PAD, BOS, EOS = "<|pad|>", "<|bos|>", "<|eos|>"
PAD_ID, BOS_ID, EOS_ID = 0, 1, 2

# Left out: tests (much of the text, little of its kind), tables of character sets, bundled third-party code.
_SKIPPED_FOLDERS = frozenset({"test", "tests", "idle_test", "encodings", "site-packages", "ensurepip"})
_SKIPPED_PREFIX = "_sysconfigdata"  # differs from build to build
_MIN_CHARACTERS = 200
_HELD_OUT_PERCENT = 4


class Corpus(NamedTuple):
    """Texts of whole files, tabs expanded, in the order of their paths."""

    train: list[str]
    held_out: list[str]


def stdlib_dir() -> Path:
    """The folder of the running Python's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def is_held_out(relative_path: str) -> bool:
    """Whether a file is kept from training; a function of its path alone, so it holds on every machine."""
    return int(hashlib.md5(relative_path.encode()).hexdigest(), 16) % 100 < _HELD_OUT_PERCENT


def list_files(root: Path) -> list[str]:
    """Relative posix paths of the Python files of the corpus below `root`, sorted."""
    found = (path.relative_to(root) for path in root.rglob("*.py"))
    return sorted(
        path.as_posix()
        for path in found
        if not _SKIPPED_FOLDERS.intersection(path.parts[:-1]) and not path.name.startswith(_SKIPPED_PREFIX)
    )


def collect(root: Path | None = None) -> Corpus:
    """Reads the corpus below `root` (default: the running Python's standard library)."""
    root = root or stdlib_dir()
    corpus = Corpus([], [])
    for name in list_files(root):
        text = (root / name).read_text(encoding="utf-8").replace("\t", "    ")
        if len(text) >= _MIN_CHARACTERS:
            (corpus.held_out if is_held_out(name) else corpus.train).append(text)
    return corpus


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE; ids 0, 1, 2 are padding, beginning and end of a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> torch.Tensor:
    """One int64 stream [n]: beginning + text + end, file after file."""
    ids: list[int] = []
    for text in texts:
        ids += [BOS_ID, *tokenizer.encode(text, add_special_tokens=False).ids, EOS_ID]
    return torch.tensor(ids, dtype=torch.int64)
