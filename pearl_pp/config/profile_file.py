"""A profile of a machine and a model pair: the YAML file, read and checked (DESIGN section 10)."""

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel, ValidationError

from pearl_pp.config.reading import Place, fault_in_file, read_yaml
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
        raise UserError(option, path, fault_in_file(error, _known, _is_branch)) from None


def _known(place: Place) -> Collection[str]:
    return Profile.model_fields if len(place) == 1 else _ENTRIES[str(place[0])].model_fields


_WITH_ALTERNATIVES = ("link", "pass_ms")


def _is_branch(place: Place) -> bool:
    """A link is one entry or a matrix, times are a number or a list."""
    return len(place) > 1 and place[-2] in _WITH_ALTERNATIVES and isinstance(place[-1], str)
