"""Planned memory against what there is."""

from __future__ import annotations

import json
import socket

import torch

from pearl_pp.config import RunConfig
from pearl_pp.planning.memory import RankBytes, Share, check_fits, shares_of, shown
from pearl_pp.runtime.pair import ModelPair
from pearl_pp.transport.base import Transport


def check_memory(transport: Transport, config: RunConfig, pair: ModelPair, planned: list[RankBytes]) -> None:
    """Collective: every rank learns, before it loads anything, whether the plan fits all of them.

    Args:
        planned: of each rank.

    Raises:
        UserError: the same on every rank; names the option, the rank and what is short.
    """
    cards = _gather_cards(transport)
    if config.memory_gb is not None:
        shares = shares_of(config.memory_gb, transport.world_size)
        check_fits(planned, shares, pair.max_len, "--memory-gb", shown(config.memory_gb))
    elif pair.memory_gb is not None:
        shares = shares_of(pair.memory_gb[: transport.world_size], transport.world_size)
        check_fits(planned, shares, pair.max_len, "--emulate", config.emulate)
    else:
        share = config.gpu_memory_utilization
        check_fits(planned, shares_of_cards(cards, share), pair.max_len, "--gpu-memory-utilization", share)


Card = tuple[str, int]


def shares_of_cards(cards: list[Card | None], utilization: float) -> list[Share]:
    """What the ranks on each card may use of it. `cards`: name and bytes of each rank's, None without one."""
    return [
        Share(tuple(rank for rank, card in enumerate(cards) if card == wanted), utilization * wanted[1])
        for wanted in dict.fromkeys(cards)
        if wanted is not None
    ]


def _gather_cards(transport: Transport) -> list[Card | None]:
    """Collective: every rank's card, on every rank."""
    mine = None
    if transport.device.type == "cuda":
        properties = torch.cuda.get_device_properties(transport.device)
        mine = (f"{socket.gethostname()} {properties.uuid}", properties.total_memory)
    gathered = transport.gather_bytes(json.dumps(mine).encode(), dst=0)
    everyone = None if gathered is None else json.dumps([json.loads(payload) for payload in gathered]).encode()
    return [card and (card[0], card[1]) for card in json.loads(transport.broadcast_bytes(everyone, src=0))]
