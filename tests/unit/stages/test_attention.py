"""The attention function against its formula, and the masks against transformers' own."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.masking_utils import (
    causal_mask_function,
    chunked_causal_mask_function,
    sdpa_mask,
    sliding_window_causal_mask_function,
)

from pearl_pp.stages import attention
from pearl_pp.stages.attention import attention_mask_of_rows, causal_mask, grouped_attention
from tests.unit.stages.tiny import tiny_config


def plain_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, past: int, window: int, scale: float
) -> torch.Tensor:
    """[1, rows, heads, d], every key and value repeated, every row masked."""
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    rows = torch.arange(past, past + query.shape[2])[:, None]
    columns = torch.arange(key.shape[2])
    hidden = (columns > rows) | ((rows - columns >= window) if window else False)
    scores = (query @ key.transpose(2, 3) * scale).masked_fill(hidden, -math.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2)


@given(
    rows=st.integers(1, 6),
    past=st.integers(0, 40),
    kv_heads=st.sampled_from([1, 2, 3]),
    groups=st.sampled_from([1, 2, 4]),
    window=st.sampled_from([0, 1, 5, 30]),
    guessed_groups=st.sampled_from([1, 2]),
)
def test_attention_is_its_formula(
    rows: int, past: int, kv_heads: int, groups: int, window: int, guessed_groups: int
) -> None:
    generator = torch.Generator().manual_seed(rows * 1000 + past)
    room = torch.randn(2, 1, kv_heads, past + rows + 3, 8, generator=generator, dtype=torch.float64)
    key, value = room[:, :, :, : past + rows]
    query = torch.randn(1, rows, kv_heads * groups, 8, generator=generator, dtype=torch.float64).transpose(1, 2)
    mask = causal_mask(rows, past, guessed_groups, window, torch.float64, "cpu")
    output, _ = grouped_attention(torch.nn.Identity(), query, key, value, mask, scaling=0.3)
    expected = plain_attention(query, key, value, past, window, 0.3)
    assert output.shape == (1, rows, kv_heads * groups, 8)
    torch.testing.assert_close(output.reshape_as(expected), expected)


@given(rows=st.integers(1, 6), past=st.integers(0, 600), window=st.sampled_from([0, 3, 8, 300]), big=st.booleans())
def test_masks_are_those_of_transformers(rows: int, past: int, window: int, big: bool) -> None:
    function = sliding_window_causal_mask_function(window) if window else causal_mask_function
    limit = attention.MAX_CACHED_ELEMENTS
    attention.MAX_CACHED_ELEMENTS = 0 if big else limit
    try:
        mask = attention_mask_of_rows(
            1, rows, past + rows, past, mask_function=function, local_size=window or None, config=tiny_config("llama")
        )
    finally:
        attention.MAX_CACHED_ELEMENTS = limit
    visible = sdpa_mask(1, rows, past + rows, past, 0, function, allow_is_causal_skip=False)
    if mask is None:  # one row that sees all, or the causal start of a text
        assert (
            visible.all()
            if rows == 1
            else (past == 0 and torch.equal(visible[0, 0], torch.ones(rows, rows).tril() > 0))
        )
    else:
        assert torch.equal(mask == 0, visible.repeat(1, 1, 2, 1))  # two query heads share one
        assert torch.isneginf(mask[mask != 0]).all()


def test_a_chunk_is_no_sliding_window() -> None:
    function = chunked_causal_mask_function(8, torch.zeros(1, dtype=torch.int64))
    config = tiny_config("llama4_text", attention_chunk_size=8, head_dim=16, num_local_experts=2)
    mask = attention_mask_of_rows(1, 1, 11, 10, mask_function=function, local_size=8, config=config)
    assert mask is not None and (mask[0, 0, 0] == 0).tolist() == [False] * 8 + [True] * 3


@pytest.mark.parametrize("name", ["softcap", "s_aux", "position_bias"])
def test_what_changes_the_scores_is_refused_not_ignored(name: str) -> None:
    states = torch.zeros(1, 2, 1, 4)
    with pytest.raises(NotImplementedError):
        grouped_attention(torch.nn.Identity(), states, states, states, None, **{name: torch.ones(2)})
