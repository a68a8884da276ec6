"""Planned and measured bytes of a rank."""

from __future__ import annotations

import json
import resource
import sys

import torch

from pearl_pp.runtime.pair import ModelPair
from pearl_pp.stages.rank_module import RankModule
from pearl_pp.transport.base import Transport


def planned_bytes(module: RankModule, pair: ModelPair) -> int:
    """Weights of this rank and the KV entries of its layers at the longest sequence."""
    return module.weight_bytes + sum(stage.cache.bytes_per_token * pair.max_len for stage in module.stages)


def gather_planned(transport: Transport, module: RankModule, pair: ModelPair) -> list[int]:
    """Collective: planned bytes of every rank, on every rank."""
    gathered = transport.gather_bytes(json.dumps(planned_bytes(module, pair)).encode(), dst=0)
    everyone = None if gathered is None else json.dumps([json.loads(payload) for payload in gathered]).encode()
    return json.loads(transport.broadcast_bytes(everyone, src=0))


def peak_bytes(device: torch.device) -> int:
    """The most this process has used: on a GPU the allocator's peak, on a CPU the resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
