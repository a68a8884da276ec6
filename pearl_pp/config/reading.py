"""Turning what a user wrote into values, and what is wrong with it into one line."""

from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pearl_pp.errors import UserError, printable


def nearest(word: str, known: Collection[str]) -> str:
    """`"; did you mean 'gamma'?"`, or an empty string where nothing is near."""
    originals = {name.replace("_", "-"): name for name in known}
    matches = get_close_matches(word.replace("_", "-"), originals, n=1, cutoff=0.6)
    return f"; did you mean {originals[matches[0]]}?" if matches else ""


def first_user_error(
    error: ValidationError, names: Mapping[str, str], values: Mapping[str, object] | None = None
) -> UserError:
    """The first fault pydantic found, as one line.

    `names` maps a field to what the user calls it, `values` to what was written (else its faulty part).
    """
    faults = error.errors(include_url=False)
    field = str(faults[0]["loc"][0]) if faults[0]["loc"] else ""
    same_field = [fault for fault in faults if fault["loc"] and str(fault["loc"][0]) == field]
    written = one_line((values or {}).get(field, faults[0]["input"]))
    return UserError(names.get(field, field), written, _reasons(same_field or faults[:1]))


Place = tuple[int | str, ...]
"""Where something stands in a file, as pydantic says it: names, and numbers in lists."""


def fault_in_file(
    error: ValidationError,
    known: Callable[[Place], Collection[str]],
    is_branch: Callable[[Place], bool] = lambda _: False,
    first: int = 0,
) -> str:
    """The key and the reason of the first fault in a file; a misspelt key before the key that is missing for it.

    Args:
        known: the keys there are where the last part of a place stands.
        is_branch: whether the last part of a place is an alternative that pydantic tried, and no part of the file.
        first: number of a list's first entry.
    """
    faults = error.errors(include_url=False)
    # What a value is not as one alternative is no fault where it is faulty as the other.
    faults = [fault for fault in faults if not is_branch(fault["loc"])] or faults
    fault = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    place = _without_branches(fault["loc"], is_branch)
    key = _key(place, first)
    if fault["type"] == "extra_forbidden":
        return f"{key}: no such key{nearest(str(place[-1]), known(place))}"
    reason = _reasons(one for one in faults if _without_branches(one["loc"], is_branch) == place)
    if fault["type"] == "value_error" and reason.startswith(key):  # says itself what it is about
        return reason
    if fault["type"] in ("missing", "value_error"):
        return f"{key}: {reason}"
    if fault["type"] in ("model_type", "dict_type"):
        reason = _LINES
    written = list(fault["input"]) if isinstance(fault["input"], tuple) else fault["input"]
    return f"{key} {one_line(written)}: {reason}" if key else reason


def _without_branches(place: Place, is_branch: Callable[[Place], bool]) -> Place:
    return tuple(part for end, part in enumerate(place, 1) if not is_branch(place[:end]))


def _key(place: Place, first: int) -> str:
    """`link[0][1].latency_us`."""
    key = ""
    for part in place:
        key += f"[{part + first}]" if isinstance(part, int) else f".{part}" if key else part
    return key


def _reasons(faults: Iterable[Mapping[str, Any]]) -> str:
    """What a value should have been, one way or another."""
    reasons = dict.fromkeys(reason_of(fault["type"], fault["msg"]) for fault in faults)
    return " or ".join(reasons).replace(" or must be", " or")


_REASONS = {
    "missing": "is missing",
    "bool_parsing": "must be true or false",
    "model_type": "must be names and values",
    "dict_type": "must be names and values",
}


def reason_of(kind: str, message: str) -> str:
    """Pydantic's message in the words of a command line."""
    if kind in _REASONS:
        return _REASONS[kind]
    message = message.removeprefix("Value error, ").replace("Input should be", "must be")
    message = message.replace("Tuple should have", "must have").split(" after validation")[0]
    message = message.split(", unable to parse")[0].split(", got a number")[0]
    for pydantic_word, plain in (("integer", "whole number"), ("string", "text"), ("tuple", "list")):
        message = message.replace(f"a valid {pydantic_word}", f"a {plain}")
    return message.replace("a valid ", "a ")


def one_line(value: object) -> str:
    """A value as an error line shows it: never more than one line, never long, nothing that a terminal obeys."""
    text = value if isinstance(value, str) and value.strip() else repr(value)
    return shortened(text, 120)


def shortened(text: str, width: int) -> str:
    """`text` on one line of at most `width` characters; control characters are shown as escapes."""
    text = " ".join(text.split())
    text = printable(text[: width + 1])
    return text if len(text) <= width else text[: width - 3] + "..."


_MOST_VALUES = 100_000
_LINES = "must hold lines of the form name: value"


class _UniqueKeyLoader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys in silence; this loader refuses them.

    So it does what aliases would make endless or huge: nine lines of them stand for a billion values.
    """

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and _num_values(node, {}) > _MOST_VALUES:
            raise yaml.constructor.ConstructorError(None, None, "aliases make too many values", node.start_mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a name must be a word", key.start_mark)
            if key.value in seen:
                reason = f"{key.value} is there twice"
                raise yaml.constructor.ConstructorError(None, None, reason, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _num_values(node: yaml.Node, known: dict[int, int]) -> int:
    """Values in a tree of YAML whose branches may be one and the same; refuses a branch that holds itself."""
    if id(node) not in known:
        known[id(node)] = _MOST_VALUES + 1  # until it is known: what is met inside itself has no end
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        branches = parts if isinstance(node, yaml.CollectionNode) else []
        known[id(node)] = 1 + sum(_num_values(branch, known) for branch in branches)
    return known[id(node)]


def read_yaml(option: str, path: str) -> dict[str, Any]:
    """The mapping in a YAML file. Raises UserError naming `option` and the file."""
    text = read_text(option, path)
    try:
        content = yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(option, path, f"line {line}: {one_line(error.problem or 'not YAML')}") from None
    except yaml.YAMLError as error:
        raise UserError(option, path, f"not YAML: {one_line(str(error))}") from None
    # A date that does not exist, a tag that does not fit.
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise UserError(option, path, f"a value cannot be read: {one_line(str(error))}") from None
    except RecursionError:
        raise UserError(option, path, "is nested too deeply") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(option, path, _LINES)
    return content


def read_text(option: str, path: str) -> str:
    """The text of a UTF-8 file. Raises UserError naming `option` and the file."""
    try:
        return decode_utf8(option, path, Path(path).read_bytes())
    except FileNotFoundError:
        raise UserError(option, path, "no such file") from None
    except OSError as error:
        raise UserError(option, path, f"cannot be read: {error.strerror}") from None
    except ValueError as error:  # a path with a null byte
        raise UserError(option, repr(path), f"cannot be read: {error}") from None


def decode_utf8(option: str, path: str, content: bytes) -> str:
    """`content` without a byte-order mark; raises UserError naming the first line that is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(option, path, f"line {line} is not UTF-8 text") from None
