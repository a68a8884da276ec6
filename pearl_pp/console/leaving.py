"""How a rank ends when something went wrong: one message for all ranks, the right exit code, and out.

A launcher stops every rank once one has left with a failure. So the rank whose message counts leaves first,
and the others give it time: what they would say is the same mistake again, or that a peer is gone.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from typing import NoReturn

from pearl_pp.errors import UserError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

# Seconds that a rank waits before it speaks. All ranks must be gone in 30 s.
BEHIND_RANK_0 = 10.0
BEHIND_CAUSE = 15.0  # where a peer is missed: longer than a rank with a mistake of its own waits for rank 0
BEHIND_LOWER_RANK = 0.5
AFTER_INTERRUPT = 5.0


def report_user_error(error: UserError, rank: int) -> int:
    """Rank 0 says it at once; another rank only if nobody has stopped it by then. Returns the exit code."""
    if rank == 0:
        _say(f"error: {error}")
    else:
        time.sleep(BEHIND_RANK_0)
        _say(f"error: rank {rank}: {error}")
    return UserError.exit_code


def report_failure(error: BaseException, rank: int) -> int:
    """Print the first failure of the run with its rank and traceback. Returns the exit code."""
    time.sleep(rank * BEHIND_LOWER_RANK + (BEHIND_CAUSE if _comes_from_a_peer(error) else 0.0))
    _say(f"error: rank {rank} failed\n" + "".join(traceback.format_exception(error)).rstrip())
    return EXIT_FAILED


def _comes_from_a_peer(error: BaseException) -> bool:
    """Whether the failure, or what it came from, is a message that another rank did not send or take."""
    if "torch" not in sys.modules:
        return False
    from pearl_pp.transport.base import TransportError  # imports torch: not for an early mistake

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, TransportError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


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


def leave(code: int) -> NoReturn:
    """End the process. After a failure at once: threads that wait for a peer would hold it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if code != 0:
        os._exit(code)
    sys.exit(0)
