"""Planned memory against what there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pearl_pp.config import RunConfig
from pearl_pp.planning.memory import RankBytes, Share, check_fits, shares_of, shown
from pearl_pp.runtime.devices import Device
from pearl_pp.runtime.pair import ModelPair


@dataclass(frozen=True)
class Memory:
    """What the ranks may use, and the option that says so.

    Args:
        shares: bytes; none for ranks on a CPU where no option limits them.
    """

    shares: tuple[Share, ...]
    option: str
    value: object

    def check(self, planned: Sequence[RankBytes], max_len: int) -> None:
        """Raises UserError, which names the option, the rank and what is short."""
        check_fits(planned, self.shares, max_len, self.option, self.value)

    def of_each_rank(self, num_ranks: int) -> tuple[float, ...] | None:
        """Bytes; ranks on one card have equal parts. None where some rank has no limit."""
        each = {rank: share.num_bytes / len(share.ranks) for share in self.shares for rank in share.ranks}
        return tuple(each[rank] for rank in range(num_ranks)) if len(each) == num_ranks else None


def memory_of(config: RunConfig, pair: ModelPair, devices: Sequence[Device]) -> Memory:
    """What `--memory-gb` says, else the profile of an emulated run, else the cards.

    Raises:
        UserError: `--memory-gb` has another length.
    """
    num_ranks = len(devices)
    if config.memory_gb is not None:
        return Memory(tuple(shares_of(config.memory_gb, num_ranks)), "--memory-gb", shown(config.memory_gb))
    if pair.memory_gb is not None:
        return Memory(tuple(shares_of(pair.memory_gb[:num_ranks], num_ranks)), "--emulate", config.emulate)
    share = config.gpu_memory_utilization
    return Memory(tuple(shares_of_cards(devices, share)), "--gpu-memory-utilization", share)


def shares_of_cards(devices: Sequence[Device], utilization: float) -> list[Share]:
    """What the ranks on each card may use of it: no more than is free, or theirs already."""
    shares = []
    for card in dict.fromkeys(device.card for device in devices if device.card is not None):
        ranks = tuple(rank for rank, device in enumerate(devices) if device.card == card)
        free = min(devices[rank].free_bytes for rank in ranks) + sum(devices[rank].held_bytes for rank in ranks)
        shares.append(Share(ranks, min(utilization * devices[ranks[0]].total_bytes, free)))
    return shares
