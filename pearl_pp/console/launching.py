"""Starting the ranks of one machine, and ending all of them when one has failed."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from pearl_pp.console.leaving import EXIT_INTERRUPTED
from pearl_pp.errors import UserError

HOST = "127.0.0.1"
# Read in pearl_pp/transport/joining.py, which loads torch: the launcher need not.
JOB = "PEARL_PP_JOB"
LISTEN_FD = "PEARL_PP_LISTEN_FD"

_Rank = subprocess.Popen[bytes]

# Seconds between two looks at the ranks, and what they get to leave before they are killed.
_POLL_S = 0.05
_GRACE_S = 5.0
# After Ctrl-C in a terminal every rank has had it, too, and leaves by itself.
_GRACE_AFTER_INTERRUPT_S = 1.0
_BEHIND_SIGTERM_S = 0.5


class _Ended(NamedTuple):
    """How the first rank to fail ended; the code is negative for a signal."""

    rank: int
    exit_code: int


class _Stopped(Exception):
    """The launcher itself was asked to end, by `signal_number`."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


def launch(num_ranks: int, arguments: Sequence[str], module: str) -> int:
    """Run `python -m module arguments` on each of `num_ranks` ranks of this machine.

    They meet at a port of the kernel's choice that only this machine can reach. When one fails, the others are
    ended; so are they when the launcher is interrupted or ended. Returns the exit code of the first rank to fail,
    128 + N where signal N ended it or the launcher, else 0. Raises UserError where this machine cannot start so many.
    """
    ranks: list[_Rank] = []
    try:
        with _signals_raise():
            with socket.create_server((HOST, 0)) as listener:
                environment = _environment(num_ranks, listener.getsockname()[1])
                for rank in range(num_ranks):
                    ranks.append(_start(rank, environment, [module, *arguments], listener))
            failed = _first_failure(ranks)
    except KeyboardInterrupt:
        _await(ranks, _GRACE_AFTER_INTERRUPT_S)
        return EXIT_INTERRUPTED
    except _Stopped as stop:
        return 128 + stop.signal_number
    finally:
        _end(ranks)
    return 0 if failed is None else _told(failed)


def _start(rank: int, environment: Mapping[str, str], command: Sequence[str], listener: socket.socket) -> _Rank:
    """Rank 0 gets the socket at which all meet, so nobody can take its port in between; and standard input."""
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    if rank == 0:
        own[LISTEN_FD] = str(listener.fileno())
    try:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", *command],
            env={**environment, **own},
            stdin=None if rank == 0 else subprocess.DEVNULL,
            pass_fds=[listener.fileno()] if rank == 0 else [],
        )
    except OSError as error:  # no memory, or no number for one more process
        reason = f"rank {rank} cannot be started on this machine: {error.strerror}"
        raise UserError("-n", environment["WORLD_SIZE"], reason) from None


def _environment(num_ranks: int, port: int) -> dict[str, str]:
    """What torchrun would tell every rank, and a name for the job, by which ranks of different jobs never meet."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    return environment | {
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),  # else each rank takes every core
        JOB: secrets.token_hex(16),
    }


@contextmanager
def _signals_raise() -> Iterator[None]:
    """SIGTERM and SIGHUP raise here, so that no rank outlives a launcher that is asked to end."""

    def stop(number: int, _: object) -> None:
        raise _Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _first_failure(ranks: Sequence[_Rank]) -> _Ended | None:
    """Wait until a rank has failed or all have ended well."""
    codes = _exit_codes(ranks)
    while None in codes and not any(codes):
        time.sleep(_POLL_S)
        codes = _exit_codes(ranks)
    if set(filter(None, codes)) == {-signal.SIGTERM}:
        time.sleep(_BEHIND_SIGTERM_S)  # a rank that leaves has ended those that are stopped just before
    failures = [_Ended(rank, code) for rank, code in enumerate(_exit_codes(ranks)) if code]
    # Of several at once, a signal is the cause of what others say of it, unless it came from one of them.
    return min(failures, key=_how_late, default=None)


def _exit_codes(ranks: Sequence[_Rank]) -> list[int | None]:
    return [rank.poll() for rank in ranks]


def _how_late(failed: _Ended) -> tuple[bool, bool, int]:
    return failed.exit_code == -signal.SIGTERM, failed.exit_code > 0, failed.rank


def _told(failed: _Ended) -> int:
    """The launcher's exit code; a rank that a signal has ended could say nothing itself."""
    if failed.exit_code > 0:
        return failed.exit_code
    number = -failed.exit_code
    cause = " (the kernel does so when memory runs out)" if number == signal.SIGKILL else ""
    print(f"error: rank {failed.rank} was ended by {_name(number)}{cause}", file=sys.stderr)
    return 128 + number


def _name(signal_number: int) -> str:
    try:
        return signal.Signals(signal_number).name
    except ValueError:  # most of those that are for programs' own use
        return f"signal {signal_number}"


def _end(ranks: Sequence[_Rank]) -> None:
    """End all ranks: ask, also those that are stopped, and kill those that do not leave in time."""
    try:
        _signal(ranks, signal.SIGTERM)
        _signal(ranks, signal.SIGCONT)
        _await(ranks, _GRACE_S)
    finally:  # also where the user is impatient
        _signal(ranks, signal.SIGKILL)
        _await(ranks, _GRACE_S)


def _signal(ranks: Sequence[_Rank], number: int) -> None:
    for rank in ranks:
        rank.send_signal(number)  # nothing where it has ended


def _await(ranks: Sequence[_Rank], seconds: float) -> bool:
    """Whether all ranks have ended within `seconds`."""
    deadline = time.monotonic() + seconds
    while any(rank.poll() is None for rank in ranks):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
