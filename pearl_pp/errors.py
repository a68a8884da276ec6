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
        return f"{self.option}: {self.reason}" if self.value is None else f"{self.option} {self.value}: {self.reason}"
