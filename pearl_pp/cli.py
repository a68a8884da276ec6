"""Console script `pearl-pp`: `pearl-pp run -n 4 [options]` starts torchrun and the main job."""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence

from pearl_pp.config.flags import parse_flags
from pearl_pp.config.reading import nearest
from pearl_pp.errors import UserError

USAGE = """usage: pearl-pp run -n RANKS [options]
       pearl-pp make-pair --shape SHAPE [options]
       pearl-pp bench overhead [options]

  run          run the prompts on RANKS processes of this machine (torchrun --standalone, and pearl_pp.run on each)
  make-pair    make a synthetic pair of models agree as often as asked
  bench        measure what the runtime adds to the models' own time

pearl-pp COMMAND --help lists the options."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else UserError.exit_code
    command, *rest = arguments
    try:
        if command not in COMMANDS:
            raise UserError("pearl-pp", command, f"no such command{nearest(command, list(COMMANDS))}")
        return COMMANDS[command](rest)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return UserError.exit_code


def run(arguments: Sequence[str]) -> int:
    """Start torchrun with the main job on N ranks; the exit code is that of the first rank to fail."""
    ranks, options = _split(arguments)
    if "-h" in options or "--help" in options:
        print("pearl-pp run -n RANKS [options] is short for\n")
    parse_flags(options)
    if ranks is None:
        raise UserError("-n", None, "say how many ranks to start, as in pearl-pp run -n 4")
    if not (ranks.isdecimal() and len(ranks) < 6) or int(ranks) < 1:
        raise UserError("-n", ranks, "must be a whole number, at least 1")
    return _launch(int(ranks), options)


def make_pair(arguments: Sequence[str]) -> int:
    """Search for the eps of a synthetic pair."""
    from pearl_pp.console import make_pair

    return make_pair.make_pair(arguments)


def bench(arguments: Sequence[str]) -> int:
    """Run an experiment."""
    from pearl_pp.console import bench

    return bench.bench(arguments)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"run": run, "make-pair": make_pair, "bench": bench}


def _split(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-n", "--nproc-per-node", "--nproc_per_node", dest="ranks")
    try:
        known, options = parser.parse_known_args(arguments)
    except argparse.ArgumentError:
        raise UserError("-n", None, "needs a number") from None
    return known.ranks, options


def _launch(ranks: int, options: Sequence[str]) -> int:
    # torchrun would set it too, and say so on stderr.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from torch.distributed import run as torchrun  # noqa: TID251 (starts ranks, sends nothing)
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: TID251
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: TID251

    # The ranks say what went wrong; the launcher's report of the same failure is thirty lines.
    logging.disable(logging.ERROR)
    arguments = ["--standalone", f"--nproc-per-node={ranks}", "-m", "pearl_pp.run", *options]
    try:
        torchrun.run(torchrun.parse_args(arguments))
    except ChildFailedError as failure:
        rank, first = failure.get_first_failure()
        if first.exitcode >= 0:
            return first.exitcode
        name = signal.Signals(-first.exitcode).name
        print(f"error: rank {rank} was ended by {name}", file=sys.stderr)
        return 128 - first.exitcode
    except SignalException as stop:
        return 128 + int(stop.sigval)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
