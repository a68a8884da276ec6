"""Cutting, growing, and moving entries between replicas that are cut differently."""

from pathlib import Path

import pytest
import torch

from tests.unit.stages.tiny import Pipeline


def test_entries_shipped_to_a_replica_cut_differently_continue_the_text(
    llama_dir: Path, token_ids: torch.Tensor, llama_logits: torch.Tensor
) -> None:
    one, other = Pipeline(llama_dir, [(0, 1), (1, 4)]), Pipeline(llama_dir, [(0, 3), (3, 4)])
    one.run(token_ids[:20], 0)
    other.run(token_ids[:12], 0)
    ranges = [(0, 1), (1, 3), (3, 4)]  # the coarsest that both cuts have
    for start, end in ranges:
        sender = next(s.cache for s in one.stages if s.start <= start and end <= s.end)
        receiver = next(s.cache for s in other.stages if s.start <= start and end <= s.end)
        entries = sender.export_range(start, end, 12, 20)
        assert entries.is_contiguous() and entries.shape == receiver.entry_shape(start, end, 8)
        assert entries.shape == (end - start, 2, 2, 8, 16)
        receiver.import_range(start, end, 12, entries.clone())
    assert [s.cache.length for s in other.stages] == [20, 20]
    logits = other.run(token_ids[20:], 20)
    torch.testing.assert_close(logits, llama_logits[20:], rtol=0, atol=1e-5)


def test_an_export_is_a_copy(llama_dir: Path, token_ids: torch.Tensor) -> None:
    stage = Pipeline(llama_dir, [(0, 4)]).stages[0]
    stage.run(token_ids[:8], 0)
    entries = stage.cache.export_range(0, 4, 2, 8)
    before = entries.clone()
    stage.run(token_ids[8:16], 0)
    assert torch.equal(entries, before)


def test_bytes_per_token_are_those_of_the_entries(llama_dir: Path, token_ids: torch.Tensor) -> None:
    from pearl_pp.stages.source import open_model

    cache = Pipeline(llama_dir, [(1, 4)]).stages[0].cache
    assert cache.bytes_per_token == 3 * 2 * 2 * 16 * 4
    assert open_model(llama_dir, "--draft").kv_bytes_per_token(torch.float32) == 4 * 2 * 2 * 16 * 4


def test_what_does_not_fit_is_refused(llama_dir: Path, token_ids: torch.Tensor) -> None:
    stage = Pipeline(llama_dir, [(0, 2)], max_len=20).stages[0]
    cache = stage.cache
    stage.run(token_ids[:10], 0)
    with pytest.raises(ValueError, match="cannot cut"):
        cache.cut(11)
    with pytest.raises(ValueError, match=r"\[8, 11\)"):
        cache.export_range(0, 2, 8, 11)
    with pytest.raises(ValueError, match=r"layers \[1, 3\)"):
        cache.export_range(1, 3, 0, 4)
    entries = cache.export_range(0, 2, 0, 4)
    with pytest.raises(ValueError, match="position 4 cannot follow 10"):
        cache.import_range(0, 2, 4, entries)
    cache.cut(4)
    cache.import_range(0, 1, 4, entries[:1])
    assert cache.length == 4  # the other layer's are still to come
    cache.import_range(1, 2, 4, entries[1:])
    assert cache.length == 8
    cache.reset(max_len=9)
    assert cache.length == 0
    with pytest.raises(ValueError, match="10 positions do not fit"):
        cache.reserve(10)
