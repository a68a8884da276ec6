"""Stages that outlive the engine they were loaded for: the next engine on this rank need not load them again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from pearl_pp.stages.source import ModelSource
from pearl_pp.stages.stage import Stage

OnBytes = Callable[[int, int], None]
BuildStage = Callable[[ModelSource, int, int, OnBytes], Stage]


class StageName(NamedTuple):
    """What a stage is: layers [start, end) of a model, in a dtype, on a device.

    Args:
        model: what its config says; two models of one file may differ in nothing but their number of layers.
        number: tells stages of the same layers apart that one engine needs at the same time.
    """

    path: Path
    model: str
    num_layers: int
    start: int
    end: int
    dtype: torch.dtype
    device: torch.device
    number: int


class StageStore:
    """The stages of one rank, by what they are. Engines that share them work one after another.

    A stage begins every request with an empty KV cache, so an engine finds nothing of the one before it there.

    Args:
        capacity_bytes: of the device; None where nothing needs to make room.
        on_drop: called when stages are dropped, to let go of the engines that hold them.
    """

    def __init__(self, capacity_bytes: int | None = None, on_drop: Callable[[], None] = lambda: None) -> None:
        self.has_pipeline = False
        self._capacity_bytes = capacity_bytes
        self._on_drop = on_drop
        self._stages: dict[StageName, Stage] = {}

    def __len__(self) -> int:
        return len(self._stages)

    def lend(self, build: BuildStage, dtype: torch.dtype, device: torch.device) -> BuildStage:
        """`build` for one engine: a stage that is here already is not built again. No stage is lent to it twice."""
        lent: Counter[StageName] = Counter()

        def take(source: ModelSource, start: int, end: int, progress: OnBytes) -> Stage:
            name = _name(source, start, end, dtype, device, 0)
            number = lent[name]
            lent[name] += 1
            name = name._replace(number=number)
            if name not in self._stages:
                self._stages[name] = build(source, start, end, progress)
            return self._stages[name]

        return take

    def has_room(self, kept: set[StageName], needed_bytes: int) -> bool:
        """Whether `needed_bytes`, those of the `kept` stages among them, fit beside all other stages."""
        others = sum(stage.held_bytes for name, stage in self._stages.items() if name not in kept)
        return self._capacity_bytes is None or others + needed_bytes <= self._capacity_bytes

    def drop_others(self, kept: set[StageName]) -> None:
        """Frees all stages but these."""
        self._stages = {name: stage for name, stage in self._stages.items() if name in kept}
        self._on_drop()

    @staticmethod
    def names(
        stages: Iterable[tuple[ModelSource, int, int]], dtype: torch.dtype, device: torch.device
    ) -> set[StageName]:
        """The names under which `lend` keeps these stages of one engine."""
        named = [_name(source, start, end, dtype, device, 0) for source, start, end in stages]
        return {name._replace(number=named[:place].count(name)) for place, name in enumerate(named)}


def _name(
    source: ModelSource, start: int, end: int, dtype: torch.dtype, device: torch.device, number: int
) -> StageName:
    return StageName(source.path, source.fingerprint, source.num_layers, start, end, dtype, device, number)
