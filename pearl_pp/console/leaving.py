"""How a rank ends when something went wrong: one message for all ranks, the right exit code, and out.

A launcher stops every rank once one has left with a failure. So the rank whose message counts leaves first,
and the others give it time: what they would say is the same mistake again, or that a peer is gone.
"""

import contextlib
import errno
import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, NoReturn

from pearl_pp.errors import UserError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

# Seconds that a rank waits before it speaks. All ranks must be gone in 30 s.
BEHIND_RANK_0 = 10.0
BEHIND_CAUSE = 15.0  # where a peer is missed: longer than a rank with a mistake of its own waits for rank 0
BEHIND_LOWER_RANK = 0.5
LONGEST_BEHIND_LOWER_RANK = 4.0
AFTER_INTERRUPT = 5.0
BETWEEN_LOOKS_AT_LAUNCHER = 1.0

_STARTED = time.monotonic()

# What a rank finds in its environment: who started it (the last one is deepspeed's), how many there are on this machine
# (the last one, too), and where it meets the others.
_LAUNCHERS = ("PEARL_PP_JOB", "TORCHELASTIC_RUN_ID", "CROSS_SIZE")
_NUM_HERE = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")
_MEETING_PLACE = ("MASTER_ADDR", "MASTER_PORT")


def be_a_rank(main: Callable[[], int]) -> NoReturn:
    """The body of a rank's process: `main` gives its exit code, and nothing holds the process longer than it may."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an answer may hold what an ASCII terminal cannot show
    watch_for_interrupt()
    watch_launcher()
    leave(main())


def exit_code_of(work: Callable[[int], int]) -> int:
    """The exit code of this rank, which does `work(rank)`; what goes wrong is said here, once for all ranks."""
    try:
        return _exit_code(work, own_rank())
    except KeyboardInterrupt:  # also one in the silence before this rank speaks
        return EXIT_INTERRUPTED


def _exit_code(work: Callable[[int], int], rank: int) -> int:
    try:
        return work(rank)
    except UserError as error:
        return report_user_error(error, rank)
    except KeyboardInterrupt:
        raise
    except BrokenPipeError:
        return EXIT_FAILED
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    except BaseException as error:
        if rank == 0 and isinstance(error, OSError) and (told := of_stdout(error)) is not None:
            return report_user_error(told, rank)
        return report_failure(error, rank)


# No room, or too large: of files with a name, whoever writes them tells it.
_OF_A_STREAM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def of_stdout(error: OSError) -> UserError | None:
    """What to tell of a standard output that takes no more; None: the error is of something else."""
    if error.errno not in _OF_A_STREAM or error.filename is not None:
        return None
    return UserError("standard output", None, f"cannot be written: {error.strerror}")


def own_rank() -> int:
    """As the launcher says; 0 where there is none, or where it says what is none (which is told on connecting)."""
    return _rank_in(os.environ) or 0


def report_user_error(error: UserError, rank: int) -> int:
    """Rank 0 says it at once; another rank only if nobody has stopped it by then. Returns the exit code."""
    if rank == 0:
        _say(f"error: {error}")
    else:
        time.sleep(BEHIND_RANK_0)
        _say(f"error: rank {rank}: {error}")
    return UserError.exit_code


def report_failure(error: BaseException, rank: int) -> int:
    """Print the first failure of the run with its rank. Returns the exit code.

    What has gone wrong between ranks is one line; anything else comes with its traceback.
    """
    behind = min(rank * BEHIND_LOWER_RANK, LONGEST_BEHIND_LOWER_RANK)
    behind_cause = _behind_cause(error)
    time.sleep(behind + behind_cause)
    if _has_another_left():  # it has spoken, and a launcher may look only once a second
        time.sleep(BEHIND_CAUSE - behind_cause)
    trace = "".join(traceback.format_exception(error)).rstrip()
    if _is_between_ranks(error):
        _say(f"error: {error}")
    elif _is_out_of_memory(error):
        _say(f"error: rank {rank} ran out of memory\n{trace}")
    else:
        _say(f"error: rank {rank} failed\n{trace}")
    return EXIT_FAILED


def _behind_cause(error: BaseException) -> float:
    """Seconds in which another rank, if it lives, will speak itself of the failure that this one follows from."""
    if "torch" not in sys.modules:
        return 0.0
    from pearl_pp.transport.base import (  # imports torch: not before
        MessageMismatch,
        RanksMissing,
        SilentPeer,
        TransportError,
    )

    if isinstance(error, RanksMissing):  # the missing rank had its mistake when it started, as this one did
        return max(0.0, BEHIND_CAUSE - (time.monotonic() - _STARTED))
    follows = [not isinstance(c, SilentPeer | MessageMismatch) for c in _causes(error) if isinstance(c, TransportError)]
    return BEHIND_CAUSE if follows and all(follows) else 0.0


def _is_between_ranks(error: BaseException) -> bool:
    if "torch" not in sys.modules:
        return False
    from pearl_pp.transport.base import CannotJoin, RanksMissing, TransportError

    return isinstance(error, TransportError | RanksMissing | CannotJoin)


def _is_out_of_memory(error: BaseException) -> bool:
    # torch has a type of its own for a card, and none for a CPU
    return isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate memory" in str(error)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _say(text: str) -> None:
    # One write: lines of several ranks must not mix.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def watch_for_interrupt() -> None:
    """Leave some seconds after Ctrl-C even if the main thread hangs in a message it waits for.

    Python raises KeyboardInterrupt between two of its own instructions only; a wait in a library may be long.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def watch() -> None:
        while os.read(reader, 1)[0] != signal.SIGINT:
            pass  # every signal that has a handler of Python's is written here
        time.sleep(AFTER_INTERRUPT)
        os._exit(EXIT_INTERRUPTED)

    threading.Thread(target=watch, name="interrupt", daemon=True).start()


def watch_launcher() -> None:
    """Leave soon after the launcher has gone without a word: nobody else would end a rank that waits for others."""
    if not any(name in os.environ for name in _LAUNCHERS):
        return  # started by hand: the shell may go
    launcher, rank = os.getppid(), own_rank()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(BETWEEN_LOOKS_AT_LAUNCHER)
        end_stopped_ranks()
        time.sleep(BETWEEN_LOOKS_AT_LAUNCHER / 2)  # they are gone by then
        if all(other.rank >= rank for other in _others_here()):
            _say("error: the launcher of this rank has gone")
            time.sleep(3 * BETWEEN_LOOKS_AT_LAUNCHER)  # all others here see that this one lives, and leave it to speak
        os._exit(EXIT_FAILED)

    threading.Thread(target=watch, name="launcher", daemon=True).start()


def leave(code: int) -> NoReturn:
    """End the process. After a failure at once: threads that wait for a peer would hold it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if code != 0:
        end_stopped_ranks()
        os._exit(code)
    sys.exit(0)


def end_stopped_ranks() -> None:
    """End the ranks of this job on this machine that are stopped.

    A stopped process hears a request to end when it goes on; launchers wait half a minute before they use force.
    """
    for other in _others_here():
        if other.is_stopped:
            with contextlib.suppress(OSError):
                os.kill(other.pid, signal.SIGTERM)
                os.kill(other.pid, signal.SIGCONT)


def _has_another_left() -> bool:
    """Whether fewer ranks of this job than were started are on this machine; no, where that cannot be seen."""
    told = [os.environ[name] for name in _NUM_HERE if name in os.environ]
    if not told or not told[0].isdecimal() or not _environment("/proc/self"):
        return False
    return 1 + sum(1 for _ in _others_here()) < int(told[0])


class _Other(NamedTuple):
    """Another rank of this job on this machine."""

    pid: int
    rank: int
    is_stopped: bool


def _others_here() -> Iterator[_Other]:
    mine = _meeting_place(os.environ)
    if mine is None or _rank_in(os.environ) is None:
        return
    with contextlib.suppress(OSError):  # no /proc
        for entry in os.scandir("/proc"):
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                theirs = _environment(entry.path)
                if _meeting_place(theirs) == mine and (rank := _rank_in(theirs)) is not None:
                    yield _Other(int(entry.name), rank, _is_stopped(entry.path))


def _meeting_place(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    place = tuple(environment[name] for name in _MEETING_PLACE if name in environment)
    return place if len(place) == len(_MEETING_PLACE) else None


def _rank_in(environment: Mapping[str, str]) -> int | None:
    with contextlib.suppress(KeyError, ValueError):
        return int(environment["RANK"])
    return None


def _is_stopped(process: str) -> bool:
    with contextlib.suppress(OSError), open(f"{process}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[:1] == [b"T"]
    return False


def _environment(process: str) -> dict[str, str]:
    with contextlib.suppress(OSError), open(f"{process}/environ", "rb") as file:
        pairs = (entry.partition("=") for entry in file.read().decode(errors="replace").split("\0"))
        return {name: value for name, _, value in pairs}
    return {}
