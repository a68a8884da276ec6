"""Single passes of every rank's stages. Runs on the ranks of a group.

One rank works at a time, so that ranks which share a machine do not disturb each other.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from statistics import median

import torch

from pearl_pp.experiments.commands import CONTEXT
from pearl_pp.experiments.measured_times import REPEATS, RankTimes, StageTimes, rank_times
from pearl_pp.stages.rank_module import AnyStage, RankModule
from pearl_pp.transport.base import Transport

MOST_TOKENS = 12  # more than a window holds at the usual gamma
LONGER = 32  # from the last of those to this many tokens a pass grows evenly: the profile's bound to prefill
PREFILL = 256  # enough that arithmetic sets the time
PREFILL_REPEATS = 3

_MEASURING_S = 3600.0


def measure_ranks(
    transport: Transport, module: RankModule, max_len: int, repeats: int = REPEATS
) -> list[RankTimes] | None:
    """Collective: passes of all ranks, one rank after another; on rank 0 what each measured, None elsewhere.

    Args:
        max_len: positions that both models take.
    """
    mine = RankTimes(None, {}, 0)
    for rank in range(transport.world_size):
        transport.barrier(timeout_s=_MEASURING_S)
        if rank == transport.rank:
            mine = _own_passes(module, max_len, repeats)
    gathered = transport.gather_bytes(json.dumps(mine.record()).encode(), dst=0, timeout_s=_MEASURING_S)
    return None if gathered is None else [rank_times(json.loads(one)) for one in gathered]


def _own_passes(module: RankModule, max_len: int, repeats: int) -> RankTimes:
    target = None if module.target is None else _stage_times(module.target, max_len, repeats, judges=True)
    shards = {i: _stage_times(stage, max_len, repeats, judges=False) for i, stage in module.shards.items()}
    return RankTimes(target, shards, _memory_bytes())


def _stage_times(stage: AnyStage, max_len: int, repeats: int, judges: bool) -> StageTimes:
    """Passes of different lengths in turn, so that a drift of the machine hits all of them alike."""
    context = min(CONTEXT, max_len // 2)
    longest = min(PREFILL, max_len - context)
    inputs = _inputs(stage, max(context, longest))
    stage.reset(max_len)
    stage.run(inputs[:context], 0)

    def timed(num_tokens: int, num_logits: int) -> float:
        return _seconds(lambda: stage.run(inputs[:num_tokens], context, num_logits=num_logits if stage.is_last else 0))

    lengths = [n for n in (*range(1, MOST_TOKENS + 1), LONGER) if n <= longest]
    taken: dict[int, list[float]] = {n: [] for n in lengths}
    bare: list[float] = []
    timed(1, 1)
    for _ in range(repeats):
        for number in lengths:
            taken[number].append(timed(number, number if judges else 1))
        bare.append(timed(1, 0))
    medians = {number: median(times) for number, times in taken.items()}
    seconds = [medians[n] for n in lengths if n <= MOST_TOKENS]
    extra_s = max(0.0, medians[LONGER] - seconds[-1]) / (LONGER - MOST_TOKENS) if LONGER in medians else 0.0
    prefill_s = median(timed(longest, 1) for _ in range(PREFILL_REPEATS))
    layers = stage.end - stage.start
    return StageTimes(seconds, extra_s, median(bare), longest, prefill_s, layers, stage.weight_bytes)


def _inputs(stage: AnyStage, num_tokens: int) -> torch.Tensor:
    """Ids, or hidden states, of the first stage and of a later one."""
    if stage.is_first:
        return torch.arange(num_tokens) % stage.vocab_size
    generator = torch.Generator().manual_seed(0)
    return torch.randn(num_tokens, stage.hidden_size, generator=generator).to(stage.device, stage.dtype)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _memory_bytes() -> int:
    """Of this rank's card; without one, this rank's share of the machine's memory."""
    if torch.cuda.is_initialized():
        return torch.cuda.mem_get_info()[1]
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return total // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
