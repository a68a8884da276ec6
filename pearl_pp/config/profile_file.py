"""A profile of a machine and a model pair: the YAML file, read and checked (DESIGN section 10)."""

from typing import Any

from pydantic import BaseModel, ValidationError

from pearl_pp.config.reading import nearest, one_line, read_yaml, reason_of
from pearl_pp.errors import UserError
from pearl_pp.simulation.profile import Link, ModelProfile, Profile, RanksProfile, TargetProfile

_ENTRIES: dict[str, type[BaseModel]] = {
    "target": TargetProfile,
    "draft": ModelProfile,
    "ranks": RanksProfile,
    "link": Link,
}


def read_profile(path: str, option: str = "--emulate") -> Profile:
    """Read and check a profile; raises UserError naming the file, the key and the reason."""
    return check_profile(read_yaml(option, path), path, option)


def check_profile(content: dict[str, Any], path: str, option: str = "--emulate") -> Profile:
    """The profile that `content` is; raises UserError as `read_profile` does, naming `path`."""
    try:
        return Profile.model_validate(content)
    except ValidationError as error:
        raise UserError(option, path, _fault(error)) from None


def _fault(error: ValidationError) -> str:
    """The key and the reason of the first fault; a misspelt key before the key that is missing for it."""
    faults = error.errors(include_url=False)
    # `link` is one entry or a matrix: what it is not is no fault where it is faulty as the other.
    faults = [fault for fault in faults if not _is_branch(fault["loc"])] or faults
    fault = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    loc = tuple(part for end, part in enumerate(fault["loc"], 1) if not _is_branch(fault["loc"][:end]))
    key = _key(loc)
    if fault["type"] == "extra_forbidden":
        known = Profile.model_fields if len(loc) == 1 else _ENTRIES[str(loc[0])].model_fields
        return f"{key}: no such key{nearest(str(loc[-1]), known)}"
    reason = reason_of(fault["type"], fault["msg"])
    if fault["type"] == "missing":
        return f"{key}: {reason}"
    if fault["type"] == "value_error":  # says itself what it is about
        return f"{key}: {reason}" if key else reason
    return f"{key} {one_line(fault['input'])}: {reason}"


_WITH_ALTERNATIVES = ("link", "pass_ms")


def _is_branch(loc: tuple[int | str, ...]) -> bool:
    """Whether the last part is an alternative that pydantic tried, and no part of the file."""
    return len(loc) > 1 and loc[-2] in _WITH_ALTERNATIVES and isinstance(loc[-1], str)


def _key(loc: tuple[int | str, ...]) -> str:
    """`link[0][1].latency_us` for a place in the file."""
    key = ""
    for part in loc:
        key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else part
    return key
