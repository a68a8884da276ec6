"""Checks this machine's GPUs and prints one table. Exit code 1: a row failed; 2: no GPU here.

Started by launch/check_gpus.sh. `--rehearse-on-cpu` runs the same checks on the CPU, to see that they work.
"""

import argparse
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rehearse-on-cpu", action="store_true")
    rehearsal = parser.parse_args(argv).rehearse_on_cpu
    if not rehearsal and not torch.cuda.is_available():
        print(f"check_gpus: no CUDA device here (torch {torch.__version__} sees none); nothing was checked")
        return 2
    from tests.gpu.checks import (  # imports much, which a machine without a GPU need not wait for
        CHECKS,
        rows_of,
    )

    started = time.monotonic()
    rows = []
    for check in CHECKS:
        new = rows_of(check, "cpu" if rehearsal else "cuda")
        for row in new:
            print(f"{row.status:8}{row.name:44}{row.detail}", flush=True)
        rows += new
    counts = {status: sum(row.status == status for row in rows) for status in ("pass", "fail", "skipped")}
    where = "rehearsed on the CPU: says nothing about GPUs; " if rehearsal else ""
    print(f"{where}{counts['pass']} passed, {counts['fail']} failed, {counts['skipped']} skipped", end="")
    print(f" in {time.monotonic() - started:.0f} s")
    return 1 if counts["fail"] else 0


if __name__ == "__main__":
    sys.exit(main())
