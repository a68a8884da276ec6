"""Groups of ranks that answer at once, and an experiment for them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pearl_pp.experiments.retained.experiment import Experiment
from pearl_pp.experiments.retained.job import Job, Key
from pearl_pp.experiments.retained.resolving import Limits, open_experiment
from pearl_pp.experiments.retained.runner import Runner
from pearl_pp.experiments.retained.store import Store, read_records

CONTENT: dict[str, Any] = {
    "title": "a",
    "num_ranks": 2,
    "rounds": 2,
    "warm_up": 1,
    "options": {"max_new_tokens": 4},
    "workload": {"name": "builtin", "num_prompts": 2},
    "rows": ["ar", {"name": "sd", "like": "sd", "sweep": {"gamma": [3, 4, 5]}}, "dedicated", "hf"],
}
CONTENT["rows"][2] = {"name": "dedicated", "like": "dedicated", "options": {"gamma": 3}}


def metrics_of(num_tokens: int, seconds: float) -> dict[str, Any]:
    counts = {"num_output_tokens": num_tokens, "num_decode_tokens": num_tokens - 1, "ttft_s": 0.5}
    return counts | {"decode_s": seconds, "decode_tokens_per_s": (num_tokens - 1) / seconds}


@dataclass
class FakeGroups:
    """Answers at once; gamma 4 is fastest. `fault` may raise in its place, or change the answer."""

    fault: Callable[[Job, dict[str, Any]], None] = lambda job, answer: None
    jobs: list[Job] = field(default_factory=list)

    def run(self, job: Job) -> dict[str, Any]:
        self.jobs.append(job)
        ids = [len(job.prompt.text or "") % 7] * job.prompt.params.max_new_tokens
        seconds = 1.0 if job.options.get("gamma") == 4 else 2.0
        answer = {
            "token_ids": ids,
            "prompt_token_ids": [1, 2, 3],
            "text": "a text",
            "finish_reason": "length",
            "metrics": metrics_of(len(ids), seconds),
            "plan": None,
            "versions": {},
            "machine": {},
            "mode": "emulated" if "emulate" in job.options else "real",
            "gamma": None,
            "notes": [],
            "trace": {"traceEvents": []} if job.trace else None,
        }
        if "emulate" in job.options:
            answer["simulated_tokens_per_s"] = 20.0
        self.fault(job, answer)
        return answer


def experiment_of(folder: Path, limits: Limits | None = None, **changes: Any) -> Experiment:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(CONTENT | changes))
    return open_experiment(str(path), limits or Limits())


def run(experiment: Experiment, out: Path, groups: FakeGroups, one_group: bool = False) -> None:
    with Store(out, experiment) as store:
        Runner(experiment, store, groups, one_group=one_group).run()


def keys(out: Path, phase: str = "measure") -> list[Key]:
    return [key for record in read_records(out) if (key := Key.of(record["key"])).phase == phase]
