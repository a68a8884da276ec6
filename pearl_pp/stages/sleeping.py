"""The sleeping stage of emulated runs (DESIGN section 10): it takes a pass's time and computes nothing."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

# The share of a pass by which it may be shortened for sleeps that overran before it. Chosen, not measured: all overruns
# of a run are 0.4-1.4 % of its time on an idle machine, which a tenth pays back within the next pass or two, and no
# pass is ever more than a tenth away from the profile's time.
CREDIT = 0.1


@dataclass(frozen=True)
class SleepingSource:
    """What the engine asks of a model folder, answered by a profile."""

    path: Path
    option: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    max_positions: int
    fingerprint: str

    model_type = "emulated"
    eos_token_ids: frozenset[int] = frozenset()


class Sleeper:
    """Stands in for one rank's device.

    A sleep ends late by the timer's slack and the scheduler's whims. What it ended late by is taken off the
    next sleeps (at most a tenth of each), so that overruns do not add up; everything else a rank does between
    its passes still costs what it costs.
    """

    def __init__(self) -> None:
        self._owed = 0.0

    def sleep(self, seconds: float) -> float:
        """Sleep to a deadline `seconds` from now, or slightly sooner; returns by how much it was missed."""
        credit = min(self._owed, CREDIT * seconds)
        deadline = time.perf_counter() + seconds - credit
        while (remaining := deadline - time.perf_counter()) > 0:
            time.sleep(remaining)
        overrun = time.perf_counter() - deadline
        self._owed += overrun - credit
        return overrun

    def reset(self) -> None:
        self._owed = 0.0


class SleepingCache:
    """The length and the byte size of a `KVCache`; its entries are blank.

    Entries travel as bytes, uint8 [layers, 1, 1, positions, bytes per layer].
    """

    dtype = torch.uint8

    def __init__(self, first_layer: int, num_layers: int, bytes_per_layer: int) -> None:
        self.first_layer = first_layer
        self.num_layers = num_layers
        self.length = 0
        self.max_len = 0
        self._bytes_per_layer = bytes_per_layer
        self._blank = _Blank()

    @property
    def bytes_per_token(self) -> int:
        return self.num_layers * self._bytes_per_layer

    def reset(self, max_len: int) -> None:
        self.length = 0
        self.max_len = max_len

    def cut(self, length: int) -> None:
        """Keep the first `length` positions. Raises ValueError if there are fewer."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot cut a KV cache of {self.length} positions to {length}")
        self.length = length

    def extend(self, end: int) -> None:
        """Append positions up to `end`. Raises ValueError beyond the longest sequence."""
        if end > self.max_len:
            raise ValueError(f"{end} positions do not fit a KV cache made for {self.max_len}")
        self.length = end

    def entry_shape(self, layer_start: int, layer_end: int, num_positions: int) -> tuple[int, ...]:
        return (layer_end - layer_start, 1, 1, num_positions, self._bytes_per_layer)

    def export_range(self, layer_start: int, layer_end: int, start: int, end: int) -> torch.Tensor:
        """Blank entries of positions [start, end). Raises ValueError outside what is held."""
        if not 0 <= start <= end <= self.length:
            raise ValueError(f"positions [{start}, {end}) are not in a KV cache of {self.length}")
        self._check_layers(layer_start, layer_end)
        return self._blank.tensor(self.entry_shape(layer_start, layer_end, end - start), self.dtype)

    def import_range(self, layer_start: int, layer_end: int, start: int, entries: torch.Tensor) -> None:
        """Append entries at `start` == `length`, as `KVCache.import_range` does."""
        if start != self.length:
            raise ValueError(f"entries of position {start} cannot follow {self.length} held ones")
        self._check_layers(layer_start, layer_end)
        if layer_end == self.first_layer + self.num_layers:
            self.extend(start + entries.shape[3])

    def _check_layers(self, layer_start: int, layer_end: int) -> None:
        first, end = self.first_layer, self.first_layer + self.num_layers
        if not first <= layer_start < layer_end <= end:
            raise ValueError(f"layers [{layer_start}, {layer_end}) are not in [{first}, {end})")


class SleepingStage(nn.Module):
    """Layers [start, end) of a model that is not there: the interface of `Stage`, outputs of its shapes.

    Args:
        duration: number of positions -> seconds of a pass of these layers.
        sleeper: of this rank, shared by all its stages.
        weight_bytes, kv_bytes_per_layer: what the profile says (KV of one position).
    """

    def __init__(
        self,
        source: SleepingSource,
        start: int,
        end: int,
        *,
        duration: Callable[[int], float],
        sleeper: Sleeper,
        weight_bytes: int,
        kv_bytes_per_layer: int,
    ) -> None:
        super().__init__()
        self.start = start
        self.end = end
        self.is_first = start == 0
        self.is_last = end == source.num_layers
        self.hidden_size = source.hidden_size
        self.vocab_size = source.vocab_size
        self.dtype = torch.bfloat16
        self.device = torch.device("cpu")
        self.weight_bytes = weight_bytes
        self.held_bytes = 0
        self.cache = SleepingCache(start, end - start, kv_bytes_per_layer)
        self.overrun_s = 0.0
        self.duration = duration
        self._sleeper = sleeper
        self._blank = _Blank()

    def reset(self, max_len: int) -> None:
        """Begin a new sequence of at most `max_len` positions."""
        self.cache.reset(max_len)
        self._sleeper.reset()
        self.overrun_s = 0.0

    def run(self, inputs: torch.Tensor, start_pos: int, *, num_logits: int = 0) -> torch.Tensor:
        """One pass over the positions start_pos .. start_pos + n - 1; see `Stage.run`. The output is blank."""
        num_tokens = inputs.shape[0]
        self.cache.cut(start_pos)
        self.cache.extend(start_pos + num_tokens)
        self.overrun_s += self._sleeper.sleep(self.duration(num_tokens))
        if not self.is_last:
            return self._blank.tensor((num_tokens, self.hidden_size), self.dtype)
        # Nobody reads these rows, so they need no memory.
        return torch.zeros(()).expand(num_logits, self.vocab_size)


class _Blank:
    """Zeros that are never written to: one buffer serves every message."""

    def __init__(self) -> None:
        self._buffer = torch.zeros(0, dtype=torch.uint8)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        num_bytes = dtype.itemsize
        for size in shape:
            num_bytes *= size
        if num_bytes > self._buffer.numel():
            self._buffer = torch.zeros(2 * num_bytes, dtype=torch.uint8)
        return self._buffer[:num_bytes].view(dtype).view(shape)
