"""Run by test_checkpoint_memory on each rank: loads a model and says how much memory that took at most.

torchrun ... measured_load.py TARGET_FOLDER RESULTS_FOLDER
"""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import deepspeed  # noqa: F401  (imported late by the engine; its memory is not the checkpoint's)
import transformers.models.llama.modeling_llama  # noqa: F401

from pearl_pp import PearlPP
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.runtime.request import Prompt

_INTERVAL_S = 0.001


def anonymous_bytes() -> int:
    """Resident pages that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not tell RssAnon")


@contextmanager
def watched(peak: list[int]) -> Iterator[None]:
    """Appends the highest value seen in the block, sampled every millisecond by another thread."""
    done = threading.Event()
    highest = anonymous_bytes()

    def watch() -> None:
        nonlocal highest
        while not done.wait(_INTERVAL_S):
            highest = max(highest, anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        peak.append(max(highest, anonymous_bytes()))


def main() -> None:
    target, results = sys.argv[1:]
    baseline = anonymous_bytes()
    peaks: list[int] = []
    with watched(peaks):
        engine = PearlPP(target=target, strategy="ar", device="cpu")
    loaded = anonymous_bytes()
    prompt = Prompt(token_ids=(1, 2, 3), params=SamplingParams(max_new_tokens=4, ignore_eos=True))
    (output,) = engine.generate([prompt])
    figures = {
        "baseline": baseline,
        "peak": peaks[0] - baseline,
        "loaded": loaded - baseline,
        "token_ids": output.token_ids,
    }
    (Path(results) / f"{engine.rank}.json").write_text(json.dumps(figures))
    engine.close()


if __name__ == "__main__":
    main()
