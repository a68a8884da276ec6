"""Attention for one sequence with a full-length cache, registered with transformers as `pearl_pp`.

At batch 1 a pass of a small model is mostly overhead. Here no key or value is repeated for grouped queries,
one row needs no mask, and the mask of several rows is a slice of a tensor made once.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import causal_mask_function, sdpa_mask, sliding_window_causal_mask_function

ATTENTION = "pearl_pp"
MAX_CACHED_ELEMENTS = 1 << 18


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention of query [1, heads, rows, d] over key and value [1, kv_heads, length, d].

    The queries that share a KV head become rows of one matrix. The mask (of `causal_mask`) is additive,
    [1, 1, groups * rows, length]; without one, several rows are the sequence's first and attend causally.
    Returns [1, rows, heads, d_value].
    """
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None or kwargs.get("position_bias") is not None:
        raise NotImplementedError(f"{type(module).__name__} needs more than scaled dot-product attention")
    _, num_heads, num_rows, head_dim = query.shape
    kv_heads = key.shape[1]
    if attention_mask is None and num_rows > 1:
        output = F.scaled_dot_product_attention(
            query, key, value, scale=scaling, is_causal=True, enable_gqa=kv_heads != num_heads
        )
        return output.transpose(1, 2).contiguous(), None  # some families take a view of it
    groups = num_heads // kv_heads
    if attention_mask is not None and attention_mask.shape[2] != groups * num_rows:
        attention_mask = attention_mask[:, :, :num_rows].repeat(1, 1, groups, 1)
    packed = query.reshape(1, kv_heads, groups * num_rows, head_dim)
    output = F.scaled_dot_product_attention(packed, key, value, attn_mask=attention_mask, scale=scaling)
    if num_rows == 1:
        return output.reshape(1, 1, num_heads, -1), None
    return output.reshape(1, num_heads, num_rows, -1).transpose(1, 2).contiguous(), None


def attention_mask_of_rows(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    config: PreTrainedConfig | None = None,
    use_vmap: bool = False,
    **kwargs: Any,
) -> torch.Tensor | None:
    """The mask of one pass, in transformers' terms; shape and meaning are those of `causal_mask`.

    Plain and sliding causal masks come from a tensor made once; every other pattern is built by transformers.
    """
    groups = query_groups(config)
    if mask_function is causal_mask_function:
        return causal_mask(q_length, q_offset, groups, 0, dtype, device)
    if local_size is not None and not use_vmap and _is_sliding_window(mask_function, config):
        return causal_mask(q_length, q_offset, groups, local_size, dtype, device)
    visible = sdpa_mask(
        batch_size,
        q_length,
        kv_length,
        q_offset,
        kv_offset,
        mask_function,
        attention_mask,
        local_size,
        allow_is_causal_skip=False,
        use_vmap=use_vmap,
        device=device,
    )
    assert visible is not None  # no skipping was allowed
    return _additive(visible[0, 0], groups, dtype)


def query_groups(config: PreTrainedConfig | None) -> int:
    """Query heads that share one KV head."""
    kv_heads = getattr(config, "num_key_value_heads", None)
    return config.num_attention_heads // kv_heads if config is not None and kv_heads else 1


def causal_mask(
    num_rows: int, past: int, groups: int, window: int, dtype: torch.dtype, device: torch.device | str
) -> torch.Tensor | None:
    """The mask [1, 1, groups * num_rows, past + num_rows], 0 or -inf, of rows behind `past` held positions.

    A row sees itself and what is before it, `window` positions in all (0: everything). None where
    `grouped_attention` needs none: one row that sees everything, or the first rows of a sequence.
    """
    if (not window or past + num_rows <= window) and (num_rows == 1 or past == 0):
        return None
    room = 1 << max(8, (past - 1).bit_length())
    if groups * num_rows * (room + num_rows) > MAX_CACHED_ELEMENTS:
        return causal_block(num_rows, past, groups, window, dtype, device)
    mask = _cached_causal_block(num_rows, room, groups, window, dtype, device)[:, :, :, room - past :]
    return mask.contiguous() if mask.is_cuda else mask  # CUDA kernels want an aligned start


def causal_block(
    num_rows: int, past: int, groups: int, window: int, dtype: torch.dtype, device: torch.device | str
) -> torch.Tensor:
    """The whole mask; without its first k columns it is the mask behind past - k positions."""
    rows = torch.arange(past, past + num_rows, device=device)[:, None]
    distance = rows - torch.arange(past + num_rows, device=device)
    visible = distance >= 0
    if window:
        visible &= distance < window
    return _additive(visible, groups, dtype)


_cached_causal_block = lru_cache(maxsize=64)(causal_block)


def _additive(visible: torch.Tensor, groups: int, dtype: torch.dtype) -> torch.Tensor:
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))
    return mask.repeat(groups, 1)[None, None]


def use_attention(model: PreTrainedModel, name: str) -> None:
    """Make every part of a model call the attention registered as `name`."""
    for module in model.modules():
        if isinstance(config := getattr(module, "config", None), PreTrainedConfig):
            config._attn_implementation = name


def _is_sliding_window(mask_function: Callable, config: PreTrainedConfig | None) -> bool:
    """Whether a local mask function is the sliding window's; a chunk's looks the same from outside."""
    same_parts = mask_function.__qualname__ == sliding_window_causal_mask_function(1).__qualname__
    return same_parts and getattr(config, "attention_chunk_size", None) is None


AttentionInterface.register(ATTENTION, grouped_attention)
AttentionMaskInterface.register(ATTENTION, attention_mask_of_rows)
