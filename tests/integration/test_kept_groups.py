"""Groups of ranks that are kept alive for many runs: on processes of their own, ended as they should be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError
from pearl_pp.experiments.lines import ProgramFailed
from pearl_pp.experiments.retained import groups as groups_module
from pearl_pp.experiments.retained.groups import Groups
from pearl_pp.experiments.retained.job import ENGINE, HF, HF_PIPELINE, Job
from pearl_pp.runtime.request import Prompt
from tests.integration.commands import MARK, ROOT, still_running

pytestmark = pytest.mark.alone

PROMPT = Prompt(text="def f(x):\n", params=SamplingParams(max_new_tokens=24))
PLAIN = Job(2, ENGINE, {"strategy": "ar"}, PROMPT)


@pytest.fixture(scope="module")
def kept() -> Iterator[Groups]:
    with Groups() as running:
        yield running


@pytest.mark.slow
def test_any_rows_run_in_turn_on_one_group(kept: Groups) -> None:
    expected = kept.run(Job(1, HF, {}, PROMPT))["token_ids"]
    rows = ({"strategy": "ar"}, {"placement": "hop", "gamma": 3}, {"placement": "single"}, {"strategy": "sd"})
    for _ in range(2):
        for options in rows:
            answer = kept.run(Job(2, ENGINE, options, PROMPT))
            assert answer["token_ids"] == expected, options
            assert len(answer["metrics"]["per_rank"]) == 2
    with pytest.raises(UserError, match="--layer-split"):
        kept.run(Job(2, ENGINE, {"layer_split": "1"}, PROMPT))
    assert kept.run(PLAIN)["token_ids"] == expected


@pytest.mark.slow
def test_transformers_pipeline_on_the_ranks_gives_the_same_text(kept: Groups) -> None:
    pytest.importorskip("accelerate")
    answer = kept.run(Job(2, HF_PIPELINE, {}, PROMPT))
    assert answer["token_ids"] == kept.run(PLAIN)["token_ids"]
    assert answer["notes"] == ["transformers' own pipeline (DistributedConfig) on 2 ranks"]


_FAULTY = """
import os, sys
from pearl_pp.experiments import engines, serving_rank
run = engines.Engines.run
def failing(self, options, prompt, trace):
    if options.get("gamma") == 7 and os.environ["RANK"] == "1":
        raise ZeroDivisionError("no such luck")
    return run(self, options, prompt, trace)
engines.Engines.run = failing
sys.exit(serving_rank.main())
"""


@pytest.mark.slow
def test_a_crash_of_one_rank_is_told_by_its_cause_and_the_next_run_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "faulty_rank.py").write_text(_FAULTY)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    program = groups_module.group_program

    def faulty(num_ranks: int, device: str, timeout_s: float) -> list[str]:
        return [word.replace("pearl_pp.experiments.serving_rank", "faulty_rank") for word in program(2, device, 60)]

    monkeypatch.setattr(groups_module, "group_program", faulty)
    with Groups() as running:
        expected = running.run(PLAIN)["token_ids"]
        started = time.monotonic()
        with pytest.raises(ProgramFailed) as failed:
            running.run(Job(2, ENGINE, {"placement": "hop", "gamma": 7}, PROMPT))
        assert time.monotonic() - started < 40
        lines = str(failed.value).splitlines()
        assert lines[0].startswith("2 ranks: ended with exit code") and lines[1] == "rank 1:"
        assert lines[-1] == "ZeroDivisionError: no such luck"
        assert running.run(PLAIN)["token_ids"] == expected


_PARENT = """
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.experiments.retained.groups import Groups
from pearl_pp.experiments.retained.job import ENGINE, Job
from pearl_pp.runtime.request import Prompt
groups = Groups()
def run(num_tokens):
    params = SamplingParams(max_new_tokens=num_tokens, ignore_eos=True)
    options = {"emulate": "configs/profiles/even_c8.yaml", "strategy": "ar"}
    groups.run(Job(2, ENGINE, options, Prompt(token_ids=(0,), params=params)))
run(2)
print("ready", flush=True)
run(10_000)
"""


@pytest.mark.slow
def test_all_ranks_end_when_their_parent_is_killed_in_the_middle_of_a_run() -> None:
    mark = uuid.uuid4().hex
    environment = os.environ | {"PYTHONPATH": str(ROOT), MARK: mark}
    parent = subprocess.Popen([sys.executable, "-c", _PARENT], env=environment, cwd=ROOT, stdout=subprocess.PIPE)
    assert parent.stdout is not None and parent.stdout.readline() == b"ready\n"
    time.sleep(1.0)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while left := still_running(mark):
        assert time.monotonic() < deadline, [process.cmdline() for process in left if psutil.pid_exists(process.pid)]
