"""From an experiment's file and the files it names to an `Experiment`; all that can be checked is checked here."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pearl_pp.config import RunConfig, option_name, read_placement_file, read_profile, run_config
from pearl_pp.config.profile_file import check_profile
from pearl_pp.config.reading import nearest, one_line, read_yaml
from pearl_pp.config.shape_file import PREFIX, find_shape, read_shape
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError
from pearl_pp.experiments.retained.experiment import RECORD_FORMAT, Case, Experiment, Row
from pearl_pp.experiments.retained.experiment_file import (
    OPTION,
    CaseEntry,
    ExperimentFile,
    RowEntry,
    WorkloadEntry,
    read_experiment_file,
)
from pearl_pp.experiments.retained.job import ENGINE
from pearl_pp.experiments.retained.rows import GAMMAS, ROWS, RowSpec, combinations, variant_name, variants
from pearl_pp.experiments.retained.workloads import DEFAULT_PROMPT_LEN, Workload, load_workload, wants_chat
from pearl_pp.simulation.profile import Profile

DEFAULT_SEED = 0
MAX_COMBINATIONS = 1000  # of the values that a row is run with
MAX_GAMMAS = 64  # that a row is chosen from

# Options of a run that mean nothing here, and what to do instead.
_REFUSED = {
    "prompt": "prompts come from the workload",
    "prompts": "prompts come from the workload",
    "chat": "say chat in the workload",
    "json": "results go to --out",
    "trace": "results go to --out",
    "quiet": "is for texts, and none are printed here",
    "trust_remote_code": "no file decides that code of a model runs",
}


@dataclass(frozen=True)
class Limits:
    """What a command line makes of an experiment: fewer prompts, some of the rows, another number of rounds.

    Args:
        each: other values for an option that rows of the file run with `each` of.
    """

    rounds: int | None = None
    prompts: int | None = None
    rows: tuple[str, ...] | None = None
    each: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)


def open_experiment(path: str, limits: Limits = Limits()) -> Experiment:
    """Reads and checks an experiment and all files that it names; raises UserError, one line."""
    file = read_experiment_file(path)
    for option, values in limits.each.items():
        file = _with_values(path, file, option, values)
    name = Path(path).stem
    entries = file.cases or (CaseEntry(name=name),)
    _require_unique(path, "cases", [entry.name for entry in entries])
    cases = [_Resolver(path, file, entry).case() for entry in entries]
    content = file.model_dump(mode="json", exclude_defaults=True)
    return Experiment(
        name,
        file.title,
        _digest(content, cases),
        limits.rounds or file.rounds,
        file.warm_up,
        file.sweep_prompts,
        tuple(_limited(path, cases, limits)),
        content,
    )


def _with_values(path: str, file: ExperimentFile, option: str, values: tuple[int | str, ...]) -> ExperimentFile:
    """The file with other values of an option where a row runs with each of them."""

    def changed(rows: tuple[RowEntry, ...] | None) -> tuple[RowEntry, ...] | None:
        return rows and tuple(
            row.model_copy(update={"each": {**row.each, option: values}}) if option in row.each else row for row in rows
        )

    cases = file.cases and tuple(case.model_copy(update={"rows": changed(case.rows)}) for case in file.cases)
    result = file.model_copy(update={"rows": changed(file.rows), "cases": cases})
    if result == file and not any(option in row.each for row in file.rows or ()):
        raise UserError(OPTION, path, f"has no row that runs with each of several values of {option}")
    return result


def _limited(path: str, cases: Sequence[Case], limits: Limits) -> Iterator[Case]:
    """The cases with the rows and prompts that are wanted alone; raises UserError for a row that none has."""
    there = list(dict.fromkeys(row.name for case in cases for row in case.rows))
    wanted = there if limits.rows is None else limits.rows
    for row in wanted:
        if row not in there:
            hint = nearest(row, there) or f"; there are {', '.join(there)}"
            raise UserError("--rows", row or None, f"no such row in {path}{hint}")
    for case in cases:
        rows = tuple(row for row in case.rows if row.name in wanted)
        if rows:
            yield replace(case, rows=rows, prompts_limit=limits.prompts)


def _digest(content: Mapping[str, Any], cases: Sequence[Case]) -> str:
    """Of everything that decides what a run is: the file, and what the files it names hold."""
    ways = [{**row.options, **way.options} for case in cases for row in case.rows for way in row.variants]
    files, shapes = (
        sorted({name for way in ways if (name := str(way.get(option, ""))).endswith((".yaml", ".yml"))})
        for option in ("placement", "target")
    )
    shapes = [name for name in shapes if name.startswith(PREFIX)]
    what = {
        "format": RECORD_FORMAT,
        "file": {key: value for key, value in content.items() if key not in ("title", "rounds")},
        "profiles": [case.profile.model_dump(mode="json") for case in cases if case.profile is not None],
        "placements": [read_placement_file(name).model_dump(mode="json") for name in files],
        "workloads": [[asdict(item) for item in case.workload.items] for case in cases],
    }
    if shapes:
        what["shapes"] = [read_shape(find_shape(name, "--target"), "--target").model_dump() for name in shapes]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def _require_unique(path: str, what: str, names: Sequence[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(OPTION, path, f"{what}: {one_line(twice)} is there twice")


class _Resolver:
    """One case of a file."""

    def __init__(self, path: str, file: ExperimentFile, entry: CaseEntry) -> None:
        self._path = path
        self._file = file
        self._entry = entry
        self._num_ranks = entry.num_ranks or file.num_ranks
        self._place = f"{OPTION} {path}: case {one_line(entry.name)}"

    def case(self) -> Case:
        """Raises UserError for the first thing that could not be run."""
        given = self._named(self._file.options) | self._named(self._entry.options)
        changes = self._entry.profile_changes()
        profile = new_profile = None
        if "emulate" in given:
            path = str(given["emulate"])
            profile = read_profile(path)
            if changes:
                new_profile = self._changed(path, changes)
                profile = check_profile(new_profile, path, self._place)
        elif changes:
            raise UserError(self._place, next(iter(changes)), "changes a profile, and none is emulated")
        workload = self._workload(self._entry.workload or self._file.workload)
        if workload.max_new_tokens is not None:
            given.setdefault("max_new_tokens", workload.max_new_tokens)
        config = self._config(given, self._place)
        if config.seed is None:
            given["seed"] = DEFAULT_SEED
        if workload.name == "tokens" and not config.emulate:
            raise UserError(self._place, None, "workload tokens has no text; it is for emulated runs")
        rows = self._rows(given, profile)
        chat = (self._entry.workload or self._file.workload).chat
        published = self._entry.published
        return Case(
            self._entry.name,
            self._num_ranks,
            given,
            tuple(rows),
            workload,
            wants_chat(chat, config.target) and not config.emulate,
            None if published is None else published.model_dump(mode="json"),
            profile,
            new_profile,
        )

    def _named(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """By their public names."""
        named: dict[str, Any] = {}
        for key, value in options.items():
            name = option_name(key, f"{self._place}: {key}")
            if name in named:
                raise UserError(f"{self._place}: {key}", one_line(value), f"is given twice, also as {name}")
            named[name] = value
        for name, reason in _REFUSED.items():
            if name in named:
                raise UserError(f"{self._place}: {name}", None, reason)
        return named

    def _of_row(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """By their public names. What decides the text, and the machine, are the same for all rows of a case."""
        named = self._named(options)
        if "emulate" in named:
            reason = "is not a row's own, rows are compared on one machine: say it in options of the file or of a case"
            raise UserError(f"{self._place}: emulate", None, reason)
        for name in named:
            if name in SamplingParams.model_fields:
                reason = "is not a row's own, all rows make the same texts: say it in options of the file or of a case"
                raise UserError(f"{self._place}: {name}", None, reason)
        return named

    def _changed(self, path: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The profile's file with the case's values in the place of its own."""
        content = read_yaml("--emulate", path)
        for name, value in changes.items():
            before = content.get(name)
            content[name] = before | value if isinstance(before, dict) and isinstance(value, dict) else value
        return content | {"name": f"{content['name']}, {self._entry.name}"}

    def _workload(self, entry: WorkloadEntry) -> Workload:
        return load_workload(entry.name, entry.file, entry.num_prompts, entry.prompt_len or DEFAULT_PROMPT_LEN)

    def _config(self, options: Mapping[str, Any], place: str) -> RunConfig:
        return run_config(options, {name: f"{place}: {name}" for name in options})

    def _rows(self, given: Mapping[str, Any], profile: Profile | None) -> list[Row]:
        entries = self._entry.rows or self._file.rows
        if entries is None:
            raise UserError(self._place, None, "has no rows, and neither has the file")
        rows = [row for entry in entries for row in self._expanded(entry, given, profile)]
        _require_unique(self._path, "rows", [row.name for row in rows])
        return rows

    def _expanded(self, entry: RowEntry, given: Mapping[str, Any], profile: Profile | None) -> Iterator[Row]:
        """The row of an entry, or one for each of the values in `each`."""
        if entry.like is not None and entry.like not in ROWS:
            reason = f"no such row{nearest(entry.like, ROWS) or '; there are ' + ', '.join(ROWS)}"
            raise UserError(f"{OPTION} {self._path}: rows", one_line(entry.like), reason)
        spec = RowSpec() if entry.like is None else ROWS[entry.like]
        if profile is not None and spec.kind != ENGINE:
            raise UserError(self._place, entry.name, "runs transformers on a model, and an emulated case has none")
        own = self._of_row(entry.options)
        for values in combinations(self._swept(entry.each)):
            name = ", ".join(filter(None, (entry.name, variant_name(values))))
            num_ranks = entry.num_ranks or self._num_ranks + spec.extra_ranks
            row = Row(name, num_ranks, spec.kind, {**given, **spec.options, **own, **values}, ())
            yield self._with_variants(row, entry, spec, {**given, **own, **values}, profile)

    def _with_variants(
        self, row: Row, entry: RowEntry, spec: RowSpec, fixed: Mapping[str, Any], profile: Profile | None
    ) -> Row:
        """What one of is chosen: the entry's own values, or the named row's but for the options that are fixed."""
        if entry.sweep is None:
            tried = variants(spec.choices(row.num_ranks, _gammas(profile)), fixed)
        else:
            tried = variants(combinations(self._swept(entry.sweep)))
        for variant in tried:
            self._config({**row.options, **variant.options}, f"{self._place}, row {row.name}")
        is_free = entry.sweep is None and not {"fill", "verify_interval"} & set(fixed)
        return replace(row, variants=tried, planned=spec.planned and is_free and profile is not None)

    def _swept(self, sweep: Mapping[str, tuple[int | str, ...]]) -> dict[str, tuple[int | str, ...]]:
        number = math.prod(len(values) for values in sweep.values())
        if number > MAX_COMBINATIONS:
            reason = f"has {number} combinations of values, at most {MAX_COMBINATIONS} can be run"
            raise UserError(self._place, None, reason)
        return self._of_row(sweep)


def _gammas(profile: Profile | None) -> tuple[int, ...]:
    """Up to 2c, where c is known: each, or of many some at equal distances."""
    if profile is None:
        return GAMMAS
    last = max(2, round(2 * profile.ratio))
    number = min(last, MAX_GAMMAS)
    return tuple(round(last * count / number) for count in range(1, number + 1))
