"""Stages that are loaded once and lent to one engine after another."""

from __future__ import annotations

import pytest
import torch

from pearl_pp.stages.source import ModelSource, open_model
from pearl_pp.stages.stage import Stage, build_stage
from pearl_pp.stages.stage_store import StageStore
from tests.pairs import save, tiny_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return open_model(save(tiny_model(), tmp_path_factory.mktemp("model")), "--target")


class Loader:
    """Counts what it loads."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        self.loaded: list[tuple[int, int]] = []

    def __call__(self, source: ModelSource, start: int, end: int, progress: object) -> Stage:
        self.loaded.append((start, end))
        return build_stage(source, start, end, dtype=self.dtype, device=CPU, max_len=32)


def lend(store: StageStore, load: Loader, source: ModelSource, *ranges: tuple[int, int]) -> list[Stage]:
    take = store.lend(load, load.dtype, CPU)
    return [take(source, *layers, lambda *_: None) for layers in ranges]


def test_a_stage_is_loaded_once_for_all_engines(source: ModelSource) -> None:
    store, load = StageStore(), Loader()
    first = lend(store, load, source, (0, 2), (2, 4))
    second = lend(store, load, source, (2, 4), (0, 1))
    assert load.loaded == [(0, 2), (2, 4), (0, 1)]
    assert second[0] is first[1]
    lend(store, Loader(torch.bfloat16), source, (0, 2))
    assert len(store) == 4, "another dtype is another stage"


def test_one_engine_never_gets_the_same_stage_twice(source: ModelSource) -> None:
    """As where a model is its own draft: both have KV caches of their own."""
    store, load = StageStore(), Loader()
    target, draft = lend(store, load, source, (0, 2), (0, 2))
    assert target is not draft and target.cache is not draft.cache
    assert lend(store, load, source, (0, 2), (0, 2)) == [target, draft]
    assert load.loaded == [(0, 2), (0, 2)]
    assert len(store.names([(source, 0, 2), (source, 0, 2)], torch.float32, CPU)) == 2


def test_what_is_not_wanted_goes_where_it_leaves_no_room(source: ModelSource) -> None:
    dropped = []
    store = StageStore(10_000_000, lambda: dropped.append(len(store)))
    load = Loader()
    kept, other = lend(store, load, source, (0, 2), (2, 4))
    names = store.names([(source, 0, 2)], torch.float32, CPU)
    assert store.has_room(names, 10_000_000 - other.held_bytes)
    assert not store.has_room(names, 10_000_001 - other.held_bytes)
    assert StageStore().has_room(set(), 10**15), "without a capacity nothing needs to make room"
    store.drop_others(names)
    assert dropped == [1] and len(store) == 1, "whoever is called can free their memory at once"
    assert lend(store, load, source, (0, 2)) == [kept]


def test_what_a_stage_holds_grows_with_its_kv_cache(source: ModelSource) -> None:
    stage = build_stage(source, 0, 2, dtype=torch.float32, device=CPU, max_len=1024)
    before = stage.held_bytes
    assert before == stage.weight_bytes + stage.cache.capacity * stage.cache.bytes_per_token
    stage.reset(1024)
    stage.cache.reserve(1000)
    assert stage.held_bytes - before == (stage.cache.capacity - 256) * stage.cache.bytes_per_token > 0
