"""Freed tensors go back to the system, whatever lives between them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MB = 2**20
ROOT = Path(__file__).resolve().parents[3]

# In a process of its own: the setting stays. Once a large block was freed, glibc serves the next ones from its heap.
SCRIPT = """
import json, sys, torch
from pearl_pp.runtime.host_memory import give_back_large_blocks
from pearl_pp.runtime.memory_meter import Meter
changed = sys.argv[1] == "set" and give_back_large_blocks()
block = lambda size: torch.ones(size // 4)
block(30 * 2**20)
meter = Meter(torch.device("cpu"))
blocks, small = zip(*[(block(8 * 2**20), block(150 * 2**10)) for _ in range(10)])
del blocks
print(json.dumps([changed, meter.bytes_now()]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's setting, and /proc")
def test_small_tensors_do_not_pin_large_ones_that_were_freed() -> None:
    found = {}
    for mode in ("set", "default"):
        run = subprocess.run([sys.executable, "-c", SCRIPT, mode], cwd=ROOT, capture_output=True, text=True, timeout=60)
        found[mode] = json.loads(run.stdout)
    changed, held = found["set"]
    if not changed:
        pytest.skip("this C library has no mallopt")
    assert held < 4 * MB
    assert found["default"][1] > 50 * MB, "without it they do"
