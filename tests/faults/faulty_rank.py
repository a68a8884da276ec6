"""A rank of the main job that does something bad: `python -m tests.faults.faulty_rank [options of pearl_pp.run]`.

FAULT in the environment is JSON: the rank, what happens on it, how many slots after the file `armed` has appeared
in the folder. The product knows nothing of it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["FAULT_FOLDER"])
FAULT = json.loads(os.environ["FAULT"])


def raises() -> None:
    raise RuntimeError("injected")


def runs_out_of_memory() -> None:
    import torch

    torch.empty(2**44)


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def is_stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def is_stopped_at_its_start() -> None:
    is_stopped()


def meets_a_full_disk() -> None:
    """The next version of the record does not fit, as on a disk without room."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def sends_another_dtype() -> None:
    _spoil_sends(lambda tensor: tensor.double())


def sends_too_little() -> None:
    _spoil_sends(lambda tensor: tensor.flatten()[: tensor.numel() // 2])


def _spoil_sends(spoil: Callable[[Any], Any]) -> None:
    from pearl_pp.transport.gloo import GlooTransport

    send = GlooTransport.isend

    def spoiled(self: Any, channel: Any, dst: int, tensor: Any) -> Any:
        return send(self, channel, dst, tensor if channel == 0 else spoil(tensor))  # 0: CONTROL

    GlooTransport.isend = spoiled  # type: ignore[method-assign]


def is_slow() -> None:
    """From now on every slot takes this rank some ten times longer."""
    from pearl_pp.schedule.generator import SlotGenerator

    next_slot = SlotGenerator.next_slot

    def slow(self: Any) -> Any:
        time.sleep(0.02)
        return next_slot(self)

    SlotGenerator.next_slot = slow  # type: ignore[method-assign]


def waits_for_the_test() -> None:
    """Nothing bad here: the test itself does it."""


def is_interrupted() -> None:
    """The test does it."""


def never_comes() -> None:
    time.sleep(3600)


FAULTS: dict[str, Callable[[], None]] = {
    fault.__name__: fault
    for fault in (
        raises,
        runs_out_of_memory,
        is_killed,
        is_stopped,
        is_stopped_at_its_start,
        meets_a_full_disk,
        sends_another_dtype,
        sends_too_little,
        is_slow,
        waits_for_the_test,
        is_interrupted,
        never_comes,
    )
}


AT_THE_START = {"is_stopped_at_its_start", "never_comes"}


def arm() -> None:
    """The fault happens on entering a slot, some slots after the test has said so."""
    from pearl_pp.schedule.generator import SlotGenerator

    next_slot = SlotGenerator.next_slot
    left = FAULT["after"]

    def faulty(self: Any) -> Any:
        nonlocal left
        if left >= 0 and (FOLDER / "armed").exists():
            left -= 1
            if left < 0:
                (FOLDER / "fired").write_text(str(time.time()))
                FAULTS[FAULT["what"]]()
        return next_slot(self)

    SlotGenerator.next_slot = faulty  # type: ignore[method-assign]


if __name__ == "__main__":
    from pearl_pp import run
    from pearl_pp.console import leaving

    (FOLDER / f"port-{os.environ['RANK']}").write_text(os.environ["MASTER_PORT"])
    leaving.watch_for_interrupt()
    leaving.watch_launcher()
    if int(os.environ["RANK"]) == FAULT["rank"]:
        if FAULT["what"] in AT_THE_START:
            FAULTS[FAULT["what"]]()
        arm()
    leaving.leave(run.main(sys.argv[1:]))
