"""A pair with a tokenizer of twenty words, opened once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pearl_pp.config import RunConfig
from pearl_pp.runtime.loading import open_pair
from pearl_pp.runtime.pair import ModelPair
from tests.unit.runtime.word_models import save_with_words, word_tokenizer


@pytest.fixture(scope="session")
def word_folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("words")
    target, draft = (save_with_words(root / name, word_tokenizer()) for name in ("target", "draft"))
    return target, draft


@pytest.fixture(scope="session")
def word_pair(word_folders: tuple[Path, Path]) -> ModelPair:
    target, draft = map(str, word_folders)
    return open_pair(RunConfig(target=target, draft=draft), 2, torch.device("cpu"))
