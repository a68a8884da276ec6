"""What programs of a measurement are told, as JSON, and how they are started. No torch in here."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pearl_pp.config import RunConfig
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.experiments.lines import Program
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


def group_program(num_ranks: int, device: str, timeout_s: float) -> list[str]:
    """Arguments after `python -m` that start a group of ranks (`serving_rank`) on this machine.

    Args:
        device: auto, cpu or cuda.
        timeout_s: longest wait for a message of another rank.
    """
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    return [*launcher, "-m", "pearl_pp.experiments.serving_rank", device, f"{timeout_s:g}"]


def start_group(name: str, config: RunConfig, num_ranks: int) -> Program:
    """Ranks that run `config` alone; the program's first answer describes them."""
    program = Program(name, group_program(num_ranks, config.run_device, config.timeout))
    program.tell({"open": {"options": config.record()}})
    return program


_OF_THE_CONSOLE = ("prompt", "prompts", "chat", "json", "trace", "quiet")


def run_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those that only the console follows: a rank is given its prompts, and writes nothing."""
    return {name: value for name, value in options.items() if name not in _OF_THE_CONSOLE}


def machine_record(device: str, num_cores: int) -> dict[str, Any]:
    """Where and under which load a run was made; `num_cores` that its processes may use."""
    load = os.getloadavg()[0]
    return {
        "cpu": cpu_name(),
        "cores": num_cores,
        "device": device,
        "hostname": socket.gethostname(),
        "load": load,
    }


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
