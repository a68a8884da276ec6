"""Shapes of synthetic pairs: YAML files under configs/models/, or anywhere, read, checked and updated."""

import re
import sysconfig
from collections.abc import Collection
from pathlib import Path

from pydantic import ValidationError

from pearl_pp.config.reading import Place, fault_in_file, nearest, read_text, read_yaml
from pearl_pp.errors import UserError
from pearl_pp.files import write_whole
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
        raise UserError(option, path, fault_in_file(error, _known)) from None


def write_eps(shape_file: Path, out: Path, eps: float, agreement: float, option: str = "--out") -> None:
    """Write `shape_file` to `out` with these two values in it; everything else, comments too, stays as it is."""
    text = read_text(option, str(shape_file))
    for key, value in (("eps", eps), ("agreement", agreement)):
        text, num_found = re.subn(rf"^{key}:[ \t]*[^\s#]*", f"{key}: {value:g}", text, flags=re.MULTILINE)
        if not num_found:
            text = f"{text.rstrip()}\n{key}: {value:g}\n"
    write_whole(option, out, text)


def _known(place: Place) -> Collection[str]:
    return PairShape.model_fields if len(place) == 1 else DraftShape.model_fields
