"""`pearl-pp make-pair`: finds the eps by which a synthetic pair agrees as often as asked, and writes it down."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pearl_pp.config import find_shape, read_shape
from pearl_pp.config.shape_file import PREFIX, write_eps
from pearl_pp.console.arguments import parse_arguments
from pearl_pp.errors import UserError

OPTIONS = ("--shape", "--agreement", "--out", "--device")


def make_pair(arguments: Sequence[str]) -> int:
    """Search, print what was measured, and write it into the shape's file or a copy; returns the exit code."""
    options = _parse(arguments)
    shape_file = find_shape(options.shape, "--shape")
    shape = read_shape(shape_file)
    out = Path(options.out or shape_file)
    if not out.parent.is_dir():
        raise UserError("--out", out, "no such folder")

    import torch  # after what a mistake can stop

    from pearl_pp.stages.agreement import find_eps

    cuda = torch.cuda.is_available() if options.device == "auto" else options.device == "cuda"
    if cuda and not torch.cuda.is_available():
        raise UserError("--device", "cuda", "there is no CUDA device")
    found = find_eps(
        shape,
        options.agreement,
        device="cuda" if cuda else "cpu",
        dtype=torch.bfloat16 if cuda else torch.float32,
        on_step=lambda eps, agreement: print(f"eps {eps:<8.4g} agreement {agreement:.3f}", flush=True),
    )
    write_eps(shape_file, out, found.eps, round(found.agreement, 3))
    print(f"{shape.name}: eps {found.eps:g} gives agreement {found.agreement:.3f} on {found.num_tokens} tokens")
    name = f"synthetic:{options.out or options.shape.removeprefix(PREFIX)}"
    print(f"written to {out}: --target {name} --draft {name}")
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pearl-pp make-pair", allow_abbrev=False, exit_on_error=False, description=__doc__
    )
    parser.add_argument("--shape", metavar="SHAPE", help="a name under configs/models/, or a FILE.yaml")
    parser.add_argument("--agreement", type=float, default=0.75, metavar="X", help="share of tokens (default: 0.75)")
    parser.add_argument("--out", metavar="FILE.yaml", help="where to write the shape with its eps (default: its file)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: auto")
    options = parse_arguments(parser, arguments, OPTIONS, "make-pair")
    if options.shape is None:
        raise UserError("--shape", None, "say which, as in pearl-pp make-pair --shape cpu_small")
    if not 0 < options.agreement <= 1:
        raise UserError("--agreement", options.agreement, "must be more than 0 and at most 1")
    return options
