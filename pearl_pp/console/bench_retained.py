"""`pearl-pp bench retained`, `ablation`, `sweep`: their command line, progress and exit code."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pearl_pp.console.arguments import count, counts, parse_arguments
from pearl_pp.console.leaving import EXIT_FAILED, EXIT_INTERRUPTED
from pearl_pp.errors import UserError
from pearl_pp.experiments.retained.experiment import Experiment
from pearl_pp.experiments.retained.job import MEASURE
from pearl_pp.experiments.retained.resolving import Limits, open_experiment
from pearl_pp.experiments.retained.store import Store

OnProgress = Callable[[str, int, int], None]

SHIPPED = Path(__file__).resolve().parents[2] / "configs" / "experiments"
_LINE_EVERY_S = 60.0

_COMMON = ("--config", "--out", "--rounds", "--prompts-limit", "--rows")
# Options of `sweep`, and what they vary.
_SWEPT = {"--gammas": "gamma", "--intervals": "verify_interval"}


@dataclass(frozen=True)
class Settings:
    """What a command line means."""

    config: str
    out: Path
    limits: Limits = field(default_factory=Limits)


def run_retained(options: Sequence[str]) -> int:
    """`pearl-pp bench retained`."""
    return _run(settings(options, "retained"))


def run_ablation(options: Sequence[str]) -> int:
    """`pearl-pp bench ablation`."""
    return _run(settings(options, "ablation", "ablation"))


def run_sweep(options: Sequence[str]) -> int:
    """`pearl-pp bench sweep`."""
    is_of_intervals = any(option.startswith("--intervals") for option in options)
    default = "p_sweep" if is_of_intervals else "gamma_sweep"
    return _run(settings(options, "sweep", default, _SWEPT))


def settings(
    options: Sequence[str], name: str, shipped: str | None = None, swept: Mapping[str, str] | None = None
) -> Settings:
    """What the options mean; raises UserError.

    Args:
        shipped: the experiment without `--config`. swept: options whose values go into the experiment's rows.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    swept = swept or {}
    known = (*_COMMON, *swept)
    for option in known:
        parser.add_argument(option)
    given = vars(parse_arguments(parser, options, known, f"pearl-pp bench {name}"))
    if not given["out"]:
        raise UserError("--out", None, "say where results go, as in --out results")
    own = None if shipped is None else SHIPPED / f"{shipped}.yaml"
    if given["config"] is None and (own is None or not own.exists()):  # a checkout has them, an installed package not
        reason = "say which experiment, as in --config configs/experiments/quick.yaml"
        raise UserError("--config", None, reason)
    rows, rounds, prompts = given["rows"], given["rounds"], given["prompts_limit"]
    each = {
        name: counts(option, value, 1) for option, name in swept.items() if (value := given[option.removeprefix("--")])
    }
    limits = Limits(
        None if rounds is None else count("--rounds", rounds, 1),
        None if prompts is None else count("--prompts-limit", prompts, 1),
        None if rows is None else tuple(row.strip() for row in rows.split(",")),
        each,
    )
    return Settings(str(own) if given["config"] is None else given["config"], Path(given["out"]), limits)


def _run(chosen: Settings) -> int:
    experiment = open_experiment(chosen.config, chosen.limits)
    with Store(chosen.out, experiment) as store:
        try:
            is_complete = _measure(experiment, store)
            _report(store)
        except KeyboardInterrupt:  # once more, in the report
            return EXIT_INTERRUPTED
        if not is_complete:
            print(f"stopped; the same command goes on with it in {store.out}", file=sys.stderr)
            return EXIT_INTERRUPTED
        return _exit_code(store)


def _measure(experiment: Experiment, store: Store) -> bool:
    """Makes the runs that are missing; whether nobody has stopped it."""
    from pearl_pp.experiments.retained.groups import Groups  # loads torch: after what a mistake can stop
    from pearl_pp.experiments.retained.runner import Runner

    try:
        with Groups() as groups, _progress() as on_progress:
            Runner(experiment, store, groups, on_progress).run()
    except KeyboardInterrupt:
        return False
    return True


def _report(store: Store) -> None:
    """The tables and pictures of what there is; prints the answer and the first table."""
    from pearl_pp.experiments.retained.report import TABLE, write_report

    if not _has_results(store):
        reason = f": {store.skipped[0].reason}" if store.skipped else ""
        print(f"error: nothing has been recorded{reason}", file=sys.stderr)
        return
    write_report(store.out)
    sections = (store.out / TABLE).read_text(encoding="utf-8").split("\n## ")
    print("\n## ".join(sections[:2]).strip())
    made = sorted(path.name for path in store.out.iterdir() if not path.name.startswith("."))
    print(f"\n{store.out}: {', '.join(made)}")


def _exit_code(store: Store) -> int:
    """1 for a text that is not the oracle's or a row that broke off; 2 where every row was refused.

    A row that was refused beside others that ran is told in the table.
    """
    differs = any(
        record["text_equals_oracle"] is False for key, record in store.records.items() if key.phase == MEASURE
    )
    if differs or any(skipped.failed for skipped in store.skipped):
        return EXIT_FAILED
    return 0 if _has_results(store) else UserError.exit_code


def _has_results(store: Store) -> bool:
    """Whether a row has run: what the oracle said is no result."""
    return any(key.phase == MEASURE for key in store.records)


@contextmanager
def _progress() -> Iterator[OnProgress]:
    """A bar with rows, runs and time left on a terminal; else a line now and then."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs,"),
        TimeElapsedColumn(),
        TextColumn("gone,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def show(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        yield show


class _Lines:
    """Progress for a file: one line a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._next = self._start

    def __call__(self, what: str, done: int, total: int) -> None:
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _LINE_EVERY_S
        left = f", about {(now - self._start) / done * (total - done) / 60:.0f} min left" if done else ""
        print(f"{done} of {total} runs{left}: {what}", file=sys.stderr, flush=True)
