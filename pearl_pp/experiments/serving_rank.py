"""One rank of a group that is kept alive and runs whatever it is told: started by torchrun, led by rank 0's pipe.

torchrun --standalone --nproc-per-node N -m pearl_pp.experiments.serving_rank DEVICE TIMEOUT_S
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from pearl_pp.config import run_config
from pearl_pp.errors import UserError
from pearl_pp.experiments.bench_rank import BenchRank
from pearl_pp.experiments.engines import Engines
from pearl_pp.experiments.lines import Told, answer_all, report_crash
from pearl_pp.runtime.engine import IDLE_S
from pearl_pp.transport.base import Transport, TransportError
from pearl_pp.transport.torch_distributed import connect

# A rank that only lost another one speaks after that one: the first to speak is the cause.
_CONSEQUENCE_S = 2.0


class ServingRank:
    """What this rank can be told; every command is collective, and answered by rank 0.

    `open`, `measure` and `run_opened` are about one engine that is measured alone; `run` is one prompt with any
    options, on engines that share what they have loaded; `run_pipeline` is transformers' own pipeline.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._engines = Engines(transport)
        self._opened: BenchRank | None = None
        self.commands: dict[str, Callable[..., Any]] = {
            "device": self.device,
            "open": self.open,
            "measure": self.measure,
            "run_opened": self.run_opened,
            "run": self._engines.run,
            "run_pipeline": self.run_pipeline,
            "unload": self.unload,
        }
        self._pipeline: Any = None

    @property
    def opened(self) -> BenchRank:
        if self._opened is None:
            raise UserError("open", None, "nothing has been opened")
        return self._opened

    def device(self) -> dict[str, Any]:
        """Where this group's tensors live, and whether there are cards."""
        return {"device": self._transport.device.type, "has_cuda": torch.cuda.is_available()}

    def open(self, options: dict[str, Any]) -> dict[str, Any]:
        self._opened = BenchRank(run_config(options), self._transport)
        return self._opened.describe()

    def measure(self, **options: Any) -> dict[str, Any] | None:
        return self.opened.measure(**options)

    def run_opened(self, gamma: int | str, prompt: dict[str, Any]) -> dict[str, Any] | None:
        return self.opened.run(gamma, prompt)

    def run_pipeline(self, options: dict[str, Any], prompt: dict[str, Any]) -> dict[str, Any]:
        if self._pipeline is None:
            from pearl_pp.experiments.transformers_ranks import TransformersRanks

            self._pipeline = TransformersRanks(self._transport)
        return self._pipeline.run(options, prompt)

    def unload(self) -> None:
        """Frees every model that `run` and `run_pipeline` have loaded."""
        self._pipeline = None
        self._engines.unload()

    def follow(self) -> None:
        """Any rank but 0: does what rank 0 is told."""
        while command := json.loads(self._transport.broadcast_bytes(None, src=0, timeout_s=IDLE_S)):
            ((name, arguments),) = command.items()
            try:
                self.commands[name](**arguments)
            except UserError:
                continue  # rank 0 has it too, and answers

    def lead(self, told: Told) -> None:
        """Rank 0: passes on what it is told, and answers."""

        def on_all(name: str) -> Callable[..., Any]:
            def do(**arguments: Any) -> Any:
                self._transport.broadcast_bytes(json.dumps({name: arguments}).encode(), src=0)
                return self.commands[name](**arguments)

            return do

        answer_all(told, {name: on_all(name) for name in self.commands})
        self._transport.broadcast_bytes(b"{}", src=0)


def main() -> int:
    """Body of a rank; returns its exit code."""
    rank = int(os.environ.get("RANK", "0"))
    told = Told() if rank == 0 else None
    if told is None:
        os.dup2(2, 1)  # the answers' pipe is this rank's standard output, too: what a library prints is no answer
    transport = None
    try:
        transport = connect(sys.argv[1], float(sys.argv[2]))
        serving = ServingRank(transport)
        if told is not None:
            serving.lead(told)
        else:
            serving.follow()
    except UserError as error:
        if told is not None:
            told.user_error(error)
        return UserError.exit_code
    except Exception as error:
        _leave(rank, transport, error)
    transport.close()
    return 0


def _leave(rank: int, transport: Transport | None, error: Exception) -> NoReturn:
    if isinstance(error, TransportError):
        time.sleep(_CONSEQUENCE_S)
    report_crash(rank, error)
    if transport is not None:
        transport.abort(repr(error))
    os._exit(1)  # threads that wait for a peer would hold the process


if __name__ == "__main__":
    sys.exit(main())
