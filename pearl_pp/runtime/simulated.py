"""A request on paper: the simulator with the schedule and the verdicts that the emulated run would have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch

from pearl_pp.config import RunConfig
from pearl_pp.errors import UserError
from pearl_pp.planning.modes import Family, Limits, modes
from pearl_pp.planning.prediction import expected_tokens_per_s
from pearl_pp.planning.speed_table import speed_table
from pearl_pp.runtime.emulation import EmulatedPair, machine_of
from pearl_pp.runtime.fitting import planned_placement
from pearl_pp.runtime.intake import make_request
from pearl_pp.runtime.loading import open_pair
from pearl_pp.runtime.metrics import request_metrics
from pearl_pp.runtime.pacing import prefill_piece
from pearl_pp.runtime.request import Prompt, Request
from pearl_pp.runtime.warm_up import limits_of, make_schedule, with_exact_pace
from pearl_pp.runtime.worker import Progress
from pearl_pp.schedule.instructions import Kind, Transfer
from pearl_pp.schedule.schedule import Schedule
from pearl_pp.simulation.costs import FREE, Overheads, ProfileCosts
from pearl_pp.simulation.simulator import Simulator
from pearl_pp.simulation.timeline import Timeline
from pearl_pp.simulation.verdicts import independent
from pearl_pp.telemetry import Activity


class SimulatedRequest(NamedTuple):
    """A finished simulation and what it was made from."""

    pair: EmulatedPair
    request: Request
    schedule: Schedule
    costs: ProfileCosts
    timeline: Timeline

    def metrics(self) -> dict:
        """The metrics of DESIGN section 9, by the same names and formulas as a run's; `idle_share` is new: the share
        of the time in which a rank made no pass.
        """
        timeline, progress = self.timeline, Progress()
        for _, verdict in timeline.verdicts:
            progress.count(verdict)
        times = (0.0, timeline.verdicts[0][0], timeline.duration)
        metrics = request_metrics(timeline.generator, progress, times, timeline.num_tokens)
        metrics["handoff_bytes"] = sum(self._handoff_bytes())
        metrics["per_rank"] = [
            {
                "target_s": timeline.seconds(Activity.TARGET, rank),
                "draft_s": timeline.seconds(Activity.DRAFT, rank),
                "idle_share": share,
            }
            for rank, share in enumerate(timeline.idle_shares())
        ]
        return metrics

    def _handoff_bytes(self) -> Iterator[int]:
        for spent in self.timeline.others:
            if isinstance(spent.about, Transfer) and spent.about.kind is Kind.KV:
                move = spent.about
                yield self.costs.message_bytes(Kind.KV, move.end - move.start, move.layer_end - move.layer_start)


def simulate(config: RunConfig, num_ranks: int, prompt_len: int, overheads: Overheads = FREE) -> SimulatedRequest:
    """One request of `prompt_len` tokens on the machine that `config.emulate` describes, with its acceptance.

    With `gamma` auto a draft pass is exactly as long as the profile says, where a run measures it. Where a run
    chooses how to decode from the times that it measures (`placement` auto), the way that is fastest by the profile
    is taken, from the first token to the last.

    Raises:
        UserError: what the emulated run would refuse.
    """
    if config.emulate is None:
        raise UserError("--emulate", None, "say on which machine, as in --emulate configs/profiles/even_c8.yaml")
    pair = _open(config, num_ranks)
    request = make_request(Prompt(token_ids=(0,) * prompt_len, params=config.sampling_params()), pair)
    if request.total_len == prompt_len:
        raise UserError("--max-new-tokens", config.max_new_tokens, "leaves nothing to simulate")
    costs = ProfileCosts(pair.profile, pair.placement, overheads)
    schedule = _schedule(config, pair, request)
    judge = independent(pair.profile.acceptance, request.seed)
    simulator = Simulator(schedule, costs, judge)
    timeline = simulator.run(prompt_len, request.total_len, request.draft_end, keeps_events=True)
    return SimulatedRequest(pair, request, schedule, costs, timeline)


def expected_speed(config: RunConfig, num_ranks: int) -> float:
    """Tokens per second of `config` in the long run by its profile, without the noise of one text or of the runtime.

    Raises:
        UserError: what the emulated run would refuse.
    """
    pair = _open(config, num_ranks)
    costs = ProfileCosts(pair.profile, pair.placement)
    return expected_tokens_per_s(_paced(config, pair), costs, pair.profile.acceptance)


def _open(config: RunConfig, num_ranks: int) -> EmulatedPair:
    """The emulated pair with the placement that a run would load."""
    pair = open_pair(config, num_ranks, torch.device("cpu"))
    assert isinstance(pair, EmulatedPair), "that is what --emulate opens"
    if not config.adapts:
        return pair
    planned = planned_placement(pair.question(config, machine_of(config, pair, num_ranks)), pair.placement)
    return pair if planned is None else replace(pair, placement=planned)


def _schedule(config: RunConfig, pair: EmulatedPair, request: Request) -> Schedule:
    """The generator's parameters that a run arrives at for this request. The pace does not know of overheads: a pass
    that is told to be a little longer than a share of a slot would lose the rest of it.
    """
    schedule = _paced(config, pair)
    return replace(
        schedule,
        sends_probs=pair.make_rule(config.verify, request.params, request.seed).needs_probs,
        prefill_piece=prefill_piece(
            len(request.token_ids), schedule.num_stages, pair.min_prefill_piece, config.prefill_piece
        ),
    )


def _paced(config: RunConfig, pair: EmulatedPair) -> Schedule:
    """What holds for every request."""
    schedule = make_schedule(config, pair)
    free = ProfileCosts(pair.profile, pair.placement)
    if config.adapts and schedule.replicas:
        return _fastest(schedule, pair, free, limits_of(config, pair))
    return with_exact_pace(schedule, pair, free)


def _fastest(base: Schedule, pair: EmulatedPair, costs: ProfileCosts, limits: Limits) -> Schedule:
    """What a run settles on whose times are the profile's."""
    table = speed_table(modes(base, pair.placement, costs, limits), costs)
    return table.modes[table.best(pair.profile.acceptance, dict.fromkeys(Family, 1.0))].schedule
