"""Tokens per second by a renewal argument: cheap enough for thousands of candidates, no stream of verdicts.

Every restart begins the same story, so the speed is E[tokens] / E[time] between two of them. Token i after a restart
is judged by the chunk that carries token i - 1, and a rejection at i has probability alpha^(i-1) (1 - alpha). When the
chunk leaves the last stage follows from the order of passes on each rank. What a restart interrupts, and catching up
on another replica, count nothing here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from pearl_pp.planning.window_shape import WindowShape, window_shape
from pearl_pp.schedule.instructions import Kind
from pearl_pp.schedule.placement import Placement
from pearl_pp.schedule.schedule import Schedule
from pearl_pp.simulation.simulator import CostModel

_REST = 0.01  # windows that are still accepted with this probability are extrapolated
_MAX_TOKENS = 48


@dataclass(frozen=True)
class Durations:
    """Seconds of what a chunk and a drafted token meet on their way.

    Args:
        stages: of each stage's pass. hops: of hidden states to the next stage.
        shards: of each replica's shards, their ranks and passes over one token.
        verdicts: until each rank knows a verdict.
        token: until another rank knows a drafted token. fed: until the first stage does; 0 where it is drafted there.
        shard_hop: of hidden states from one shard to the next.
    """

    stages: tuple[float, ...]
    hops: tuple[float, ...]
    shards: tuple[tuple[tuple[int, float], ...], ...]
    verdicts: tuple[float, ...]
    token: float
    fed: float
    shard_hop: float

    @property
    def chunk(self) -> float:
        """One chunk through all stages, verdict included."""
        return sum(self.stages) + sum(self.hops) + max(self.verdicts)

    @property
    def slowest_replica(self) -> float:
        return max(sum(seconds for _, seconds in shards) for shards in self.shards)


def durations_of(placement: Placement, costs: CostModel, num_tokens: int) -> Durations:
    """Times of chunks of `num_tokens` positions."""
    ranks, last = range(placement.world_size), placement.num_stages - 1
    drafting = {replica[-1].rank for replica in placement.replicas}
    shards = [(a.rank, b.rank) for replica in placement.replicas for a, b in pairwise(replica)]
    told = [(src, dst) for src in drafting for dst in {0, last} | drafting if src != dst]
    return Durations(
        tuple(costs.target(rank, num_tokens) for rank in range(placement.num_stages)),
        tuple(costs.message(Kind.ACTIVATION, rank, rank + 1, num_tokens, 0) for rank in range(last)),
        tuple(
            tuple((shard.rank, costs.draft(shard.rank, i, j, 1)) for j, shard in enumerate(replica))
            for i, replica in enumerate(placement.replicas)
        ),
        tuple(0.0 if rank == last else costs.message(None, last, rank, num_tokens, 0) for rank in ranks),
        max((costs.message(Kind.TOKENS, src, dst, 1, 0) for src, dst in told), default=0.0),
        max((costs.message(Kind.TOKENS, src, 0, 1, 0) for src in drafting if src != 0), default=0.0),
        max((costs.message(Kind.DRAFT_ACTIVATION, a, b, 1, 0) for a, b in shards), default=0.0),
    )


def plain_tokens_per_s(durations: Durations) -> float:
    """A token for each pass through all stages."""
    return 1 / durations.chunk


def turns_tokens_per_s(durations: Durations, gamma: int, acceptance: float) -> float:
    """`sd`: gamma tokens are drafted, then judged; the accepted ones and one more come out of a round."""
    tokens = sum(acceptance**i for i in range(gamma + 1))
    return tokens / (gamma * durations.slowest_replica + durations.fed + durations.chunk)


def window_tokens_per_s(schedule: Schedule, durations: Durations, acceptance: float) -> float:
    """PEARL with any entry pattern and `schedule.pass_ticks` a pass."""
    wanted = _MAX_TOKENS if acceptance >= 1 else math.ceil(math.log(_REST) / math.log(max(acceptance, _REST)))
    shape = window_shape(schedule, max(2, min(_MAX_TOKENS, wanted)))
    times = judged_at(shape, durations)
    tokens = seconds = 0.0
    reached = 1.0  # probability that all tokens before this one were accepted
    for number, moment in enumerate(times, 1):
        ends_here = reached if shape.bonus and number == len(times) else reached * (1 - acceptance)
        tokens += ends_here * number
        seconds += ends_here * moment
        reached -= ends_here
    if shape.bonus:
        return tokens / seconds
    middle = shape.ends[(len(shape.ends) - 1) // 2]  # the end of a chunk: its tokens come at once
    pace = (times[-1] - times[middle - 1]) / (len(times) - middle)
    if acceptance >= 1:
        return 1 / pace
    further = 1 / (1 - acceptance)
    return (tokens + reached * (len(times) + further)) / (seconds + reached * (times[-1] + further * pace))


def judged_at(shape: WindowShape, durations: Durations) -> list[float]:
    """Seconds from the restart to the verdict on each token; every rank does its work in the order of the slots."""
    num_stages, last = len(durations.stages), len(durations.stages) - 1
    clocks = [0.0] * len(durations.verdicts)
    drafted = [0.0]  # when each token was drafted; the last committed one is there
    part_done, part_rank = 0.0, -1
    ready = [0.0] * len(shape.entries)
    times: list[float] = []
    drafts = sorted(shape.drafts, key=lambda part: part.slot)  # a slot's parts keep their order
    next_draft = first_chunk = 0
    for slot in range(shape.entries[-1] + num_stages):
        for chunk in range(first_chunk, len(shape.entries)):
            rank = slot - shape.entries[chunk]
            if rank < 0:
                break
            if rank == 0 and chunk:
                ready[chunk] = drafted[shape.ends[chunk] - 1] + durations.token
            clocks[rank] = max(clocks[rank], ready[chunk]) + durations.stages[rank]
            ready[chunk] = clocks[rank] + (durations.hops[rank] if rank < last else 0.0)
        while next_draft < len(drafts) and drafts[next_draft].slot <= slot:
            _, replica, shard, _ = drafts[next_draft]
            rank, seconds = durations.shards[replica][shard]
            if part_rank not in (rank, -1):
                part_done += durations.shard_hop if shard else durations.token
            clocks[rank] = part_done = max(clocks[rank], part_done) + seconds
            part_rank = rank
            if shard == len(durations.shards[replica]) - 1:
                drafted.append(part_done)
            next_draft += 1
        if shape.entries[first_chunk] + last == slot:
            end = shape.ends[first_chunk]
            verdict = max(clocks[last], drafted[min(end, len(drafted) - 1)] + (0.0 if end == 1 else durations.token))
            clocks = [max(clock, verdict + delay) for clock, delay in zip(clocks, durations.verdicts, strict=True)]
            times += [max(clocks[0], verdict)] * (end - len(times))
            first_chunk += 1
    return times
