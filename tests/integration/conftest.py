"""Model pairs and loaded clusters, made once a session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.inprocess import Cluster
from tests.pairs import save_pair

PairOf = Callable[..., tuple[Path, Path]]
ClusterOf = Callable[..., Cluster]


@pytest.fixture(scope="session")
def pair_of(tmp_path_factory: pytest.TempPathFactory) -> PairOf:
    """`pair_of("noisy")` -> target and draft folders."""

    @cache
    def make(name: str, num_hidden_layers: int, vocab_size: int) -> tuple[Path, Path]:
        special = {"bos_token_id": 1, "eos_token_id": vocab_size - 1}
        folder = tmp_path_factory.mktemp(name)
        return save_pair(folder, name, num_hidden_layers=num_hidden_layers, vocab_size=vocab_size, **special)

    return lambda name, num_hidden_layers=4, vocab_size=128: make(name, num_hidden_layers, vocab_size)


@pytest.fixture(scope="session")
def cluster_of(pair_of: PairOf) -> ClusterOf:
    """`cluster_of("noisy", 4, placement="hop", gamma=4)` -> ranks in threads, loaded once."""

    @cache
    def make(name: str, num_ranks: int, layers: int = 4, vocab_size: int = 128, **options: object) -> Cluster:
        target, draft = pair_of(name, num_hidden_layers=layers, vocab_size=vocab_size)
        return Cluster(target, draft, num_ranks, **options)

    return make
