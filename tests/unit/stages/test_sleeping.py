"""The sleeping stage: a stage's interface and sizes, a profile's times."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from pearl_pp.stages.sleeping import Sleeper, SleepingSource, SleepingStage

SOURCE = SleepingSource(Path("p.yaml"), "--emulate", 8, 64, 1000, 4096, "")


def stage(start: int = 0, end: int = 4, seconds: float = 0.0, sleeper: Sleeper | None = None) -> SleepingStage:
    made = SleepingStage(
        SOURCE,
        start,
        end,
        duration=lambda num_tokens: seconds * num_tokens,
        sleeper=sleeper or Sleeper(),
        weight_bytes=10,
        kv_bytes_per_layer=256,
    )
    made.reset(100)
    return made


def ids(num_tokens: int) -> torch.Tensor:
    return torch.zeros(num_tokens, dtype=torch.int64)


def test_outputs_have_the_shapes_of_a_stage() -> None:
    first, last = stage(), stage(4, 8)
    hidden = first.run(ids(3), 0)
    assert (hidden.shape, hidden.dtype) == ((3, 64), torch.bfloat16)
    assert last.run(hidden, 0, num_logits=2).shape == (2, 1000)
    assert last.run(hidden, 3).shape == (0, 1000)


def test_the_cache_counts_positions_and_refuses_holes() -> None:
    made = stage()
    made.run(ids(5), 0)
    made.run(ids(2), 3)
    assert made.cache.length == 5
    with pytest.raises(ValueError, match="cannot cut a KV cache of 5 positions to 6"):
        made.run(ids(1), 6)
    with pytest.raises(ValueError, match="101 positions do not fit"):
        made.run(ids(96), 5)
    made.reset(100)
    assert made.cache.length == 0


def test_entries_travel_with_their_real_size() -> None:
    source, destination = stage(2, 6), stage(4, 8)
    source.run(ids(9), 0)
    destination.run(ids(7), 0)
    entries = source.cache.export_range(4, 6, 7, 9)
    assert entries.nbytes == 2 * 2 * 256
    assert entries.shape == destination.cache.entry_shape(4, 6, 2)
    destination.cache.import_range(4, 6, 7, entries)
    assert destination.cache.length == 7, "the range does not end with the last layer"
    destination.cache.import_range(6, 8, 7, entries)
    assert destination.cache.length == 9
    assert (source.cache.bytes_per_token, source.cache.dtype) == (4 * 256, torch.uint8)
    with pytest.raises(ValueError, match=r"positions \[7, 10\)"):
        source.cache.export_range(4, 6, 7, 10)
    with pytest.raises(ValueError, match="cannot follow"):
        destination.cache.import_range(4, 8, 7, entries)


def test_a_pass_takes_its_time() -> None:
    made = stage(seconds=0.005)
    start = time.perf_counter()
    made.run(ids(4), 0)
    assert 0.020 <= time.perf_counter() - start < 0.060


def test_overruns_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer that is 1 ms late every time costs 1 ms in all."""
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def late(seconds: float) -> None:
        clock[0] += seconds + 0.001

    monkeypatch.setattr(time, "sleep", late)
    made = stage(seconds=0.020)
    for position in range(50):
        made.run(ids(1), position)
    assert clock[0] == pytest.approx(50 * 0.020 + 0.001, abs=1e-6)
    assert made.overrun_s == pytest.approx(50 * 0.001)


def test_a_long_stall_is_made_up_for_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stalls = [0.0], [0.1]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def sleep(seconds: float) -> None:
        clock[0] += seconds + (stalls.pop() if stalls else 0.0)

    monkeypatch.setattr(time, "sleep", sleep)
    sleeper = Sleeper()
    made = stage(seconds=0.020, sleeper=sleeper)
    made.run(ids(1), 0)
    assert clock[0] == pytest.approx(0.120)
    made.run(ids(1), 1)
    assert clock[0] == pytest.approx(0.120 + 0.018)
    made.reset(100)  # a new request owes nothing
    made.run(ids(1), 0)
    assert clock[0] == pytest.approx(0.138 + 0.020)
