"""What a schedule is worth on a machine: the simulator's tokens per second, the same text for every schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pearl_pp.schedule.placement import Placement
from pearl_pp.schedule.schedule import TICKS, Schedule, fitted_pass_ticks
from pearl_pp.simulation.expectation import simulated_cycle
from pearl_pp.simulation.simulator import CostModel, Simulator
from pearl_pp.simulation.timeline import Timeline
from pearl_pp.simulation.verdicts import independent

PROMPT_LEN = 64
NUM_TOKENS = 200


def simulated_request(
    schedule: Schedule,
    costs: CostModel,
    acceptance: float,
    *,
    prompt_len: int = PROMPT_LEN,
    num_tokens: int = NUM_TOKENS,
    seed: int = 0,
) -> Timeline:
    """One simulated request.

    Which positions are wrong follows from seed and position alone: schedules are compared on the same random numbers,
    so that their order is far more certain than their speeds.

    Args:
        costs: in seconds, for the placement that `schedule` was made from.
        acceptance: probability that a drafted token is the target's.
        num_tokens: at least 2.
    """
    simulator = Simulator(schedule, costs, independent(acceptance, seed))
    return simulator.run(prompt_len, prompt_len + num_tokens)


def expected_tokens_per_s(schedule: Schedule, costs: CostModel, acceptance: float) -> float:
    """Simulated tokens per second in the long run, without the noise of one text: expected tokens over expected time
    between two restarts.
    """
    return simulated_cycle(schedule, costs).tokens_per_s(acceptance)


def stage_seconds(placement: Placement, costs: CostModel, num_tokens: int = 1) -> tuple[float, ...]:
    """Seconds of every stage's pass over `num_tokens` positions."""
    return tuple(costs.target(rank, num_tokens) for rank in range(placement.num_stages))


def replica_seconds(placement: Placement, costs: CostModel) -> tuple[float, ...]:
    """Seconds of one pass of every replica over one token, all its shards."""
    return tuple(sum(_shard_seconds(placement, costs, number)) for number in range(len(placement.replicas)))


def _shard_seconds(placement: Placement, costs: CostModel, replica: int) -> Iterator[float]:
    for number, shard in enumerate(placement.replicas[replica]):
        yield costs.draft(shard.rank, replica, number, 1)


def exact_pass_ticks(placement: Placement, costs: CostModel) -> int:
    """Length of a draft pass, t N / T slots, as `--gamma auto` measures it; the slowest replica sets t."""
    slots = max(replica_seconds(placement, costs)) * placement.num_stages / sum(stage_seconds(placement, costs))
    return fitted_pass_ticks(max(1, math.floor(slots * TICKS)), placement.replicas, placement.num_stages)
