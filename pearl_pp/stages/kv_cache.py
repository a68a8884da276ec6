"""The KV cache of one stage: preallocated, cut by changing an integer, moved between ranks range by range.

It reaches the model through transformers' own `Cache(layers=[...])`, so every model family uses it unchanged.
All layers keep their full length, sliding-window ones too: a rollback then never misses an entry.
"""

import inspect
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, CacheLayerMixin

FIRST_CAPACITY = 256


class KVCache:
    """Keys and values of the layers [first_layer, first_layer + num_layers) of one sequence.

    `entries` is one tensor [num_layers, 2, kv_heads, capacity, head_dim] in `dtype` on `device`. Where layers
    (or keys and values) differ in shape it has the largest one, and the rest of an entry stays zero.
    `length` positions are filled; what lies behind them is left over from before a cut and never read.
    """

    def __init__(
        self, first_layer: int, num_layers: int, max_len: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.first_layer = first_layer
        self.num_layers = num_layers
        self.max_len = max_len
        self.dtype = dtype
        self.device = device
        self.length = 0
        self.layers = [_KVLayer(self) for _ in range(num_layers)]
        self.entries = torch.empty(num_layers, 2, 0, 0, 0, dtype=dtype, device=device)

    def as_arguments(self, decoder: nn.Module) -> dict[str, Any]:
        """What a transformers decoder's forward takes this cache by.

        Its layers keep their numbers of the whole model, and models read the sequence length from layer 0,
        which another stage may own: this stage's first layer stands in for all before it.
        """
        cache = Cache(layers=[*self.layers[:1] * self.first_layer, *self.layers])
        parameters = inspect.signature(decoder.forward).parameters
        return {"cache" if "cache" in parameters else "past_key_values": cache, "use_cache": True}

    @property
    def capacity(self) -> int:
        return self.entries.shape[3]

    @property
    def bytes_per_token(self) -> int:
        heads, head_dim = self.entries.shape[2], self.entries.shape[4]
        return self.num_layers * 2 * heads * head_dim * self.dtype.itemsize

    def probed_shape(self) -> tuple[int, int]:
        """KV heads and entry size, the largest of all layers, after a probing pass over one token."""
        return (
            max(layer.num_heads for layer in self.layers),
            max(max(layer.key_dim, layer.value_dim) for layer in self.layers),
        )

    @property
    def is_probed(self) -> bool:
        """Whether every layer has shown its shape in a probing pass."""
        return all(layer.num_heads for layer in self.layers)

    def allocate(self) -> None:
        """Lay out the entries after a probing pass."""
        heads, head_dim = self.probed_shape()
        self._resize(heads, min(FIRST_CAPACITY, self.max_len), head_dim)

    def reset(self, max_len: int) -> None:
        """Forget everything; `max_len` positions is the most the next sequence needs."""
        self.length = 0
        self.max_len = max_len

    def cut(self, length: int) -> None:
        """Keep the first `length` positions. Raises ValueError if there are fewer."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot cut a KV cache of {self.length} positions to {length}")
        self.length = length

    def reserve(self, length: int) -> None:
        """Make room for `length` positions; capacity doubles, so that entries are moved rarely."""
        if length > self.max_len:
            raise ValueError(f"{length} positions do not fit a KV cache made for {self.max_len}")
        if length > self.capacity:
            _, _, heads, capacity, head_dim = self.entries.shape
            self._resize(heads, min(self.max_len, max(2 * capacity, length)), head_dim)

    def entry_shape(self, layer_start: int, layer_end: int, num_positions: int) -> tuple[int, ...]:
        """Shape of what `export_range` gives for so many layers and positions, for posting a receive."""
        return (layer_end - layer_start, 2, self.entries.shape[2], num_positions, self.entries.shape[4])

    @torch.inference_mode()
    def export_range(self, layer_start: int, layer_end: int, start: int, end: int) -> torch.Tensor:
        """A copy of positions [start, end) of layers [layer_start, layer_end) of the whole model.

        Contiguous, [layers, 2, kv_heads, end - start, head_dim]. Raises ValueError outside what is held.
        """
        if not 0 <= start <= end <= self.length:
            raise ValueError(f"positions [{start}, {end}) are not in a KV cache of {self.length}")
        return self._layer_range(layer_start, layer_end)[:, :, :, start:end].clone(
            memory_format=torch.contiguous_format
        )

    @torch.inference_mode()
    def import_range(self, layer_start: int, layer_end: int, start: int, entries: torch.Tensor) -> None:
        """Append `entries` of `export_range` at position `start` == `length`.

        `length` grows when the range ends with this stage's last layer, so ranges that come from several
        shards are imported in the order of their layers. Raises ValueError where they do not fit.
        """
        if start != self.length:
            raise ValueError(f"entries of position {start} cannot follow {self.length} held ones")
        end = start + entries.shape[3]
        self.reserve(end)
        self._layer_range(layer_start, layer_end)[:, :, :, start:end] = entries
        if layer_end == self.first_layer + self.num_layers:
            self.length = end

    def _layer_range(self, layer_start: int, layer_end: int) -> torch.Tensor:
        first = self.first_layer
        if not first <= layer_start < layer_end <= first + self.num_layers:
            raise ValueError(f"layers [{layer_start}, {layer_end}) are not in [{first}, {first + self.num_layers})")
        return self.entries[layer_start - first : layer_end - first]

    def _resize(self, heads: int, capacity: int, head_dim: int) -> None:
        old = self.entries
        self.entries = old.new_zeros(self.num_layers, 2, heads, capacity, head_dim)
        self.entries[:, :, : old.shape[2], : old.shape[3], : old.shape[4]] = old
        for layer, (keys, values) in zip(self.layers, self.entries, strict=True):
            layer.bind(keys, values)


class _KVLayer(CacheLayerMixin):
    """One layer's part of a `KVCache`, as transformers' attention modules see it."""

    is_sliding = False
    num_heads = key_dim = value_dim = 0

    def __init__(self, cache: KVCache) -> None:
        super().__init__()
        self.cache = cache

    def bind(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Views into the cache's entries, [1, heads, capacity, size] each."""
        self.keys = keys[None, : self.num_heads, :, : self.key_dim]
        self.values = values[None, : self.num_heads, :, : self.value_dim]
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        _, self.num_heads, _, self.key_dim = key_states.shape
        self.value_dim = value_states.shape[-1]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new entries behind the held ones; the stage moves `length` on when its pass is over."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            return key_states, value_states
        assert self.keys is not None and self.values is not None
        start = self.cache.length
        num_new = key_states.shape[2]
        self.keys.narrow(2, start, num_new).copy_(key_states)
        self.values.narrow(2, start, num_new).copy_(value_states)
        return self.keys.narrow(2, 0, start + num_new), self.values.narrow(2, 0, start + num_new)

    def get_seq_length(self) -> int:
        return self.cache.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.length + query_length, 0

    def get_max_length(self) -> int:
        return -1
