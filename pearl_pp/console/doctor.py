"""`pearl-pp doctor`: starts the ranks, connects them and says what they found and what would go wrong.

`pearl-pp doctor -n N` starts them on this machine; on several machines it runs as the main job does:
`torchrun --nnodes 2 --nproc-per-node 4 ... -m pearl_pp.console.doctor [options]`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pearl_pp.console import leaving
from pearl_pp.console.arguments import parse_arguments
from pearl_pp.console.record import require_writable
from pearl_pp.errors import UserError
from pearl_pp.files import write_whole

if TYPE_CHECKING:
    from pearl_pp.transport.base import Transport

OPTIONS = ("--device", "--timeout", "--json")
EXIT_STOPPED = 1

# Ranks that start on a busy machine, or on another one, may come late; a user waits for the answer.
_TIMEOUT_S = 60.0
_LONGEST_S = 604_800.0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Options of every rank. Raises UserError, and SystemExit(0) after printing `--help`."""
    parser = argparse.ArgumentParser(
        prog="pearl-pp doctor [-n RANKS]", allow_abbrev=False, exit_on_error=False, description=__doc__
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: auto")
    parser.add_argument(
        "--timeout", type=float, default=_TIMEOUT_S, metavar="SECONDS", help=f"to connect in (default: {_TIMEOUT_S:g})"
    )
    parser.add_argument("--json", metavar="FILE", help="write what was found here")
    parser.add_argument("--local-rank", help=argparse.SUPPRESS)  # older launchers add it
    options = parse_arguments(parser, arguments, OPTIONS, "doctor")
    if not 0 < options.timeout <= _LONGEST_S:
        raise UserError("--timeout", f"{options.timeout:g}", f"must be more than 0 and at most {_LONGEST_S:g}")
    return options


def default_num_ranks() -> int:
    """One rank for each card; two where there is none."""
    import torch

    return torch.cuda.device_count() or 2


def main(arguments: Sequence[str] | None = None) -> int:
    """One rank; rank 0 prints. Exit code 0; 1 where something would stop a run; 2 for a mistake in the options."""

    def work(rank: int) -> int:
        options = parse(sys.argv[1:] if arguments is None else arguments)
        if rank == 0:
            require_writable("--json", options.json)
        return _examine(options, rank)

    return leaving.exit_code_of(work)


def _examine(options: argparse.Namespace, rank: int) -> int:
    from pearl_pp.console.diagnosis import Finding, diagnose
    from pearl_pp.runtime.machine import look_around
    from pearl_pp.transport.base import CannotJoin, TransportError
    from pearl_pp.transport.torch_distributed import connect

    try:
        transport = connect(options.device, options.timeout)
    except (UserError, CannotJoin, TimeoutError, RuntimeError, ValueError, TransportError) as error:
        if rank != 0:
            time.sleep(leaving.BEHIND_RANK_0)  # rank 0 tells, and the launcher then ends all
            raise
        mine = [look_around(None)]
        cause = Finding(True, f"rank 0 cannot join the other ranks: {str(error).splitlines()[0]}")
        return _tell(options, mine, {}, [cause, *diagnose(mine)])
    try:
        code = _measure(options, transport)
    except BaseException as error:
        transport.abort(repr(error))  # the others need not wait for this rank until their time is up
        raise
    transport.close()
    return code


def _measure(options: argparse.Namespace, transport: Transport) -> int:
    """Collective: what all ranks found and how fast they reach one another. Returns the exit code, on every rank."""
    from pearl_pp.console.diagnosis import diagnose
    from pearl_pp.runtime.link_times import measure_links
    from pearl_pp.runtime.machine import RankFacts, look_around
    from pearl_pp.transport.base import Channel

    facts = transport.gather_bytes(json.dumps(look_around(transport.device).record()).encode(), dst=0)
    planes = {"control": Channel.CONTROL, "tensors": Channel.ACTIVATIONS}
    links = {plane: measure_links(transport, channel) for plane, channel in planes.items()}
    code = b""
    if facts is not None:
        ranks = [RankFacts(**json.loads(entry)) for entry in facts]
        findings = diagnose(ranks, links["tensors"])
        code = str(_tell(options, ranks, links, findings)).encode()
    return int(transport.broadcast_bytes(code, src=0))


def _tell(options: argparse.Namespace, ranks: list[Any], links: dict[str, Any], findings: list[Any]) -> int:
    """Print and write what was found, on rank 0. Returns the exit code."""
    from pearl_pp.console.doctor_report import print_report

    print_report(ranks, links, findings)
    if options.json is not None:
        record = {
            "ranks": [rank.record() for rank in ranks],
            "links": {
                plane: [[link and link._asdict() for link in row] for row in table or ()]
                for plane, table in links.items()
            },
            "findings": [finding._asdict() for finding in findings],
        }
        write_whole("--json", options.json, json.dumps(record, indent=1, allow_nan=False) + "\n")
    return EXIT_STOPPED if any(finding.stops for finding in findings) else 0


if __name__ == "__main__":
    leaving.be_a_rank(main)
