"""`pearl-pp bench EXPERIMENT [options]`: its command line, progress and exit code."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pearl_pp.config import RunConfig
from pearl_pp.config.flags import parse_flags
from pearl_pp.config.reading import nearest
from pearl_pp.console.leaving import EXIT_FAILED, EXIT_INTERRUPTED
from pearl_pp.console.printing import WIDTH_OF_A_FILE
from pearl_pp.console.prompts import fix_seed, load_prompts
from pearl_pp.console.record import require_writable
from pearl_pp.errors import UserError
from pearl_pp.experiments import history, overhead
from pearl_pp.experiments.lines import ProgramFailed

USAGE = """usage: pearl-pp bench overhead [-n RANKS] [--rounds R] [--gammas A,B,..] [--record FILE.jsonl] [options]

  overhead   what the runtime adds to the models' own time: passes beside transformers' own, the time of a window
             beside max(T, gamma t), and the speed of a placement beside the target alone and a draft on one more rank

  -n RANKS             of the target's stages (default: 4); `dedicated` gets one more
  --rounds R           times that every prompt runs in every configuration (default: 3)
  --gammas A,B,..      measure each, take the best of each configuration (default: --gamma)
  --record FILE.jsonl  add a line, and compare with the last line of the same configuration

The other options are those of pearl-pp run: the pair, --placement (default: hop), prompts, sampling."""

# Options of a run that mean nothing here, and what to do instead.
_REFUSED = {
    "json": "is written by pearl-pp run; here --record keeps the figures",
    "trace": "is written by pearl-pp run",
    "quiet": "is for texts, and none are printed here",
    "emulate": "has no models to measure; leave it out",
}


def bench(arguments: Sequence[str]) -> int:
    """Run an experiment; returns the exit code. Raises UserError."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else UserError.exit_code
    name, *options = arguments
    if name not in EXPERIMENTS:
        raise UserError("pearl-pp bench", name, f"no such experiment{nearest(name, list(EXPERIMENTS))}")
    if "-h" in options or "--help" in options:
        print(USAGE)
        return 0
    return EXPERIMENTS[name](options)


def run_overhead(options: Sequence[str]) -> int:
    """`pearl-pp bench overhead`."""
    settings = overhead_settings(options)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    task = progress.add_task("starting", total=1)
    try:
        with progress:
            record = overhead.measure(
                settings,
                lambda what, done, total: progress.update(task, description=what, completed=done, total=total),
            )
    except ProgramFailed as failure:
        print(f"error: {failure}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    width = None if sys.stdout.isatty() else WIDTH_OF_A_FILE
    overhead.report(record, Console(width=width, highlight=False, markup=False), settings.record)
    differs = any(entry["text_equals_oracle"] is False for entry in record["configurations"])
    return EXIT_FAILED if differs else 0


EXPERIMENTS: dict[str, Callable[[Sequence[str]], int]] = {"overhead": run_overhead}


def overhead_settings(options: Sequence[str]) -> overhead.Settings:
    """What the options mean; raises UserError before anything is started."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("-n", "--nproc-per-node", "--nproc_per_node", dest="ranks", default="4")
    parser.add_argument("--rounds", default="3")
    parser.add_argument("--gammas")
    parser.add_argument("--record")
    own, others = parser.parse_known_args(options)
    num_ranks = _count("-n", own.ranks, 2)  # one rank has nothing idle: there is nothing to place
    rounds = _count("--rounds", own.rounds, 1)
    gammas = None if own.gammas is None else tuple(_gamma(part.strip()) for part in own.gammas.split(","))
    config = parse_flags(others)
    _check(config, gammas)
    prompts, _ = fix_seed(load_prompts(config))
    if unreadable := next((prompt.error for prompt in prompts if prompt.error is not None), None):
        raise UserError("--prompts", None, unreadable)
    require_writable("--record", own.record)
    if own.record is not None:
        history.previous(own.record, {})  # its lines can be read
    return overhead.Settings(config, prompts, num_ranks, rounds, gammas or (config.gamma,), own.record)


def _check(config: RunConfig, gammas: Sequence[int | str] | None) -> None:
    changed = config.non_default()
    for name, reason in _REFUSED.items():
        if name in changed:
            raise UserError(f"--{name}", None, reason)
    if gammas is not None and "gamma" in changed:
        raise UserError("--gammas", None, "takes the place of --gamma; give one of them")
    if config.strategy != "pearl":
        raise UserError("--strategy", config.strategy, "a window of pearl is measured; ar is always measured beside it")
    if config.placement == "dedicated":
        raise UserError("--placement", "dedicated", "is always measured; name what to compare with it")
    if config.target is not None and config.target.startswith("synthetic:"):
        raise UserError("--target", config.target, "transformers needs a model folder to be compared with")


def _count(option: str, value: str, least: int) -> int:
    if not (value.isdecimal() and len(value) < 10) or int(value) < least:
        raise UserError(option, value, f"must be a whole number, at least {least}")
    return int(value)


def _gamma(part: str) -> int | str:
    return part if part == "auto" else _count("--gammas", part, 1)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        flags, _, _ = message.removeprefix("argument ").partition(": ")
        raise UserError(flags.split("/")[0], None, "needs a value")
