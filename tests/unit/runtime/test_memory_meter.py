"""Memory that was used for a moment is seen, and what was there before is not."""

from __future__ import annotations

import sys

import pytest
import torch

from pearl_pp.runtime.memory_meter import Meter

MB = 2**20
SLACK = 3 * MB  # what the interpreter takes meanwhile, and what the kernel's counters may lag behind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")


def block(megabytes: int) -> torch.Tensor:
    return torch.ones(megabytes * MB // 4)


def test_what_loading_took_for_a_moment_counts_and_what_was_there_does_not() -> None:
    before = block(64)
    meter = Meter(torch.device("cpu"))
    with meter.loading():
        kept = block(48)
        for _ in range(20):  # long enough to be sampled
            block(32)
    assert meter.peak_bytes() == pytest.approx(80 * MB, abs=SLACK)
    assert meter.bytes_now() == pytest.approx(48 * MB, abs=SLACK)
    del before, kept


def test_what_a_run_takes_for_a_moment_counts_without_being_sampled() -> None:
    meter = Meter(torch.device("cpu"))
    with meter.loading():
        kept = block(32)
    block(96)
    assert meter.peak_bytes() == pytest.approx(128 * MB, abs=SLACK)
    assert meter.bytes_now() == pytest.approx(32 * MB, abs=SLACK)
    del kept


def test_pages_of_files_do_not_count(tmp_path: object) -> None:
    file = f"{tmp_path}/numbers"
    block(64).numpy().tofile(file)
    meter = Meter(torch.device("cpu"))
    with meter.loading():
        mapped = torch.from_file(file, size=64 * MB // 4)
        mapped.sum()
    assert meter.peak_bytes() < SLACK
