"""Programs that stay alive and answer one line of JSON to each line of JSON that they are told."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from pearl_pp.errors import UserError

_CLOSING_S = 20.0
_SHOWN_CHARACTERS = 6000


class ProgramFailed(Exception):
    """A program ended before it had answered; says which, and the end of what it wrote on stderr."""


class Program:
    """A child process, with whatever processes it starts, told what to do over a pipe.

    Args:
        name: for errors.
        arguments: after `python -m`.

    It ends when the pipe closes, so also when this process is gone.
    """

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the program)
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={"OMP_NUM_THREADS": "1"} | os.environ,
            start_new_session=True,  # Ctrl-C is this process's to handle
        )

    def ask(self, message: Mapping[str, Any]) -> Any:
        """Sends a message and waits for its answer.

        Raises:
            UserError: the program says that a mistake of the user's ended it.
            ProgramFailed: it ended without an answer.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # why it has ended shows below
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        """The next answer; the first one says that the program is ready. Raises as `ask` does."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ProgramFailed(f"{self.name}: {self._last_words()}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "user_error" in answer:
            raise UserError(*answer["user_error"])
        return answer

    def let_go(self, error: type[BaseException] | None = None, *_: object) -> None:
        """Lets the program end of itself, or tells it to after an error; `close` waits for it."""
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        if error is not None and self._process.poll() is None:
            self._process.terminate()

    def close(self) -> None:
        """Ends the program and all it has started."""
        self.let_go()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                self._process.send_signal(number)
            try:
                self._process.wait(_CLOSING_S)
                break
            except subprocess.TimeoutExpired:
                continue
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSING_S)
        self._log.seek(0)
        text = self._log.read().decode(errors="replace").strip()
        return f"ended with exit code {self._process.returncode}\n{text[-_SHOWN_CHARACTERS:]}".rstrip()


class Told:
    """The child's side: what it is told, and its answers. Takes standard output away from everything else."""

    def __init__(self) -> None:
        self._answers: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def next(self) -> dict[str, Any] | None:
        """The next message; None when there will be no more."""
        line = sys.stdin.readline()
        return json.loads(line) if line else None

    def answer(self, content: object) -> None:
        self._answers.write(json.dumps(content) + "\n")
        self._answers.flush()

    def user_error(self, error: UserError) -> None:
        """The last answer: why there will be no others."""
        value = error.value if error.value is None else str(error.value)
        self.answer({"user_error": [error.option, value, error.reason]})
