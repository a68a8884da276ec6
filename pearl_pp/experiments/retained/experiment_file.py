"""The file of an experiment (configs/experiments/NAME.yaml): its keys, read and checked. No torch in here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pearl_pp.config.reading import Place, fault_in_file, read_yaml
from pearl_pp.errors import UserError
from pearl_pp.simulation.profile import MOST_RANKS

OPTION = "--config"

Count = Annotated[int, Field(ge=1, le=10_000, strict=True)]  # what fits into memory, and somebody could wait for
Ranks = Annotated[int, Field(ge=1, le=MOST_RANKS, strict=True)]
PromptLen = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]
Text = Annotated[str, Field(min_length=1, max_length=4096, strict=True)]
Name = Annotated[str, Field(min_length=1, max_length=200, strict=True)]  # part of what a record is called
Values = Annotated[tuple[int | Name, ...], Field(min_length=1)]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class WorkloadEntry(_Entry):
    """Which prompts.

    Args:
        name: one of the known sets. file: where its JSONL file is.
        num_prompts: the first so many; None is all that the paper takes.
        chat: put prompts into the tokenizer's chat template; "auto" does so where it has one.
        prompt_len: of `tokens`.
    """

    name: Text = "builtin"
    file: Text | None = None
    num_prompts: Count | None = None
    chat: Literal["auto"] | Annotated[bool, Field(strict=True)] = "auto"
    prompt_len: PromptLen | None = None


class RowEntry(_Entry):
    """A row of one's own.

    Args:
        like: the named row that it is but for what follows; None is a run of the engine.
        num_ranks: None is as many as `like` has.
        options: of RunConfig.
        sweep: values of options to choose from, the fastest combination is measured.
        each: values of one option or more, each combination a row for itself.
    """

    name: Name
    like: Text | None = None
    num_ranks: Ranks | None = None
    options: dict[Text, Any] = {}
    sweep: dict[Text, Values] | None = None
    each: dict[Text, Values] = {}


Rows = Annotated[tuple[RowEntry, ...], Field(min_length=1)]


class Published(_Entry):
    """A figure from elsewhere, shown beside ours. retained: in percent. what: of which workload."""

    retained: Annotated[float, Field(gt=0, le=1e6)]
    what: Name = ""


class _WithRows(_Entry):
    rows: Rows | None = None

    @field_validator("rows", mode="before")
    @classmethod
    def _names_are_rows(cls, value: object) -> object:
        """`hop` is short for {name: hop, like: hop}."""
        if not isinstance(value, list | tuple):
            return value
        return tuple({"name": row, "like": row} if isinstance(row, str) else row for row in value)


class CaseEntry(_WithRows):
    """All rows once more, under other circumstances.

    Args:
        target, draft, ranks, prefill_tokens_per_s, link, acceptance: take the place of the emulated profile's.
    """

    name: Name
    num_ranks: Ranks | None = None
    options: dict[Text, Any] = {}
    workload: WorkloadEntry | None = None
    published: Published | None = None
    target: dict[Text, Any] | None = None
    draft: dict[Text, Any] | None = None
    ranks: dict[Text, Any] | None = None
    prefill_tokens_per_s: float | None = None
    link: Any = None
    acceptance: float | None = None

    def profile_changes(self) -> dict[str, Any]:
        """What of the profile is another than in its file."""
        names = ("target", "draft", "ranks", "prefill_tokens_per_s", "link", "acceptance")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


class ExperimentFile(_WithRows):
    """The whole file.

    Args:
        num_ranks: N; `dedicated` has one more.
        rounds: every prompt runs so often in every row.
        warm_up: runs of a row before its first that counts.
        sweep_prompts: prompts that a variant runs with where the fastest is measured.
        options: of RunConfig, for all rows.
    """

    title: Name
    num_ranks: Ranks
    rounds: Count = 3
    warm_up: Annotated[int, Field(ge=0, le=10_000, strict=True)] = 1
    sweep_prompts: Count = 2
    options: dict[Text, Any] = {}
    workload: WorkloadEntry = WorkloadEntry()
    cases: Annotated[tuple[CaseEntry, ...], Field(min_length=1)] | None = None


def read_experiment_file(path: str) -> ExperimentFile:
    """Read and check a file; raises UserError naming the file, the key and the reason."""
    content = read_yaml(OPTION, path)
    try:
        return ExperimentFile.model_validate(content)
    except ValidationError as error:
        raise UserError(OPTION, path, fault_in_file(error, _known, first=1)) from None


_ENTRIES: dict[str, type[BaseModel]] = {"workload": WorkloadEntry, "rows": RowEntry, "cases": CaseEntry}
_INSIDE_CASES = {"workload": WorkloadEntry, "rows": RowEntry, "published": Published}


def _known(place: Place) -> list[str]:
    """The keys there are where the last part of `place` stands."""
    names = [part for part in place[:-1] if isinstance(part, str)]
    if not names:
        return list(ExperimentFile.model_fields)
    inside = _INSIDE_CASES if names[0] == "cases" and len(names) > 1 else _ENTRIES
    return list(inside[names[-1]].model_fields) if names[-1] in inside else []
