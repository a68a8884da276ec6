"""`pearl-pp plan [options]`: what a machine can do with a model pair, before anything is loaded."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from pearl_pp.config.flags import dashed, flag_of
from pearl_pp.config.plan_options import PlanOptions
from pearl_pp.config.reading import fault_in_file, first_user_error, nearest
from pearl_pp.console.record import require_own_paths, require_writable
from pearl_pp.errors import UserError
from pearl_pp.files import write_whole

EXIT_NOTHING_FITS = 3

USAGE = """usage: pearl-pp plan [--target DIR --draft DIR] [--profile FILE.yaml | --memory-gb A,B,..] [options]

  Ranks placements of the draft beside the target, plain decoding and sd among them: what fits, how fast each would
  be (simulated), what each rank would hold (planned). No weights are needed, a config.json is enough.
  Exit code 0 where the first choice fits, 3 where nothing does.

models
  --target DIR  --draft DIR      folders with a config.json, or synthetic:SHAPE (default: the profile's models;
                                 with a profile its times are scaled to these models)
  --dtype auto|float32|float16|bfloat16   of weights and KV entries (default: the target's)
  --trust-remote-code            run Python code that comes with a model folder
machine
  -n RANKS                       (default: as many as --memory-gb has numbers, or the profile has ranks)
  --profile FILE.yaml            cards, links and measured or assumed times
  --memory-gb A,B,..             of each rank, all of it to use (default: the profile's, 90 % of it)
  --gpu-memory-utilization F     share of that memory to use
  --bandwidth-gb-s A,B,..        of each card's memory, as published, where there is no profile (default: 936)
  --link-latency-us A  --link-gb-s B   between ranks (default: the profile's, or 30 and 6)
  --device cuda|cpu              what a rank needs beside the models (default: cuda)
request
  --context N                    positions that KV entries are kept for (default: 4096)
  --acceptance A                 share of drafted tokens that are right (default: the profile's, or 0.7)
what is fixed already
  --layer-split A,B,..  --fill N  --verify-interval N  --gamma N  --handoff auto|ship|catchup
output
  --top K                        rows of the table (default: 10)
  --json FILE                    question, ranking, memory by kind
  --write FILE.yaml              the first choice, for --placement FILE.yaml of a run
  --trace FILE                   a simulated request under the first choice, as --trace of a run writes it"""

# Other spellings that runs and other engines know.
_SPELLINGS: dict[str, tuple[str, ...]] = {
    "num_ranks": ("-n", "--nproc-per-node"),
    "target": ("--target", "--model", "-m"),
    "draft": ("--draft", "--draft-model", "-md"),
    "context": ("--context", "--max-model-len"),
    "json_file": ("--json",),
}
_TRACE_TOKENS = 128


def plan(arguments: Sequence[str]) -> int:
    """Plan, print and record; returns the exit code. Raises UserError."""
    if "-h" in arguments or "--help" in arguments:
        print(USAGE)
        return 0
    options = parse(arguments)

    from pearl_pp.console import plan_question, plan_report  # load torch: after what a mistake can stop
    from pearl_pp.planning.choice import choose

    try:
        asked = plan_question.ask(options)
        ranking = choose(asked.question)
    except ValidationError as error:  # of the profile that stands for cards and models
        raise UserError("pearl-pp plan", None, f"no such machine: {fault_in_file(error, lambda _: ())}") from None
    except ValueError as error:
        raise UserError("pearl-pp plan", None, str(error)) from None
    from rich.console import Console

    width = None if sys.stdout.isatty() else plan_report.WIDTH
    plan_report.report(asked, ranking, options.top, Console(width=width, highlight=False, markup=False))
    first = ranking.first
    if options.json_file is not None:
        text = json.dumps(plan_report.record(asked, ranking), indent=1)
        write_whole("--json", options.json_file, text + "\n")
    if options.write is not None:
        write_whole("--write", options.write, plan_report.placement_file(first, ranking))
    if options.trace is not None:
        from pearl_pp.planning.prediction import simulated_request

        request = simulated_request(first.schedule, first.costs, asked.question.acceptance, num_tokens=_TRACE_TOKENS)
        request.write_trace(options.trace, first.what)
    return 0 if first.fits else EXIT_NOTHING_FITS


def parse(arguments: Sequence[str]) -> PlanOptions:
    """The options; raises UserError for the first mistake."""
    parser = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, exit_on_error=False, argument_default=argparse.SUPPRESS
    )
    spelt = {name: _SPELLINGS.get(name, (flag_of(name),)) for name in PlanOptions.model_fields}
    for name, flags in spelt.items():
        if PlanOptions.model_fields[name].annotation is bool:
            parser.add_argument(*flags, dest=name, action="store_true")
        else:
            parser.add_argument(*flags, dest=name)
    try:
        parsed, unknown = parser.parse_known_args([dashed(argument) for argument in arguments])
    except argparse.ArgumentError as error:
        raise UserError(str(error.argument_name).split("/")[0], None, "needs a value") from None
    if unknown:
        option = unknown[0].partition("=")[0]
        known = [flag for flags in spelt.values() for flag in flags]
        hint = "; did you mean --profile?" if option == "--emulate" else nearest(option, known)
        raise UserError(option, None, f"no such option{hint}")
    values = vars(parsed)
    options = _checked(values, {name: flags[0] for name, flags in spelt.items()})
    written = {"--json": options.json_file, "--write": options.write, "--trace": options.trace}
    require_own_paths(written, {"--profile": options.profile})
    for option, path in written.items():
        require_writable(option, path)
    return options


def _checked(values: Mapping[str, object], names: Mapping[str, str]) -> PlanOptions:
    try:
        return PlanOptions.model_validate(values)
    except ValidationError as error:
        raise first_user_error(error, names, values) from None
