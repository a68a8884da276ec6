"""Shapes of synthetic pairs: YAML files under configs/models/, or anywhere, read, checked and updated."""

import re
import sysconfig
from pathlib import Path

from pydantic import ValidationError

from pearl_pp.config.reading import nearest, one_line, read_text, read_yaml, reason_of
from pearl_pp.errors import UserError
from pearl_pp.stages.shapes import DraftShape, PairShape

PREFIX = "synthetic:"
SUFFIXES = (".yaml", ".yml")

# Beside the package in a checkout; where pip puts data files in an installation.
FOLDERS = (
    Path(__file__).resolve().parents[2] / "configs" / "models",
    Path(sysconfig.get_path("data")) / "share" / "pearl_pp" / "models",
)


def find_shape(name: str, option: str) -> Path:
    """The file of a shape: a path that ends in .yaml, or the name of one of the shapes that come along.

    `synthetic:` may stand before either. Raises UserError for a name that is none of theirs.
    """
    name = name.removeprefix(PREFIX)
    if name.endswith(SUFFIXES):
        return Path(name)
    known = {path.stem: path for folder in reversed(FOLDERS) for path in sorted(folder.glob("*.yaml"))}
    if name not in known:
        hint = nearest(name, known) or f"; there are {', '.join(sorted(known))}, or give a FILE.yaml"
        raise UserError(option, f"{PREFIX}{name}", f"no such shape{hint}")
    return known[name]


def read_shape(path: Path | str, option: str = "--shape") -> PairShape:
    """Read and check a shape's file; raises UserError naming the file, the key and the reason."""
    try:
        return PairShape.model_validate(read_yaml(option, str(path)))
    except ValidationError as error:
        raise UserError(option, path, _fault(error)) from None


def write_eps(shape_file: Path, out: Path, eps: float, agreement: float, option: str = "--out") -> None:
    """Write `shape_file` to `out` with these two values in it; everything else, comments too, stays as it is."""
    text = read_text(option, str(shape_file))
    for key, value in (("eps", eps), ("agreement", agreement)):
        text, num_found = re.subn(rf"^{key}:[ \t]*[^\s#]*", f"{key}: {value:g}", text, flags=re.MULTILINE)
        if not num_found:
            text = f"{text.rstrip()}\n{key}: {value:g}\n"
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(option, out, f"cannot be written: {error.strerror}") from None


def _fault(error: ValidationError) -> str:
    """The key and the reason of the first fault; a misspelt key before the key that is missing for it."""
    faults = error.errors(include_url=False)
    fault = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    key, reason = ".".join(map(str, fault["loc"])), reason_of(fault["type"], fault["msg"])
    if fault["type"] == "extra_forbidden":
        known = PairShape.model_fields if len(fault["loc"]) == 1 else DraftShape.model_fields
        return f"{key}: no such key{nearest(str(fault['loc'][-1]), known)}"
    if fault["type"] == "missing":
        return f"{key}: {reason}"
    return f"{key} {one_line(fault['input'])}: {reason}" if key else reason
