"""Programs that stay alive and answer one line of JSON to each line of JSON that they are told."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO

from pearl_pp.config.reading import one_line
from pearl_pp.errors import UserError

_CLOSING_S = 20.0
_ANSWERING_S = 1.0  # after its last answer a program is waiting long before this
_READ_BYTES = 1 << 16
_CRASH = re.compile(r"crash of rank (?P<rank>\d+)\| (?P<text>.*)")
_SHOWN_CHARACTERS = 6000


class ProgramFailed(Exception):
    """A program ended before it had answered; says which, and the end of what it wrote on stderr."""


_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def _end_with_parent() -> None:
    """In the child: SIGTERM when the parent is gone; a launcher hands it on to its ranks."""
    assert _prctl is not None
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Program:
    """A child process, with whatever processes it starts, told what to do over a pipe.

    Args:
        name: for errors.
        arguments: after `python -m`.

    It ends when the pipe closes, so also when this process is gone. A program that has not come so far as to read
    its pipe is ended by the kernel then (Linux).
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
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 (one system call)
        )

    def tell(self, message: Mapping[str, Any]) -> None:
        """Sends a message; `answer` waits for what it is answered with."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # why it has ended shows when its answer does not come
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def ask(self, message: Mapping[str, Any]) -> Any:
        """Sends a message and waits for its answer.

        Raises:
            UserError: the program says that this is a mistake of the user's.
            ProgramFailed: it ended without an answer.
        """
        self.tell(message)
        return self.answer()

    def answer(self) -> Any:
        """The next answer. Raises as `ask` does."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):  # nothing, or an answer that was cut short
            raise ProgramFailed(f"{self.name}: {self._last_words()}")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            raise ProgramFailed(
                f"{self.name}: something else was written among its answers: {one_line(line)}"
            ) from None
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
        """Ends the program. One that does not end in time is killed, and what it has started with it (Linux)."""
        self.let_go()
        for end in (lambda: None, self._process.terminate, lambda: _kill_all(self._process.pid)):
            end()
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
        return f"ended with exit code {self._process.returncode}\n{_cause(text)[-_SHOWN_CHARACTERS:]}".rstrip()


def _kill_all(process: int) -> None:
    """SIGKILL to a process, and to its children while they can be told as such. Ranks are in sessions of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGSTOP)  # it starts no more of them
        children = _children(process)
        os.kill(process, signal.SIGKILL)
        for child in children:
            _kill_all(child)


def _children(process: int) -> list[int]:
    found: list[int] = []
    for task in Path("/proc", str(process), "task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def _cause(log: str) -> str:
    """What the first rank to fail has written of it (`report_crash`); the whole log where none has."""
    lines = [found for line in log.splitlines() if (found := _CRASH.match(line))]
    if not lines:
        return log
    first = lines[0]["rank"]
    return "\n".join([f"rank {first}:", *(line["text"] for line in lines if line["rank"] == first)])


def report_crash(rank: int, error: BaseException) -> None:
    """Writes the traceback in one piece, each line with its rank, so that it can be told from all else on stderr."""
    text = "".join(traceback.format_exception(error))
    os.write(2, "".join(f"crash of rank {rank}| {line}\n" for line in text.splitlines()).encode())


class Told:
    """The child's side: what it is told, and its answers. Takes standard output away from everything else.

    When nobody is left to tell it anything while it works, the process ends at once.
    """

    def __init__(self) -> None:
        self._answers: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._is_waiting = threading.Event()
        threading.Thread(target=self._listen, name="told", daemon=True).start()

    def next(self) -> dict[str, Any] | None:
        """The next message; None when there will be no more."""
        self._is_waiting.set()
        line = self._lines.get()
        if line is None:
            return None
        self._is_waiting.clear()
        return json.loads(line)

    def _listen(self) -> None:
        rest = b""
        while part := os.read(0, _READ_BYTES):  # sys.stdin has a lock, which would be held when the process ends
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)
        if not self._is_waiting.wait(_ANSWERING_S):
            os._exit(1)

    def answer(self, content: object) -> None:
        self._answers.write(json.dumps(content) + "\n")
        self._answers.flush()

    def user_error(self, error: UserError) -> None:
        """An answer that `Program` raises."""
        value = error.value if error.value is None else str(error.value)
        self.answer({"user_error": [error.option, value, error.reason]})


def answer_all(told: Told, commands: Mapping[str, Callable[..., Any]]) -> None:
    """Answers messages {name: arguments} with what the command of that name returns, until there are no more."""
    while (message := told.next()) is not None:
        ((name, arguments),) = message.items()
        try:
            told.answer(commands[name](**arguments))
        except UserError as error:
            told.user_error(error)
