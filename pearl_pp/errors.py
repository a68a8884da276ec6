"""Errors that are the user's to mend, kept apart from faults of the program."""


class UserError(Exception):
    """A mistake in an option, a file or a model folder that the user can mend.

    Printed as one line, once for all ranks; the process leaves with exit code 2.
    """

    exit_code = 2

    def __init__(self, option: str, value: object, reason: str) -> None:
        self.option = option
        self.value = value
        self.reason = reason
        super().__init__(f"{option} {value}: {reason}" if value is not None else f"{option}: {reason}")
