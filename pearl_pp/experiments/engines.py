"""Engines of one rank that share what they have loaded: any configuration, one prompt after another."""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping
from typing import Any

import torch

from pearl_pp.config import RunConfig, run_config
from pearl_pp.errors import UserError
from pearl_pp.experiments.commands import machine_record, prompt_of, run_options
from pearl_pp.experiments.replaying import replayed_speed
from pearl_pp.runtime.devices import gather_devices
from pearl_pp.runtime.engine import PearlPP
from pearl_pp.runtime.machine import num_cores
from pearl_pp.runtime.request import Prompt, RequestOutput
from pearl_pp.runtime.tracing import Trace
from pearl_pp.schedule.schedule import TICKS, Schedule
from pearl_pp.stages.stage_store import StageStore
from pearl_pp.telemetry import chrome_trace
from pearl_pp.transport.base import Transport

# Each prompt brings its own; none of them changes what an engine loads or measures.
_OF_THE_PROMPT = ("seed", "max_new_tokens", "min_new_tokens", "stop", "ignore_eos", "logprobs")


class Engines:
    """An engine for each configuration that has run, over one transport.

    A stage is loaded once for all of them. On a GPU those that are not wanted go when the card gets full, and the
    engines with them.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._stages = StageStore(_capacity(transport), self._engines_gone)
        self._engines: dict[str, PearlPP] = {}

    def unload(self) -> None:
        """Frees every engine and every stage."""
        self._stages.drop_others(set())

    def run(self, options: Mapping[str, Any], prompt: Mapping[str, Any], trace: bool) -> dict[str, Any] | None:
        """Collective: one prompt under `options`; what rank 0 saw, None on the others.

        Raises:
            UserError: options that do not fit (on every rank), or a prompt (on rank 0).
        """
        config = run_config(run_options(options))
        engine = self._engine(config)
        asked = prompt_of(dict(prompt))
        schedule = engine.schedule
        output, traced = engine.traced(asked) if trace else (engine.generate([asked])[0], None)
        if self._transport.rank != 0:
            return None
        if output.error is not None:
            raise UserError("prompt", None, output.error)
        return _answer(engine, schedule, asked, output, traced)

    def _engine(self, config: RunConfig) -> PearlPP:
        """Collective: the engine of `config`, opened where it is not yet."""
        name = json.dumps({key: value for key, value in config.record().items() if key not in _OF_THE_PROMPT})
        if name not in self._engines:
            engine = PearlPP(config, transport=self._transport, stages=self._stages, exact_pace=True)
            self._engines[name] = engine
        return self._engines[name]

    def _engines_gone(self) -> None:
        self._engines.clear()
        _free(self._transport.device)


def _answer(
    engine: PearlPP, schedule: Schedule, prompt: Prompt, output: RequestOutput, trace: Trace | None
) -> dict[str, Any]:
    mode = engine.config.mode
    known = engine.plan.pair.known_costs()
    return {
        "prompt_token_ids": output.prompt_token_ids,
        "token_ids": output.token_ids,
        "text": output.text,
        "finish_reason": output.finish_reason,
        "metrics": output.metrics,
        "simulated_tokens_per_s": known
        and replayed_speed(engine.plan.pair, schedule, known[0], prompt.params.max_new_tokens, output),
        "plan": engine.plan.record(),
        "versions": engine.versions,
        "machine": machine_record(engine.plan.device, num_cores()),
        "mode": mode,
        "gamma": gamma_of(schedule),
        "notes": [*engine.plan.notes, *output.notes],
        "trace": trace and chrome_trace(trace.events, trace.requests, mode),
    }


def gamma_of(schedule: Schedule) -> float | None:
    """Tokens drafted in p slots when nothing blocks the draft; with `sd` tokens per round; None without a draft."""
    if not schedule.drafts:
        return None
    if schedule.draft_limit is not None:
        return float(schedule.draft_limit)
    return schedule.verify_interval * TICKS / schedule.pass_ticks


def _capacity(transport: Transport) -> int | None:
    """Collective: bytes of its card that a rank may fill, equal parts where ranks share it; on a CPU nobody counts."""
    if transport.device.type != "cuda":
        return None
    cards = [device.card for device in gather_devices(transport)]
    total = torch.cuda.get_device_properties(transport.device).total_memory
    return int(total * RunConfig().gpu_memory_utilization / cards.count(cards[transport.rank]))


def _free(device: torch.device) -> None:
    gc.collect()  # an engine and its recorders hold each other
    if device.type == "cuda":
        torch.cuda.empty_cache()
