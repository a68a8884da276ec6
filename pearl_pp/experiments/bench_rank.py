"""One rank of a group that is kept alive and told to run single prompts: started by torchrun, led by rank 0's pipe.

torchrun --standalone --nproc-per-node N -m pearl_pp.experiments.bench_rank OPTIONS.json-text
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Any

from pearl_pp.config import RunConfig, run_config
from pearl_pp.errors import UserError
from pearl_pp.experiments.commands import prompt_of
from pearl_pp.experiments.lines import Told
from pearl_pp.experiments.windows import windows
from pearl_pp.runtime.engine import PearlPP, make_schedule
from pearl_pp.runtime.request import Prompt
from pearl_pp.schedule.schedule import TICKS, Schedule
from pearl_pp.transport.base import Transport
from pearl_pp.transport.torch_distributed import connect

_IDLE_S = 24 * 3600.0


class BenchRank:
    """The engine of this rank and its schedules.

    Args:
        config: the same on every rank.
    """

    def __init__(self, config: RunConfig, transport: Transport) -> None:
        self._config = config
        self._engine = PearlPP(config, transport=transport, keeps_events=True)
        self._engine.take_events()  # of the warm-up
        self._schedules: dict[int | str, Schedule] = {config.gamma: self._engine.plan.schedule}

    def describe(self) -> dict[str, Any]:
        return {"plan": self._engine.plan.record(), "versions": self._engine.versions}

    def run(self, gamma: int | str, prompt: Prompt) -> dict[str, Any] | None:
        """Collective: one prompt with `gamma`; what rank 0 saw, None on the others."""
        if gamma not in self._schedules:
            self._schedules[gamma] = self._schedule(int(gamma))
        schedule = self._engine.plan.schedule = self._schedules[gamma]
        outputs = self._engine.generate([prompt])
        events = self._engine.take_events()
        if events is None:
            return None
        output = outputs[0]
        if output.error is not None:
            raise UserError("prompt", None, output.error)
        return {
            "prompt_token_ids": output.prompt_token_ids,
            "token_ids": output.token_ids,
            "finish_reason": output.finish_reason,
            "metrics": output.metrics,
            "tokens_per_interval": _tokens_per_interval(schedule),
            "interval_share": schedule.verify_interval / schedule.num_stages,
            "num_shards": max((len(replica) for replica in schedule.replicas), default=0),
            "windows": [window._asdict() for window in windows(events, schedule.num_stages)],
        }

    def _schedule(self, gamma: int) -> Schedule:
        pair = self._engine.plan.pair
        return make_schedule(self._config, replace(pair, placement=replace(pair.placement, gamma=gamma)))


def _tokens_per_interval(schedule: Schedule) -> float | None:
    """gamma: tokens drafted in p slots when nothing blocks the draft; with `sd` tokens per round."""
    if not schedule.replicas:
        return None
    if schedule.draft_limit is not None:
        return float(schedule.draft_limit)
    return schedule.verify_interval * TICKS / schedule.pass_ticks


def _follow(bench: BenchRank, transport: Transport) -> None:
    while command := json.loads(transport.broadcast_bytes(None, src=0, timeout_s=_IDLE_S)):
        bench.run(command["gamma"], prompt_of(command["prompt"]))


def _lead(bench: BenchRank, transport: Transport, told: Told) -> None:
    told.answer(bench.describe())
    while (command := told.next()) is not None:
        transport.broadcast_bytes(json.dumps(command).encode(), src=0)
        told.answer(bench.run(command["gamma"], prompt_of(command["prompt"])))
    transport.broadcast_bytes(b"{}", src=0)


def main() -> int:
    """Body of a rank; returns its exit code."""
    rank = int(os.environ.get("RANK", "0"))
    told = Told() if rank == 0 else None
    config = run_config(json.loads(sys.argv[1]))
    try:
        transport = connect(config.run_device, config.timeout)
        bench = BenchRank(config, transport)
        if told is not None:
            _lead(bench, transport, told)
        else:
            _follow(bench, transport)
    except UserError as error:
        if told is not None:
            told.user_error(error)
        return UserError.exit_code
    transport.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
