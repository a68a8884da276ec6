"""What each rank's memory must hold, counted before anything is loaded: weights of its layers and ends, KV entries."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import nn

from pearl_pp.errors import UserError
from pearl_pp.schedule.placement import Placement
from pearl_pp.stages import families
from pearl_pp.stages.source import ModelSource

GB = 10**9

Ends = tuple[bool, bool]


@dataclass(frozen=True)
class ModelBytes:
    """Sizes of a model's parts.

    Args:
        layers: weights of each layer.
        ends: weights beside the layers of a stage that is (first, last): embedding, final norm, head. A head tied to
            the embedding counts on either end.
        kv_per_layer: keys and values of one position in one layer.
    """

    layers: tuple[int, ...]
    ends: Mapping[Ends, int]
    kv_per_layer: int

    def of_stage(self, start: int, end: int, max_len: int) -> int:
        """Layers [start, end) with KV entries for `max_len` positions."""
        ends = self.ends[start == 0, end == len(self.layers)]
        return sum(self.layers[start:end]) + ends + (end - start) * self.kv_per_layer * max_len


def count_bytes(source: ModelSource, dtype: torch.dtype) -> ModelBytes:
    """Sizes of a checked model in `dtype`, from its structure on the meta device."""
    layers = getattr(source.decoder.module(source.meta_model), source.decoder.layers)
    return ModelBytes(
        layers=tuple(_num_weights(layer) * dtype.itemsize for layer in layers),
        ends={ends: number * dtype.itemsize for ends, number in _ends(source, dtype)},
        kv_per_layer=source.kv_bytes_per_token(dtype) // source.num_layers,
    )


def _ends(source: ModelSource, dtype: torch.dtype) -> Iterator[tuple[Ends, int]]:
    """Numbers of weights that `build_stage` leaves beside the layers."""
    bare = source.new_model(dtype)
    families.cut_layers(bare, source.decoder, 0, 0)
    for is_first, is_last in product((False, True), repeat=2):
        model = copy.deepcopy(bare)
        families.drop_ends(model, source.decoder, is_first=is_first, is_last=is_last, keep_tied=False)
        yield (is_first, is_last), _num_weights(model)


def _num_weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())  # a tied one comes once


def planned_bytes(placement: Placement, target: ModelBytes, draft: ModelBytes | None, max_len: int) -> list[int]:
    """Bytes of every rank: its target stage, and its shard of each draft replica."""
    planned = []
    for rank in range(placement.world_size):
        layers = placement.stage_range(rank)
        needed = target.of_stage(*layers, max_len) if layers else 0
        for shard in placement.shards_on(rank).values():
            assert draft is not None
            needed += draft.of_stage(shard.start, shard.end, max_len)
        planned.append(needed)
    return planned


@dataclass(frozen=True)
class Share:
    """Memory that `ranks` have together, in bytes."""

    ranks: tuple[int, ...]
    num_bytes: float


def shares_of(memory_gb: Sequence[float], num_ranks: int) -> list[Share]:
    """`--memory-gb`: one number for every rank, or one for each. Raises UserError for another length."""
    if len(memory_gb) not in (1, num_ranks):
        reason = f"has {len(memory_gb)} numbers, this run has {num_ranks} ranks; give one for all or one for each"
        raise UserError("--memory-gb", shown(memory_gb), reason)
    each = memory_gb if len(memory_gb) == num_ranks else [*memory_gb] * num_ranks
    return [Share((rank,), number * GB) for rank, number in enumerate(each)]


def check_fits(planned: Sequence[int], shares: Sequence[Share], max_len: int, option: str, value: object) -> None:
    """Raises UserError, which blames `option`, for the first share that is too small."""
    for share in shares:
        needed = sum(planned[rank] for rank in share.ranks)
        if needed > share.num_bytes:
            ranks = ", ".join(map(str, share.ranks))
            who = f"rank {ranks} needs" if len(share.ranks) == 1 else f"ranks {ranks}, on one card, need"
            reason = (
                f"{who} {needed / GB:.3g} GB for weights and KV entries of {max_len} positions, "
                f"{share.num_bytes / GB:.3g} GB are there: {(needed - share.num_bytes) / GB:.3g} GB short"
            )
            raise UserError(option, value, reason)


def shown(memory_gb: Sequence[float]) -> str:
    """As on the command line."""
    return ",".join(f"{number:g}" for number in memory_gb)
