"""One rank's part in measuring what the runtime adds to the models' own time, and what its passes take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pearl_pp.config import RunConfig
from pearl_pp.errors import UserError
from pearl_pp.experiments.commands import prompt_of
from pearl_pp.experiments.engines import gamma_of
from pearl_pp.experiments.measured_times import REPEATS, measured_costs
from pearl_pp.experiments.pass_times import measure_ranks
from pearl_pp.experiments.replaying import replayed_speed
from pearl_pp.experiments.windows import windows
from pearl_pp.runtime.engine import PearlPP
from pearl_pp.runtime.link_times import measure_links
from pearl_pp.runtime.pair import ModelPair, Source
from pearl_pp.runtime.request import Prompt, RequestOutput
from pearl_pp.runtime.warm_up import make_schedule
from pearl_pp.schedule.schedule import Schedule
from pearl_pp.simulation.costs import MeasuredCosts
from pearl_pp.stages.source import ModelSource
from pearl_pp.transport.base import Channel, Transport


class BenchRank:
    """The engine of this rank and its schedules.

    Args:
        config: the same on every rank.
    """

    def __init__(self, config: RunConfig, transport: Transport) -> None:
        self._config = config
        self._transport = transport
        self._engine = PearlPP(config, transport=transport, keeps_events=True)
        self._engine.take_events()  # of the warm-up
        self._pair = self._engine.plan.pair
        self._schedules: dict[int | str, Schedule] = {config.gamma: self._engine.schedule}
        self._costs: MeasuredCosts | None = None

    def describe(self) -> dict[str, Any]:
        plan = self._engine.plan.record()
        return {"plan": plan, "versions": self._engine.versions, "pair": describe_pair(self._pair, plan["device"])}

    def measure(self, repeats: int = REPEATS, links: bool = True) -> dict[str, Any] | None:
        """Collective: single passes of all ranks, and messages between them."""
        ranks = measure_ranks(self._transport, self._engine.module, _most_positions(self._pair), repeats)
        table = measure_links(self._transport, Channel.ACTIVATIONS) if links else None
        if ranks is None:
            return None
        self._costs = measured_costs(ranks, self._pair.placement)
        return {"ranks": [rank.record() for rank in ranks], "links": table}

    def run(self, gamma: int | str, prompt: dict[str, Any]) -> dict[str, Any] | None:
        """Collective: one prompt with `gamma`; what rank 0 saw, None on the others."""
        asked = prompt_of(prompt)
        if gamma not in self._schedules:
            self._schedules[gamma] = self._schedule(int(gamma))
        schedule = self._schedules[gamma]
        self._engine.use(schedule)
        outputs = self._engine.generate([asked])
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
            "simulated_tokens_per_s": self._simulated_tokens_per_s(schedule, asked, output),
            "tokens_per_interval": gamma_of(schedule),
            "interval_share": schedule.verify_interval / schedule.num_stages,
            "num_shards": max((len(replica) for replica in schedule.replicas), default=0),
            "windows": [window._asdict() for window in windows(events, schedule.num_stages)],
        }

    def _schedule(self, gamma: int) -> Schedule:
        placement = replace(self._pair.placement, gamma=gamma)
        return make_schedule(self._config, replace(self._pair, placement=placement))

    def _simulated_tokens_per_s(self, schedule: Schedule, prompt: Prompt, output: RequestOutput) -> float | None:
        """The same request with the same verdicts, if passes took what single ones do and nothing else took time."""
        if self._costs is None:
            return None
        return replayed_speed(self._pair, schedule, self._costs, prompt.params.max_new_tokens, output)


def describe_pair(pair: ModelPair, device: str) -> dict[str, Any]:
    """Sizes of both models, by the names of a profile."""

    def sizes(source: Source) -> dict[str, int]:
        assert isinstance(source, ModelSource)
        kv_bytes = source.kv_bytes_per_token(pair.dtype)
        return {"num_layers": source.num_layers, "hidden_size": source.hidden_size, "kv_bytes_per_token": kv_bytes}

    return {
        "target": sizes(pair.target) | {"vocab_size": pair.vocabulary.size},
        "draft": None if pair.draft is None else sizes(pair.draft),
        "dtype": str(pair.dtype).removeprefix("torch."),
        "device": device,
    }


def _most_positions(pair: ModelPair) -> int:
    """Positions that both models take."""
    return min(pair.max_len, *(source.max_positions for source in (pair.target, pair.draft) if source is not None))
