"""Every option of a run changes what a run does, not the configuration alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pearl_pp.config import OPTIONS
from tests.integration import option_checks as checks
from tests.integration.conftest import ClusterOf, PairOf
from tests.integration.option_checks import Bench

CHECKS: dict[str, Callable[[Bench], None]] = {
    "temperature": checks.temperature,
    "top_k": checks.only_the_likeliest("top_k", 1),
    "top_p": checks.only_the_likeliest("top_p", 1e-6),
    "min_p": checks.only_the_likeliest("min_p", 1.0),
    "repetition_penalty": checks.repetition_penalty,
    "seed": checks.seed,
    "max_new_tokens": checks.max_new_tokens,
    "min_new_tokens": checks.min_new_tokens,
    "stop": checks.stop,
    "ignore_eos": checks.ignore_eos,
    "logprobs": checks.logprobs,
    "target": checks.target,
    "draft": checks.draft,
    "trust_remote_code": checks.trust_remote_code,
    "emulate": checks.emulate,
    "prompt": checks.prompt,
    "prompts": checks.prompts,
    "chat": checks.chat,
    "strategy": checks.changes_the_schedule("pearl", "sd", "ar", gamma=4)("strategy"),
    "placement": checks.placement,
    "gamma": checks.changes_the_schedule(2, 5)("gamma"),
    "fill": checks.changes_the_schedule(1, 3, placement="pipelined", gamma=4)("fill"),
    "verify_interval": checks.changes_the_schedule(2, 3, placement="pipelined", gamma=4)("verify_interval"),
    "layer_split": checks.layer_split,
    "handoff": checks.handoff,
    "prefill_piece": checks.prefill_piece,
    "no_pre_verify": checks.changes_the_schedule(False, True, gamma=4)("no_pre_verify"),
    "no_post_verify": checks.changes_the_schedule(False, True, gamma=4)("no_post_verify"),
    "verify": checks.verify,
    "max_model_len": checks.max_model_len,
    "dtype": checks.dtype,
    "device": checks.device,
    "memory_gb": checks.memory_gb,
    "gpu_memory_utilization": checks.gpu_memory_utilization,
    "timeout": checks.timeout,
    "json": checks.writes_a_file("json"),
    "trace": checks.writes_a_file("trace"),
    "quiet": checks.quiet,
}


def test_every_option_has_a_check() -> None:
    assert CHECKS.keys() == OPTIONS.keys()


@pytest.mark.case("U3")
@pytest.mark.parametrize("option", CHECKS)
def test_an_option_changes_what_a_run_does(option: str, tmp_path: Path, pair_of: PairOf, cluster_of: ClusterOf) -> None:
    CHECKS[option](Bench(tmp_path, pair_of, cluster_of))
