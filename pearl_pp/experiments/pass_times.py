"""Single passes of every rank's stages. Runs on the ranks of a group.

One rank works at a time, so that ranks which share a machine do not disturb each other.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import torch

from pearl_pp.experiments.commands import CONTEXT
from pearl_pp.experiments.measured_times import REPEATS, RankTimes, StageTimes, rank_times
from pearl_pp.stages.rank_module import AnyStage, RankModule
from pearl_pp.transport.base import Channel, Transport

MOST_TOKENS = 12  # more than a window holds at the usual gamma
LONGER = 32  # from the last of those to this many tokens a pass grows evenly: the profile's bound to prefill
PREFILL = 256  # enough that arithmetic sets the time
PREFILL_REPEATS = 3
_DRAFTS = 3  # draft passes follow one another in a stay, at the usual gamma

_MEASURING_S = 3600.0


def measure_ranks(
    transport: Transport, module: RankModule, max_len: int, repeats: int = REPEATS
) -> list[RankTimes] | None:
    """Collective: passes of all ranks; on rank 0 what each measured, None elsewhere.

    The ranks take turns pass by pass, as they do when a chunk goes through the stages: a process that has waited
    for the others works slower at first, and so it is in use.

    Args:
        max_len: positions that both models take.
    """
    target = None if module.target is None else _Meter(module.target, max_len, judges=True, in_a_row=1)
    shards = {i: _Meter(stage, max_len, judges=False, in_a_row=_DRAFTS) for i, stage in module.shards.items()}
    for meters in ([] if target is None else [target], list(shards.values())):
        _measure_in_turn(transport, meters, max_len, repeats)
    mine = RankTimes(target and target.times(), {i: meter.times() for i, meter in shards.items()}, _memory_bytes())
    gathered = transport.gather_bytes(json.dumps(mine.record()).encode(), dst=0, timeout_s=_MEASURING_S)
    return None if gathered is None else [rank_times(json.loads(one)) for one in gathered]


def _measure_in_turn(transport: Transport, meters: Sequence[_Meter], max_len: int, repeats: int) -> None:
    """Passes of different lengths one after another, so that a drift of the machine hits all of them alike."""
    lengths = _lengths(max_len)
    for repeat in range(repeats + 1):
        for number in lengths:
            with _turn(transport):
                for meter in meters:
                    meter.measure(number, is_kept=repeat > 0)
        with _turn(transport):
            for meter in meters:
                meter.measure_bare()
    for _ in range(PREFILL_REPEATS):
        with _turn(transport):
            for meter in meters:
                meter.measure_prefill()


@contextmanager
def _turn(transport: Transport) -> Iterator[None]:
    """Rank after rank: each enters when the one before it has left; rank 0 goes on when the last has."""
    rank, size = transport.rank, transport.world_size
    if rank > 0:
        transport.irecv(Channel.CONTROL, rank - 1, (1,), torch.int64).wait()
    yield
    if size > 1:
        transport.isend(Channel.CONTROL, (rank + 1) % size, torch.zeros(1, dtype=torch.int64)).wait()
    if rank == 0 and size > 1:
        transport.irecv(Channel.CONTROL, size - 1, (1,), torch.int64).wait()


def _lengths(max_len: int) -> list[int]:
    longest = min(PREFILL, max_len - min(CONTEXT, max_len // 2))
    return [n for n in (*range(1, MOST_TOKENS + 1), LONGER) if n <= longest]


class _Meter:
    """Times passes of one stage after some context.

    Args:
        judges: logits of every token, as the target's last stage makes them; else of the last one.
        in_a_row: passes that follow one another in use; their mean counts.
    """

    def __init__(self, stage: AnyStage, max_len: int, *, judges: bool, in_a_row: int) -> None:
        self._stage = stage
        self._judges = judges
        self._in_a_row = in_a_row
        self._context = min(CONTEXT, max_len // 2)
        self._longest = min(PREFILL, max_len - self._context)
        self._inputs = _inputs(stage, max(self._context, self._longest))
        self._taken: dict[int, list[float]] = defaultdict(list)
        self._bare: list[float] = []
        self._prefill: list[float] = []
        stage.reset(max_len)
        stage.run(self._inputs[: self._context], 0)

    def measure(self, num_tokens: int, is_kept: bool) -> None:
        num_logits = num_tokens if self._judges else 1
        seconds = sum(self._timed(num_tokens, num_logits) for _ in range(self._in_a_row)) / self._in_a_row
        if is_kept:
            self._taken[num_tokens].append(seconds)

    def measure_bare(self) -> None:
        """One token without the head."""
        self._bare.append(self._timed(1, 0))

    def measure_prefill(self) -> None:
        self._prefill.append(self._timed(self._longest, 1))

    def _timed(self, num_tokens: int, num_logits: int) -> float:
        num_logits = num_logits if self._stage.is_last else 0
        return _seconds(lambda: self._stage.run(self._inputs[:num_tokens], self._context, num_logits=num_logits))

    def times(self) -> StageTimes:
        medians = {number: median(times) for number, times in self._taken.items()}
        seconds = [seconds for number, seconds in medians.items() if number <= MOST_TOKENS]
        extra_s = max(0.0, medians[LONGER] - seconds[-1]) / (LONGER - MOST_TOKENS) if LONGER in medians else 0.0
        stage = self._stage
        layers = stage.end - stage.start
        prefill_s = median(self._prefill)
        return StageTimes(seconds, extra_s, median(self._bare), self._longest, prefill_s, layers, stage.weight_bytes)


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
