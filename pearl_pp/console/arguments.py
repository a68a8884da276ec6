"""Reading the options of a command that has few of its own."""

import argparse
from collections.abc import Collection, Sequence

from pearl_pp.config.reading import nearest
from pearl_pp.errors import UserError


def parse_arguments(
    parser: argparse.ArgumentParser, arguments: Sequence[str], known: Collection[str], command: str
) -> argparse.Namespace:
    """What `parser` (made with `exit_on_error=False`) finds.

    Args:
        known: the options, of which a misspelt one is told the nearest. command: what a fault without an option is of.

    Raises:
        UserError: a fault, or an option that there is not.
        SystemExit: 0, after printing `--help`.
    """
    try:
        options, unknown = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise UserError(error.argument_name or command, None, error.message) from None
    if unknown:
        raise UserError(unknown[0], None, f"no such option{nearest(unknown[0], known)}")
    return options


def count(option: str, value: str, least: int, most: int = 999_999_999) -> int:
    """A whole number as it was written; raises UserError for anything else, below `least` and above `most`."""
    is_number = value.isdecimal()
    if is_number and (len(value) > _MOST_DIGITS or int(value) > most):
        raise UserError(option, value, f"must be at most {most}")
    if not is_number or int(value) < least:
        raise UserError(option, value, f"must be a whole number, at least {least}")
    return int(value)


_MOST_DIGITS = 20  # Python refuses to read some thousands


def counts(option: str, value: str, least: int) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    return tuple(count(option, part.strip(), least) for part in value.split(","))
