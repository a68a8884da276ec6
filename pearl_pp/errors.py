"""Errors that are the user's to mend, kept apart from faults of the program."""


class UserError(Exception):
    """A mistake in an option, a file or a model folder that the user can mend.

    Printed as one line, once for all ranks; the process leaves with exit code 2.
    """

    exit_code = 2

    def __init__(self, option: str, value: object, reason: str) -> None:
        # All arguments go to Exception, so that the error can be pickled between processes.
        super().__init__(option, value, reason)
        self.option = option
        self.value = value
        self.reason = reason

    def __str__(self) -> str:
        shown = self.option if self.value is None else f"{self.option} {self.value}"
        return f"{_on_one_line(shown, _LONGEST_SHOWN)}: {_on_one_line(self.reason, _LONGEST_REASON)}"


# Characters: names and values come from files that anybody may have written.
_LONGEST_SHOWN = 400
_LONGEST_REASON = 800

# They do not print, but make one sign of several, as in emoji and Indic scripts.
_JOINERS = "\u200c\u200d"


def printable(text: str) -> str:
    """`text` with escapes for what a terminal would obey, line ends among them."""
    return "".join(c if c.isprintable() or c in _JOINERS else ascii(c)[1:-1] for c in text)


def _on_one_line(text: str, longest: int) -> str:
    text = printable(text[: longest + 1])
    return text if len(text) <= longest else text[: longest - 3] + "..."
