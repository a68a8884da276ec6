"""Which variant of a row is measured: the planner's, the simulator's best, or the fastest of measured runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from pearl_pp.errors import UserError
from pearl_pp.experiments.retained.experiment import Case, Row
from pearl_pp.experiments.retained.job import SWEEP, Key
from pearl_pp.experiments.retained.rows import Variant, variant_name
from pearl_pp.experiments.retained.store import OPTION, PLACEMENTS, PROFILES, slug
from pearl_pp.files import write_whole
from pearl_pp.planning.choice import Entry, choose
from pearl_pp.runtime.emulation import question_of
from pearl_pp.runtime.simulated import expected_speed

Records = Mapping[Key, Mapping[str, Any]]


def with_files(case: Case, out: Path) -> Case:
    """The case with its profile, where it changes one, written to `out`."""
    if case.new_profile is None:
        return case
    path = out / PROFILES / f"{slug(case.name)}.yaml"
    write_whole(OPTION, path, yaml.safe_dump(dict(case.new_profile), sort_keys=False), durable=True)
    changed = {"emulate": str(path)}
    rows = tuple(replace(row, options={**row.options, **changed}) for row in case.rows)
    return replace(case, options={**case.options, **changed}, rows=rows)


def chosen_before(case: Case, row: Row, records: Records, out: Path) -> Variant | None:
    """The variant that has been measured already: a row keeps it. Of a planned one that is its file in `out`, not a
    variant that is called the same; without the file the planner says the same once more.
    """
    names = {key.variant for key in records if (key.case, key.row) == (case.name, row.name) and key.phase != SWEEP}
    if row.planned:
        path = _placement_path(case, row, out)
        return Variant(min(names), {"placement": str(path)}) if names and path.is_file() else None
    return next((variant for variant in row.variants if variant.name in names), None)


def simulated_best(row: Row) -> Variant:
    """The variant that is expected to be fastest by the profile; raises UserError where none can be run."""
    if len(row.variants) == 1:
        return row.variants[0]
    speeds: dict[str, float] = {}
    refusal: UserError | None = None
    for variant in row.variants:
        try:
            speeds[variant.name] = expected_speed(row.config(variant), row.num_ranks)
        except UserError as error:
            refusal = refusal or error
    if not speeds:
        assert refusal is not None, "there are variants"
        raise refusal
    return max((v for v in row.variants if v.name in speeds), key=lambda variant: speeds[variant.name])


def planned(case: Case, row: Row, out: Path) -> Variant | None:
    """The planner's best with several chunks in flight on all stages, as a placement file; None where it has none.

    A draft on a card of its own, or one chunk in flight, is another row.
    """
    config = row.config(Variant("", {"placement": "auto"}))
    question = question_of(config, row.num_ranks)
    free = replace(question.wanted, strategies=frozenset({"pearl"}))
    try:
        entries = choose(replace(question, wanted=free)).entries
    except ValueError:  # nothing to place
        return None
    entry = next((entry for entry in entries if entry.fits and _is_pipelined(entry, row.num_ranks)), None)
    if entry is None:
        return None
    placement = entry.placement
    content = {name: value for name, value in placement.record().items() if name != "name"}
    path = _placement_path(case, row, out)
    write_whole(OPTION, path, yaml.safe_dump(content, sort_keys=False), durable=True)
    name = variant_name({"fill": placement.fill, "verify_interval": placement.verify_interval})
    return Variant(name, {"placement": str(path)})


def _placement_path(case: Case, row: Row, out: Path) -> Path:
    return out / PLACEMENTS / f"{slug(case.name)}.{slug(row.name)}.yaml"


def _is_pipelined(entry: Entry, num_ranks: int) -> bool:
    placement = entry.placement
    windows = placement.verify_interval < num_ranks or placement.fill > 1
    return len(placement.target) == num_ranks and len(placement.replicas) > 1 and windows


def measured_best(case: Case, row: Row, prompts: Sequence[str], records: Records) -> Variant | None:
    """The variant with the most tokens a second over the sweep's prompts, but for those that no variant could run;
    None where none has run all the others.
    """
    runs_of = {
        variant.name: {
            prompt: records[key]["metrics"]
            for prompt in prompts
            if (key := Key(case.name, row.name, variant.name, SWEEP, 0, prompt)) in records
        }
        for variant in row.variants
    }
    wanted = {prompt for runs in runs_of.values() for prompt in runs}

    def speed(variant: Variant) -> float:
        runs = runs_of[variant.name].values()
        seconds = sum(run["decode_s"] for run in runs)
        return sum(run["num_decode_tokens"] for run in runs) / seconds if seconds else 0.0

    able = [variant for variant in row.variants if wanted and wanted == runs_of[variant.name].keys()]
    return max(able, key=speed, default=None)
