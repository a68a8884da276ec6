"""Run by test_checkpoint_memory on each rank: loads a model and says how much memory that took at most.

torchrun ... measured_load.py TARGET_FOLDER RESULTS_FOLDER
"""

import json
import sys
from pathlib import Path

import deepspeed  # noqa: F401  (imported late by the engine; its memory is not the checkpoint's)
import torch
import transformers.models.llama.modeling_llama  # noqa: F401

from pearl_pp import PearlPP
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.runtime.memory_meter import Meter
from pearl_pp.runtime.request import Prompt


def main() -> None:
    target, results = sys.argv[1:]
    meter = Meter(torch.device("cpu"))
    with meter.loading():
        engine = PearlPP(target=target, strategy="ar", device="cpu")
    peak, loaded = meter.peak_bytes(), meter.bytes_now()
    prompt = Prompt(token_ids=(1, 2, 3), params=SamplingParams(max_new_tokens=4, ignore_eos=True))
    (output,) = engine.generate([prompt])
    figures = {"peak": peak, "loaded": loaded, "token_ids": output.token_ids}
    (Path(results) / f"{engine.rank}.json").write_text(json.dumps(figures))
    engine.close()


if __name__ == "__main__":
    main()
