"""How much memory a rank has really used, to be compared with what was planned for it."""

from __future__ import annotations

import contextlib
import resource
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_HIGH_WATER = "5"
_INTERVAL_S = 0.001


class Meter:
    """The most memory in use above what the process had when loading began.

    On a GPU the allocator's bytes (the plan's `context`, `buffers` and `reserve` are outside of them). On a CPU
    anonymous pages: not the program's files, nor a checkpoint's, which the kernel may drop at any time. While weights
    are read a thread samples them every millisecond; afterwards the kernel's own high-water mark is read, which costs
    a running request nothing. Where there is no /proc: the resident set's high-water mark.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._loading_peak = 0
        self._files = 0
        self._baseline = self._now()

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Around the loading of weights: what the process has at its start counts as nothing."""
        self._baseline = self._now()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(done,), name="memory", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
            self._start_running()

    def restart(self, held_bytes: int) -> None:
        """Count from here on: what is in use now counts as `held_bytes`, the share of it that is this engine's."""
        self._loading_peak = 0
        self._baseline = self._now() - held_bytes
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._start_running()

    def peak_bytes(self) -> int:
        """The most so far, above the baseline."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) - self._baseline
        return max(self._loading_peak, self._now(), self._high_water()) - self._baseline

    def bytes_now(self) -> int:
        """What is in use above the baseline."""
        return self._now() - self._baseline

    def _watch(self, done: threading.Event) -> None:
        while self._device.type == "cpu" and not done.wait(_INTERVAL_S):
            self._loading_peak = max(self._loading_peak, self._now())

    def _start_running(self) -> None:
        """From here on the kernel keeps the mark; it counts files' pages too, of which hardly any come after this."""
        with contextlib.suppress(OSError):
            _CLEAR_REFS.write_text(_RESET_HIGH_WATER)
            status = _status()
            self._files = status["RssFile"] + status["RssShmem"]

    def _high_water(self) -> int:
        return _status()["VmHWM"] - self._files if self._files else 0

    def _now(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.memory_allocated(self._device)
        if _STATUS.exists():
            return _status()["RssAnon"]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _status() -> dict[str, int]:
    """The sizes in /proc/self/status, in bytes."""
    rows = (line.split() for line in _STATUS.read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if row[2:] == ["kB"]}
