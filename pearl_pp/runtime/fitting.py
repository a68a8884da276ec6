"""What `--placement auto` loads: as much as may be of use and fits the memory there is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from pearl_pp.config import RunConfig
from pearl_pp.errors import UserError
from pearl_pp.planning.choice import choose
from pearl_pp.planning.memory import RankBytes
from pearl_pp.planning.question import Question
from pearl_pp.planning.replica_sets import lighter
from pearl_pp.runtime.memory import check_memory
from pearl_pp.runtime.pair import ModelPair
from pearl_pp.schedule.placement import Placement
from pearl_pp.transport.base import Transport

_PLANNING_S = 600.0  # eight ranks are planned in less than ten seconds


def fit_placement(
    transport: Transport, config: RunConfig, pair: ModelPair
) -> tuple[ModelPair, list[RankBytes], list[str]]:
    """Collective: the pair with a placement that fits, planned memory of each rank, and notes.

    Raises:
        UserError: nothing fits; says what is short for the placement asked for.
    """
    planned = _planned(transport, config, pair)
    fault: UserError | None = None
    for placement in _wanted(config, pair) if planned is None else [planned]:
        fitted = replace(pair, placement=placement)
        needed = fitted.planned_bytes(transport.device.type, config.prefill_piece)
        try:
            check_memory(transport, config, fitted, needed)
        except UserError as error:
            fault = fault or error
            continue
        return fitted, needed, [] if fault is None else [_less(placement, fault)]
    assert fault is not None, "one placement at least was looked at"
    raise fault


def _planned(transport: Transport, config: RunConfig, pair: ModelPair) -> Placement | None:
    """Collective: the planner's choice, made on rank 0; None where it has nothing to go by, or nothing with a draft."""
    question = pair.question(config, transport.world_size) if config.adapts else None
    if question is None:
        return None
    payload = json.dumps(_best_with_draft(question)).encode() if transport.rank == 0 else None
    record = json.loads(transport.broadcast_bytes(payload, src=0, timeout_s=_PLANNING_S))
    return record and replace(Placement.from_record(record), name=config.placement, gamma=pair.placement.gamma)


def _best_with_draft(question: Question) -> dict | None:
    """A run that has loaded no draft could never try it."""
    try:
        ranking = choose(question)
    except (UserError, ValueError):  # the placement that needs no planner says what is wrong
        return None
    entry = next((entry for entry in ranking.entries if entry.fits and entry.placement.replicas), None)
    return entry and entry.placement.record()


def _wanted(config: RunConfig, pair: ModelPair) -> Iterator[Placement]:
    if config.adapts and pair.placement.replicas:
        yield from lighter(pair.placement, config.layer_split)
    else:
        yield pair.placement


def _less(placement: Placement, fault: UserError) -> str:
    """Why less is loaded than might be of use."""
    if not placement.replicas:
        return f"no room for the draft, so the target decodes alone: {fault.reason}"
    return f"fewer copies of the draft than would be of use: {fault.reason}"
