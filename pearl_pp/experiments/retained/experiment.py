"""An experiment, ready to be run: every case with its prompts, and every row with its options. No torch in here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pearl_pp.config import RunConfig, run_config
from pearl_pp.experiments.retained.rows import Variant
from pearl_pp.experiments.retained.workloads import Workload
from pearl_pp.simulation.profile import Profile

RECORD_FORMAT = 1
"""Of results.jsonl; raised when a record of before cannot stand beside one of now."""


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Args:
        kind: who makes the text.
        options: all of RunConfig but those of the variants, by their public names.
        variants: of which the fastest is measured; one where there is nothing to choose.
        planned: the planner chooses, by the profile.
    """

    name: str
    num_ranks: int
    kind: str
    options: Mapping[str, Any]
    variants: tuple[Variant, ...]
    planned: bool = False

    def config(self, variant: Variant) -> RunConfig:
        return run_config({**self.options, **variant.options})


@dataclass(frozen=True)
class Case:
    """Rows that are compared with each other.

    Args:
        options: of RunConfig, that all rows have.
        profile: of an emulated case. new_profile: what its file holds, where the case changes it.
        prompts_limit: only so many items of the workload are run; None is all.
    """

    name: str
    num_ranks: int
    options: Mapping[str, Any]
    rows: tuple[Row, ...]
    workload: Workload
    chat: bool
    published: Mapping[str, Any] | None
    profile: Profile | None
    new_profile: Mapping[str, Any] | None
    prompts_limit: int | None = None

    @property
    def is_emulated(self) -> bool:
        return self.profile is not None

    @property
    def config(self) -> RunConfig:
        return run_config(self.options)


@dataclass(frozen=True)
class Experiment:
    """Args: digest: equal where records may stand beside each other. content: the file as read."""

    name: str
    title: str
    digest: str
    rounds: int
    warm_up: int
    sweep_prompts: int
    cases: tuple[Case, ...]
    content: Mapping[str, Any]

    def record(self) -> dict[str, Any]:
        """experiment.json: what is run, and the order of its cases and rows."""
        return {
            "format": RECORD_FORMAT,
            "name": self.name,
            "title": self.title,
            "digest": self.digest,
            "rounds": self.rounds,
            "warm_up": self.warm_up,
            "cases": [
                {
                    "name": case.name,
                    "num_ranks": case.num_ranks,
                    "mode": case.config.mode,
                    "published": case.published,
                    "rows": [row.name for row in case.rows],
                }
                for case in self.cases
            ],
            "file": self.content,
        }
