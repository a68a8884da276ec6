"""What a pass needs in memory while it runs: seen in passes on the meta device, for any family."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedConfig, PreTrainedModel

from pearl_pp.stages import families
from pearl_pp.stages.attention import query_groups
from pearl_pp.stages.kv_cache import KVCache
from pearl_pp.stages.source import ModelSource

# What `attention.causal_block` holds at once for each element of a mask: distances (int64), and what is visible twice.
_MASK_SCRATCH = 10
_ROWS = (8, 16)  # of the passes that are compared: few, for attention grows with their square


@dataclass(frozen=True)
class PassBytes:
    """Bytes of a pass of a stage, beside its weights and its KV entries.

    Args:
        base: activations alive at once, however many positions are fed.
        row: and for each position fed.
        mask: the causal mask, for each position fed and each one it sees.
        mask_scratch: what making the mask takes beside it.
        first_rows_too: whether the first rows of a sequence need a mask (they do in a sliding window).
        tables: rotary tables, for each position of the longest sequence.
    """

    base: int = 0
    row: int = 0
    mask: int = 0
    mask_scratch: int = 0
    first_rows_too: bool = False
    tables: int = 0

    def of(self, num_rows: int, num_positions: int) -> int:
        """The most that a pass over the last `num_rows` of `num_positions` positions holds at once."""
        has_mask = num_rows > 1 and (self.first_rows_too or num_rows < num_positions)
        area = num_rows * num_positions if has_mask else 0
        return area * self.mask + max(area * self.mask_scratch, self.base + num_rows * self.row)


def pass_bytes(source: ModelSource, dtype: torch.dtype) -> PassBytes:
    """Of a model in `dtype`; nothing is computed."""
    config = source.config
    _, head_dim = source.kv_shape
    base, row = max((_activations(source, dtype, layer) for layer in {0, source.num_layers - 1}), key=sum)
    return PassBytes(
        base=base,
        row=row,
        mask=query_groups(config) * dtype.itemsize,
        mask_scratch=_MASK_SCRATCH + dtype.itemsize,
        first_rows_too=_has_windows(config),
        tables=2 * head_dim * dtype.itemsize,
    )


def _activations(source: ModelSource, dtype: torch.dtype, layer: int) -> tuple[int, int]:
    """Bytes alive at once in one layer: a constant part, and that of each row."""
    alone = dataclasses.replace(source, config=families.cut_config(source.config, layer, layer + 1))
    model = alone.new_model(dtype).eval()
    module = source.decoder.module(model)
    few, many = (_peak(module, source.hidden_size, dtype, num_rows) for num_rows in _ROWS)
    if few is None or many is None:
        # A router wants numbers. Then what a gated MLP takes, for each expert of a token.
        widest = max(max(parameter.shape[-2:]) for parameter in getattr(module, source.decoder.layers).parameters())
        num_experts = getattr(source.config, "num_experts_per_tok", None) or 1
        return 0, 3 * (widest * num_experts + source.hidden_size) * dtype.itemsize
    row = (many - few) // (_ROWS[1] - _ROWS[0])
    return max(0, few - _ROWS[0] * row), row


def _peak(module: PreTrainedModel, hidden_size: int, dtype: torch.dtype, num_rows: int) -> int | None:
    """Bytes alive at once in a pass over the first `num_rows` positions; None where it needs numbers."""
    meta = torch.device("meta")
    hidden = torch.zeros(1, num_rows, hidden_size, dtype=dtype, device=meta)
    positions = torch.arange(num_rows, device=meta)[None]
    arguments = KVCache(0, 1, num_rows, dtype, meta).as_arguments(module)
    with _LiveBytes(module.parameters()) as live, contextlib.suppress(Exception), torch.inference_mode():
        module(inputs_embeds=hidden, position_ids=positions, **arguments)
        return live.peak
    return None


def _has_windows(config: PreTrainedConfig) -> bool:
    kinds = getattr(config, "layer_types", None) or ()
    return any(kind != "full_attention" for kind in kinds) or bool(getattr(config, "sliding_window", None))


class _LiveBytes(TorchDispatchMode):
    """Adds up the storages that the operations inside it make, and takes them off when they are freed.

    Views of `weights` are none.
    """

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.peak = 0
        self._live: dict[int, int] = {weight.untyped_storage()._cdata: 0 for weight in weights}

    def __torch_dispatch__(
        self, func: Callable, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage())
        self.peak = max(self.peak, sum(self._live.values()))
        return output

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._live:
            self._live[key] = storage.nbytes()
            weakref.finalize(storage, self._live.pop, key, None)
