"""Runs an experiment: what the text must be, then what is chosen, then the rows in turn, run by run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from pearl_pp.config import RunConfig, run_config
from pearl_pp.errors import UserError
from pearl_pp.experiments.lines import ProgramFailed
from pearl_pp.experiments.retained import choosing
from pearl_pp.experiments.retained.experiment import Case, Experiment, Row
from pearl_pp.experiments.retained.job import ENGINE, MEASURE, SWEEP, Job, Key
from pearl_pp.experiments.retained.oracle import Asked, asked, names, oracle_of, text_equals
from pearl_pp.experiments.retained.rows import Variant
from pearl_pp.experiments.retained.store import Skipped, Store
from pearl_pp.runtime.request import Prompt
from pearl_pp.transport.torch_distributed import pick_device

OnProgress = Callable[[str, int, int], None]
"""Called with (what runs, runs done, runs in all) before each run."""

WARM_UP_TOKENS = 32
"""Of a run that is not recorded, at most: enough windows for everything to have run, and for a picture."""


class Groups(Protocol):
    """Who makes runs: `groups.Groups`."""

    def run(self, job: Job) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Chosen:
    """A row as it is measured."""

    row: Row
    variant: Variant


class Runner:
    """Runs whatever `store` has no record of yet.

    Args:
        groups: makes the runs.
        one_group: models are held by ranks of one number at a time, as on GPUs; None finds out for each case.
    """

    def __init__(
        self,
        experiment: Experiment,
        store: Store,
        groups: Groups,
        on_progress: OnProgress = lambda *_: None,
        one_group: bool | None = None,
    ) -> None:
        self._experiment = experiment
        self._store = store
        self._groups = groups
        self._on_progress = on_progress
        self._one_group = one_group
        self._warm: set[tuple[str, str, str]] = set()
        self._dropped: set[tuple[str, str, str, str]] = set()
        self._num_done = 0
        self._total = sum(_num_runs(case, experiment, store) for case in experiment.cases)

    def run(self) -> None:
        """All cases; raises UserError where nothing of a case can be run."""
        for case in self._experiment.cases:
            self._run_case(choosing.with_files(case, self._store.out))

    def _run_case(self, case: Case) -> None:
        one_group = self._one_group
        if one_group is None:
            one_group = pick_device(case.config.run_device).type == "cuda"
        prompts = list(asked(case, oracle_of(case), self._said))
        chosen = [one for row in case.rows for one in self._choose(case, row, prompts)]
        for number, prompt, one in order(self._experiment.rounds, prompts, chosen, one_group):
            self._measure(case, one.row, one.variant, MEASURE, number, prompt)

    def _said(self, key: Key, job: Job) -> Mapping[str, Any] | None:
        """The record of an oracle's run."""
        if key not in self._store.records:
            config = run_config(job.options)
            prompt = Asked(key.prompt, job.prompt, None)
            self._run(key, job, lambda answer: self._record(key, job, config, prompt, answer))
        return self._store.records.get(key)

    def _choose(self, case: Case, row: Row, prompts: Sequence[Asked]) -> list[Chosen]:
        """The row with the variant that it is measured with; nothing where it cannot be run."""
        if len(row.variants) == 1 and not row.planned:
            return [Chosen(row, row.variants[0])]
        try:
            variant = choosing.chosen_before(case, row, self._store.records, self._store.out)
            if variant is None and row.planned and case.is_emulated:
                variant = choosing.planned(case, row, self._store.out)
            if variant is None:
                variant = choosing.simulated_best(row) if case.is_emulated else self._sweep(case, row, prompts)
        except UserError as error:
            self._skip(Key(case.name, row.name, "", MEASURE, 0, ""), str(error))
            return []
        return [] if variant is None else [Chosen(row, variant)]

    def _sweep(self, case: Case, row: Row, prompts: Sequence[Asked]) -> Variant | None:
        """Every variant with the first prompts, in turn; the fastest."""
        few = prompts[: self._experiment.sweep_prompts]
        for prompt in few:
            for variant in row.variants:
                self._measure(case, row, variant, SWEEP, 0, prompt)
        return choosing.measured_best(case, row, [prompt.name for prompt in few], self._store.records)

    def _measure(self, case: Case, row: Row, variant: Variant, phase: str, number: int, prompt: Asked) -> None:
        """One run, where there is no record of it yet."""
        key = Key(case.name, row.name, variant.name, phase, number, prompt.name)
        if key in self._store.records:
            return
        config = row.config(variant)
        options = {**row.options, **variant.options}
        job = Job(row.num_ranks, row.kind, options, prompt.prompt)
        if not self._warm_up(key, job):
            self._num_done += 1
            return
        job = replace(job, trace=self._lacks_trace(key, job))
        self._run(key, job, lambda answer: self._record(key, job, config, prompt, answer, case))

    def _lacks_trace(self, key: Key, job: Job) -> bool:
        """Whether a picture of this row is still to be made."""
        return key.phase == MEASURE and job.kind == ENGINE and not self._store.trace_path(key).exists()

    def _warm_up(self, key: Key, job: Job) -> bool:
        """Runs that are not recorded, before a row's first one that is; the last of them is traced, so that no run
        that counts has to be. False where the row cannot be run.
        """
        what = (key.case, key.row, key.variant if key.phase == MEASURE else SWEEP)
        for left in range(0 if what in self._warm else self._experiment.warm_up, 0, -1):
            short = replace(job, prompt=_shortened(job.prompt), trace=left == 1 and self._lacks_trace(key, job))
            if self._run(key, short, lambda _: None, "warm-up of ") is None:
                return False
        self._warm.add(what)
        return True

    def _run(
        self, key: Key, job: Job, record: Callable[[Mapping[str, Any]], dict[str, Any] | None], what: str = ""
    ) -> Mapping[str, Any] | None:
        """The answer to a job, recorded; None where it was refused, or broke off, and then that is written down."""
        if self._is_dropped(key):
            self._num_done += not what
            return None
        self._on_progress(f"{what}{_shown(key)}", self._num_done, self._total)
        try:
            answer = self._groups.run(job)
        except UserError as error:
            self._skip(key, str(error), of_prompt=error.option == "prompt")
            return None
        except ProgramFailed as failure:
            self._warm.clear()  # the next run starts new processes, for other rows as well
            self._skip(key, str(failure), failed=True)
            return None
        finally:
            self._num_done += not what
        if job.trace and answer.get("trace") is not None:
            about = {"case": key.case, "row": key.row, "variant": key.variant, "mode": answer["mode"]}
            trace = {**answer["trace"], "otherData": {**about, "num_ranks": job.num_ranks}}
            self._store.add_trace(key, trace)
        if (content := record(answer)) is not None:
            self._store.add(key, content)
        return answer

    def _skip(self, key: Key, reason: str, of_prompt: bool = False, failed: bool = False) -> None:
        prompt = key.prompt if of_prompt else ""
        self._dropped.add((key.case, key.row, key.variant, prompt))
        self._store.skip(Skipped(key.case, key.row, key.variant, prompt, reason, failed))

    def _is_dropped(self, key: Key) -> bool:
        return any((key.case, key.row, key.variant, prompt) in self._dropped for prompt in ("", key.prompt))

    def _record(
        self,
        key: Key,
        job: Job,
        config: RunConfig,
        prompt: Asked,
        answer: Mapping[str, Any],
        case: Case | None = None,
    ) -> dict[str, Any]:
        """One line of results.jsonl, but for its key."""
        experiment = self._experiment
        of_prompt = run_config({**job.options, **prompt.prompt.params.model_dump()})
        num_prompt_tokens = len(answer["prompt_token_ids"])
        return {
            "experiment": {"name": experiment.name, "title": experiment.title, "digest": experiment.digest},
            "num_ranks": job.num_ranks,
            "kind": job.kind,
            "config": of_prompt.record(),
            **{name: answer[name] for name in ("plan", "versions", "machine", "mode", "gamma", "notes", "metrics")},
            "num_prompt_tokens": num_prompt_tokens,
            "token_ids": answer["token_ids"],
            "text": answer["text"],
            "finish_reason": answer["finish_reason"],
            "text_equals_oracle": text_equals(prompt, config, job.num_ranks, answer),
            "oracle": prompt.oracle,
            "simulated_tokens_per_s": answer.get("simulated_tokens_per_s"),
            "published": None if case is None else case.published,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def order(
    rounds: int, prompts: Sequence[Asked], rows: Sequence[Chosen], one_group: bool
) -> Iterator[tuple[int, Asked, Chosen]]:
    """Rows in turn, run by run, so that a machine that gets slower slows all of them.

    one_group: the rows of one number of ranks after those of another, within a round.
    """
    parts: list[list[Chosen]] = [list(rows)]
    if one_group:
        sizes = dict.fromkeys((one.row.kind, one.row.num_ranks) for one in rows)
        parts = [[one for one in rows if (one.row.kind, one.row.num_ranks) == size] for size in sizes]
    for number in range(rounds):
        for part in parts:
            for prompt in prompts:
                for one in part:
                    yield number, prompt, one


def _num_runs(case: Case, experiment: Experiment, store: Store) -> int:
    """Runs of a case that are not done yet, at most."""
    num_prompts = len(names(case))
    measured = num_prompts * experiment.rounds * len(case.rows)
    swept = 0
    if not case.is_emulated:
        few = min(num_prompts, experiment.sweep_prompts)
        swept = sum(few * len(row.variants) for row in case.rows if len(row.variants) > 1)
    said = num_prompts if oracle_of(case).kind is not None else 0
    done = sum(key.case == case.name for key in store.records)
    return max(0, measured + swept + said - done)


def _shortened(prompt: Prompt) -> Prompt:
    """The same prompt with a shorter answer."""
    names = ("max_new_tokens", "min_new_tokens")
    lengths = {name: min(getattr(prompt.params, name), WARM_UP_TOKENS) for name in names}
    return replace(prompt, params=prompt.params.model_copy(update=lengths))


def _shown(key: Key) -> str:
    return f"{key.row}{f' ({key.variant})' if key.variant else ''}, {key.phase} round {key.round + 1}, {key.prompt}"
