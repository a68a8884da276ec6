"""What a run loads, and where: as much of the draft as may be of use, layers where memory and speed allow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from pearl_pp.config import RunConfig
from pearl_pp.errors import UserError
from pearl_pp.planning.choice import choose
from pearl_pp.planning.memory import RankBytes
from pearl_pp.planning.question import Question
from pearl_pp.planning.replica_sets import lighter
from pearl_pp.planning.splitting import best_split
from pearl_pp.runtime.devices import Machine, gather_devices
from pearl_pp.runtime.memory import memory_of
from pearl_pp.runtime.pair import ModelPair
from pearl_pp.schedule.placement import Placement
from pearl_pp.transport.base import Transport

_PLANNING_S = 600.0  # eight ranks are planned in less than ten seconds


def fit_placement(
    transport: Transport, config: RunConfig, pair: ModelPair
) -> tuple[ModelPair, list[RankBytes], list[str]]:
    """Collective: the pair with a placement that fits, planned memory of each rank, and notes.

    Ranks that are alike get even stages, unless only uneven ones fit. Where ranks differ, layers go where memory and
    speed allow; with `--placement auto` the planner then chooses the draft's place as well. `--layer-split` and a
    placement file stand as they are.

    Raises:
        UserError: nothing fits; says what is short for the placement asked for.
    """
    devices = gather_devices(transport)
    memory = memory_of(config, pair, devices)
    machine = Machine(memory.of_each_rank(len(devices)), pair.speeds(devices), transport.device.type)
    fault: UserError | None = None
    wanted = _Wanted(transport, config, pair, machine)
    for placement in wanted.placements():
        fitted = replace(pair, placement=placement)
        needed = fitted.planned_bytes(transport.device.type, config.prefill_piece)
        try:
            memory.check(needed, pair.max_len)
        except UserError as error:
            fault = fault or error
            continue
        return fitted, needed, _notes(pair.placement, placement, fault)
    assert fault is not None, "one placement at least was looked at"
    raise fault


@dataclass(frozen=True)
class _Wanted:
    """What may be loaded, the best first. All ranks find the same."""

    transport: Transport
    config: RunConfig
    pair: ModelPair
    machine: Machine

    def placements(self) -> Iterator[Placement]:
        """The planner's choice where it knows more than presets do; then what presets say."""
        if self.config.adapts and (self.pair.speeds_are_known or self.machine.is_uneven):
            planned = self._planned()
            if planned is not None:
                yield planned
        for placement in self._presets():
            yield from self._cut(placement)

    @cached_property
    def _question(self) -> Question | None:
        return self.pair.question(self.config, self.machine)

    def _planned(self) -> Placement | None:
        """Collective: the planner's choice, made on rank 0; None where it finds none with a draft that fits."""
        payload = None
        if self.transport.rank == 0:
            planned = None if self._question is None else planned_placement(self._question, self.pair.placement)
            payload = json.dumps(planned and planned.record()).encode()
        record = json.loads(self.transport.broadcast_bytes(payload, src=0, timeout_s=_PLANNING_S))
        return record and Placement.from_record(record)

    def _presets(self) -> Iterator[Placement]:
        if self.config.adapts and self.pair.placement.replicas:
            yield from lighter(self.pair.placement, self.config.layer_split)
        else:
            yield self.pair.placement

    def _cut(self, placement: Placement) -> Iterator[Placement]:
        """With even stages, and with stages as memory and speed allow: first where ranks differ."""
        if not self.config.leaves_layers_free:
            yield placement
            return
        if not self.machine.is_uneven:
            yield placement
        cut = None if self._question is None else best_split(self._question, placement)
        if cut is not None:
            yield cut
        if self.machine.is_uneven:
            yield placement


def planned_placement(question: Question, asked: Placement) -> Placement | None:
    """The planner's choice in place of `asked`; None where it finds none with a draft that fits.

    Without a draft a run could never try one. gamma stays as asked for: passes are measured.
    """
    try:
        ranking = choose(question)
    except (UserError, ValueError):  # the placement that needs no planner says what is wrong
        return None
    entry = next((entry for entry in ranking.entries if entry.fits and entry.placement.replicas), None)
    return entry and replace(entry.placement, name=asked.name, gamma=asked.gamma)


def _notes(asked: Placement, loaded: Placement, fault: UserError | None) -> list[str]:
    """Where less is loaded than might be of use, or layers are not where a user would expect them: why."""
    if fault is None:
        return []
    if not loaded.replicas and asked.replicas:
        return [f"no room for the draft, so the target decodes alone: {fault.reason}"]
    if len(loaded.replicas) < len(asked.replicas):
        return [f"fewer copies of the draft than would be of use: {fault.reason}"]
    return [f"layers are cut as memory allows; evenly, {fault.reason}"]
