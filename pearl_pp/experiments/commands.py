"""What programs of a measurement are told, as JSON, and how they are started. No torch in here."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pearl_pp.config import RunConfig
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.runtime.request import Prompt

CONTEXT = 100
"""Tokens before a pass that is measured alone."""

OnProgress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""


def prompt_message(prompt: Prompt) -> dict[str, Any]:
    """A prompt as JSON holds it."""
    return asdict(replace(prompt, params=SamplingParams())) | {"params": prompt.params.model_dump(mode="json")}


def prompt_of(message: dict[str, Any]) -> Prompt:
    """The prompt of a message; the inverse of `prompt_message`."""
    fields: dict[str, Any] = message | {"params": SamplingParams(**message["params"])}
    for name in ("messages", "token_ids"):
        if fields[name] is not None:
            fields[name] = tuple(fields[name])
    return Prompt(**fields)


def group_program(config: RunConfig, num_ranks: int) -> list[str]:
    """Arguments after `python -m` that start a group of ranks (`bench_rank`) on this machine."""
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    return [*launcher, "-m", "pearl_pp.experiments.bench_rank", options_text(config)]


def options_text(config: RunConfig) -> str:
    """The options as one argument of a program."""
    return json.dumps(config.record())


def cpu_name() -> str:
    """The processor's name as Linux says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
