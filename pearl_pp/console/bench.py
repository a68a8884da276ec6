"""`pearl-pp bench EXPERIMENT [options]`: its command line, progress and exit code."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pearl_pp.config import RunConfig
from pearl_pp.config.flags import parse_flags
from pearl_pp.config.reading import nearest
from pearl_pp.console import bench_retained
from pearl_pp.console.arguments import count
from pearl_pp.console.leaving import EXIT_FAILED, EXIT_INTERRUPTED
from pearl_pp.console.printing import WIDTH_OF_A_FILE
from pearl_pp.console.prompts import fix_seed, load_prompts
from pearl_pp.console.record import require_writable
from pearl_pp.errors import UserError
from pearl_pp.experiments import history, measured_profile, overhead
from pearl_pp.experiments.commands import OnProgress
from pearl_pp.experiments.lines import ProgramFailed
from pearl_pp.experiments.measured_times import REPEATS
from pearl_pp.files import write_whole
from pearl_pp.runtime.request import Prompt

Result = TypeVar("Result")

USAGE = """usage: pearl-pp bench retained --config FILE.yaml --out DIR [--rounds R] [--prompts-limit P] [--rows A,B,..]
       pearl-pp bench ablation --out DIR [--config FILE.yaml] [..]
       pearl-pp bench sweep --out DIR [--gammas A,B,..] [--intervals A,B,..] [--config FILE.yaml] [..]
       pearl-pp bench overhead [-n RANKS] [--rounds R] [--gammas A,B,..] [--record FILE.jsonl] [options]
       pearl-pp bench profile -n RANKS --out FILE.yaml [--repeats R] [options]

  retained   every row of an experiment (configs/experiments/NAME.yaml): placements on N ranks beside PEARL on N + 1,
             plain decoding, speculative decoding and transformers; DIR gets the records, a table and pictures.
             Stopped and started again, it goes on where it was
  ablation   the same with pre-verify and post-verify left out (configs/experiments/ablation.yaml)
  sweep      the same with each gamma (configs/experiments/gamma_sweep.yaml), or, with --intervals, each number of slots
             between two chunks (configs/experiments/p_sweep.yaml)
  overhead   what the runtime adds to the models' own time: passes beside transformers' own, the time of a window
             beside max(T, gamma t), and the speed of a placement beside the simulator's, the target alone, plain
             speculative decoding and a draft on one more rank
  profile    measure passes, links and acceptance of a pair on this machine, and write them as a profile to plan,
             simulate and emulate with

retained, ablation, sweep:
  --config FILE.yaml   the experiment
  --out DIR            a new folder, or one in which the same experiment was stopped
  --rounds R           times that every prompt runs in every row (default: the experiment's)
  --prompts-limit P    the first prompts alone
  --rows A,B,..        these rows alone
  --gammas, --intervals A,B,..   of sweep: what its rows run with in turn

overhead, profile:
  -n RANKS             of the target's stages (default: 4); `dedicated` gets one more

overhead:
  --rounds R           times that every prompt runs in every configuration (default: 3)
  --gammas A,B,..      measure each, take the best of each configuration (default: --gamma)
  --sd-gammas A,B,..   the same for sd (default: 2,3,4,5,6,8)
  --beside A,B,..      what to measure beside the placement: ar, sd, dedicated, or none (default: all three)
  --record FILE.jsonl  add a line, and compare with the last line of the same configuration

profile:
  --out FILE.yaml      the profile
  --repeats R          passes of each length, of which the median is taken (default: 15)

The other options of overhead and profile are those of pearl-pp run: the pair, --placement (default: hop), prompts,
sampling."""

# Options of a run that mean nothing here, and what to do instead.
_REFUSED = {
    "json": "is written by pearl-pp run; here --record or --out keeps the figures",
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
    record, exit_code = _measured(lambda on_progress: overhead.measure(settings, on_progress))
    if record is None:
        return exit_code
    width = None if sys.stdout.isatty() else WIDTH_OF_A_FILE
    overhead.report(record, Console(width=width, highlight=False, markup=False), settings.record)
    differs = any(entry["text_equals_oracle"] is False for entry in record["configurations"])
    return EXIT_FAILED if differs else 0


def run_profile(options: Sequence[str]) -> int:
    """`pearl-pp bench profile`."""
    settings = profile_settings(options)
    measured, exit_code = _measured(lambda on_progress: measured_profile.measure(settings, on_progress))
    if measured is None:
        return exit_code
    profile = measured_profile.profile_of(measured, settings)
    write_whole("--out", settings.out, measured_profile.profile_text(profile, measured, settings))
    print("\n".join(measured_profile.summary(profile, settings.out)))
    return 0


def _measured(work: Callable[[OnProgress], Result]) -> tuple[Result | None, int]:
    """What `work` measures, with a progress bar on a terminal; None and the exit code where it fails."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    task = progress.add_task("starting", total=1)
    try:
        with progress:

            def show(what: str, done: int, total: int) -> None:
                progress.update(task, description=what, completed=done, total=total)

            return work(show), 0
    except ProgramFailed as failure:
        print(f"error: {failure}", file=sys.stderr)
        return None, EXIT_FAILED
    except KeyboardInterrupt:
        return None, EXIT_INTERRUPTED


EXPERIMENTS: dict[str, Callable[[Sequence[str]], int]] = {
    "retained": bench_retained.run_retained,
    "ablation": bench_retained.run_ablation,
    "sweep": bench_retained.run_sweep,
    "overhead": run_overhead,
    "profile": run_profile,
}


def overhead_settings(options: Sequence[str]) -> overhead.Settings:
    """What the options mean; raises UserError before anything is started."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("-n", "--nproc-per-node", "--nproc_per_node", dest="ranks", default="4")
    parser.add_argument("--rounds", default="3")
    parser.add_argument("--gammas")
    parser.add_argument("--sd-gammas", default=",".join(map(str, overhead.SD_GAMMAS)))
    parser.add_argument("--beside", default=",".join(overhead.BESIDE))
    parser.add_argument("--record")
    own, others = parser.parse_known_args(options)
    num_ranks = count("-n", own.ranks, 2)  # one rank has nothing idle: there is nothing to place
    rounds = count("--rounds", own.rounds, 1)
    gammas = None if own.gammas is None else tuple(_gamma(part.strip()) for part in own.gammas.split(","))
    sd_gammas = tuple(count("--sd-gammas", part.strip(), 1) for part in own.sd_gammas.split(","))
    beside = _beside(own.beside)
    config = parse_flags(others)
    _check(config, gammas)
    prompts = _prompts(config)
    require_writable("--record", own.record)
    if own.record is not None:
        history.previous(own.record, {})  # its lines can be read
    return overhead.Settings(
        config, prompts, num_ranks, rounds, gammas or (config.gamma,), sd_gammas, beside, own.record
    )


def profile_settings(options: Sequence[str]) -> measured_profile.Settings:
    """What the options mean; raises UserError before anything is started."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("-n", "--nproc-per-node", "--nproc_per_node", dest="ranks", default="4")
    parser.add_argument("--out")
    parser.add_argument("--repeats", default=str(REPEATS))
    own, others = parser.parse_known_args(options)
    num_ranks = count("-n", own.ranks, 2)
    repeats = count("--repeats", own.repeats, 1)
    config = parse_flags(others)
    _refuse(config)
    if config.placement not in ("auto", "hop"):
        raise UserError("--placement", config.placement, "the profile is measured with hop; leave it out")
    if own.out is None:
        raise UserError("--out", None, "say where to write the profile, as in --out machine.yaml")
    require_writable("--out", own.out)
    return measured_profile.Settings(config, _prompts(config), num_ranks, repeats, own.out)


def _prompts(config: RunConfig) -> list[Prompt]:
    prompts, _ = fix_seed(load_prompts(config))
    if unreadable := next((prompt.error for prompt in prompts if prompt.error is not None), None):
        raise UserError("--prompts", None, unreadable)
    return prompts


def _refuse(config: RunConfig) -> None:
    changed = config.non_default()
    for name, reason in _REFUSED.items():
        if name in changed:
            raise UserError(f"--{name}", None, reason)
    if config.strategy != "pearl":
        reason = "a window of pearl is measured; bench overhead measures ar and sd beside it"
        raise UserError("--strategy", config.strategy, reason)


def _check(config: RunConfig, gammas: Sequence[int | str] | None) -> None:
    _refuse(config)
    if gammas is not None and "gamma" in config.non_default():
        raise UserError("--gammas", None, "takes the place of --gamma; give one of them")
    if config.placement == "dedicated":
        raise UserError("--placement", "dedicated", "is measured beside another; name what to compare with it")


def _beside(value: str) -> tuple[str, ...]:
    names = () if value == "none" else tuple(part.strip() for part in value.split(","))
    for name in names:
        if name not in overhead.BESIDE:
            known = f"; there are {', '.join(overhead.BESIDE)}, or none"
            raise UserError("--beside", name or None, f"no such row{nearest(name, overhead.BESIDE) or known}")
    return names


def _gamma(part: str) -> int | str:
    return part if part == "auto" else count("--gammas", part, 1)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        flags, _, _ = message.removeprefix("argument ").partition(": ")
        raise UserError(flags.split("/")[0], None, "needs a value")
