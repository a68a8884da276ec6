"""One run of an experiment: what it is called and what is run. No torch in here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pearl_pp.runtime.request import Prompt

SWEEP, MEASURE, ORACLE = "sweep", "measure", "oracle"
ENGINE, HF, HF_ASSISTED, HF_PIPELINE = "engine", "hf", "hf assisted", "hf pipeline"
"""Who makes the text: this project's engine, or transformers alone."""


@dataclass(frozen=True)
class Key:
    """The name of a run, unique in an experiment.

    Args:
        variant: what of the row's sweep it runs with ("gamma 5"); "" where the row has none.
        phase: "measure" where it counts, "sweep" where it helps to choose a variant, "oracle" where it says what
            the text of all rows must be.
        round: from 0.
        prompt: the workload's own name of it ("mt_bench/81/2").
    """

    case: str
    row: str
    variant: str
    phase: str
    round: int
    prompt: str

    def record(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of(record: Mapping[str, Any]) -> Key:
        """The inverse of `record`."""
        return Key(**record)


@dataclass(frozen=True)
class Job:
    """What one run needs.

    Args:
        kind: who makes the text (`ENGINE`, `HF`, ..).
        options: of RunConfig, by their public names.
        trace: the answer holds a Chrome trace.
    """

    num_ranks: int
    kind: str
    options: Mapping[str, Any]
    prompt: Prompt = field(default_factory=Prompt)
    trace: bool = False
