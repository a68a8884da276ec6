"""`pearl-pp simulate -n N --emulate PROFILE.yaml [options]`: what the emulated run would do, without running it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rich import box
from rich.table import Table

from pearl_pp.config import RunConfig
from pearl_pp.config.flags import flag_of, parse_flags
from pearl_pp.console.arguments import count
from pearl_pp.console.record import JsonRecord, require_own_paths, require_writable
from pearl_pp.console.summary import COLUMNS, FORMULAS, cell
from pearl_pp.errors import UserError
from pearl_pp.planning.modes import describe
from pearl_pp.schedule.schedule import TICKS

if TYPE_CHECKING:
    from pearl_pp.runtime.simulated import SimulatedRequest

MODE = "simulated"
DEFAULT_PROMPT_LEN = 64

USAGE = f"""usage: pearl-pp simulate -n RANKS --emulate PROFILE.yaml [--prompt-len L] [options]

  Adds up the times of the passes and messages that pearl-pp run -n RANKS --emulate PROFILE.yaml would make, with the
  same schedule and the same accepted and rejected tokens. What the runtime itself costs is left out.

  -n RANKS          of the profile's, as many as the run would have
  --prompt-len L    tokens of the prompt (default: {DEFAULT_PROMPT_LEN})
  --trace FILE      the timeline, as --trace of a run writes it
  --json FILE       the metrics, as --json of a run writes them

The other options are those of pearl-pp run: --strategy, --placement, --gamma, --max-new-tokens, --seed, ..."""

# Options of a run that mean nothing here, and what to do instead.
_REFUSED = {
    "prompt": "only its length counts here: give --prompt-len",
    "prompts": "only their lengths count here: give --prompt-len",
    "chat": "only the prompt's length counts here: give --prompt-len",
    "stop": "there is no text to stop at; give --max-new-tokens",
    "timeout": "nobody waits for a message here",
    "memory_gb": "only times are simulated, not what fits",
    "quiet": "is for texts, and none are printed here",
}


class _Own(NamedTuple):
    num_ranks: int
    prompt_len: int


def simulate(arguments: Sequence[str]) -> int:
    """Simulate one request, print and record it; returns the exit code. Raises UserError."""
    if "-h" in arguments or "--help" in arguments:
        print(USAGE)
        return 0
    own, config = _parse(arguments)

    from pearl_pp.runtime import simulated  # loads torch: after what a mistake can stop

    result = simulated.simulate(config, own.num_ranks, own.prompt_len)
    if config.trace is not None:
        result.timeline.write_trace(config.trace, f"request 1: {own.prompt_len} tokens")
    _report(config, result)
    return 0


def _parse(arguments: Sequence[str]) -> tuple[_Own, RunConfig]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-n", "--nproc-per-node", "--nproc_per_node", dest="ranks")
    parser.add_argument("--prompt-len", "--prompt_len", default=str(DEFAULT_PROMPT_LEN))
    try:
        own, others = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise UserError(str(error.argument_name).split("/")[0], None, "needs a number") from None
    config = parse_flags(others)
    if own.ranks is None:
        raise UserError("-n", None, "say on how many ranks, as in pearl-pp simulate -n 4")
    num_ranks, prompt_len = count("-n", own.ranks, 1), count("--prompt-len", own.prompt_len, 1)
    changed = config.non_default()
    for name, reason in _REFUSED.items():
        if name in changed:
            raise UserError(flag_of(name), None, reason)
    require_own_paths({"--json": config.json_file, "--trace": config.trace}, {"--emulate": config.emulate})
    require_writable("--json", config.json_file)
    require_writable("--trace", config.trace)
    return _Own(num_ranks, prompt_len), config


def _report(config: RunConfig, result: SimulatedRequest) -> None:
    from rich.console import Console

    from pearl_pp import __version__
    from pearl_pp.console.printing import WIDTH_OF_A_FILE
    from pearl_pp.runtime.request import RequestOutput

    output = RequestOutput("", [], [], "", "length", metrics=result.metrics())
    settings = config.record() | {"seed": result.request.seed}
    versions = {"pearl_pp": __version__}
    JsonRecord(config.json_file, config=settings, plan=_plan(result), versions=versions, mode=MODE).add(output)
    console = Console(width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE, highlight=False, markup=False)
    for line in _lines(config, result):
        console.print(f"{MODE}  {line}", soft_wrap=True)
    console.print()
    console.print(_request_table(output.metrics))
    console.print(_ranks_table(output.metrics["per_rank"]))


def _plan(result: SimulatedRequest) -> dict[str, Any]:
    """By the names that a run records them under."""
    pair, schedule = result.pair, result.schedule
    pass_slots = schedule.pass_ticks / TICKS if schedule.replicas else None
    return {"placement": pair.placement.record(), "strategy": pair.strategy, "pass_slots": pass_slots}


def _lines(config: RunConfig, result: SimulatedRequest) -> list[str]:
    pair, schedule, request = result.pair, result.schedule, result.request
    stages = "+".join(map(str, pair.placement.target))
    replicas = ("+".join(f"rank {shard.rank}" for shard in pair.placement.replicas[n]) for n in schedule.in_use)
    drafting = ""
    if schedule.in_use:
        pattern = f"F = {schedule.fill}, p = {schedule.verify_interval}"
        pace = f"a draft pass is {schedule.pass_ticks / TICKS:.3g} slots"
        drafting = f"; draft on {', '.join(replicas)}; {pattern}; {pace}"
    lines = [
        f"{pair.profile.name}: acceptance {pair.profile.acceptance:g}, seed {request.seed}, free runtime",
        f"{pair.strategy}, placement {pair.placement.name}: {stages} layers{drafting}",
        f"request of {len(request.token_ids)} tokens, answer of {result.timeline.num_tokens}",
    ]
    if config.adapts and schedule.replicas:
        lines.append(f"fastest by the profile: {describe(schedule)}; a run chooses by its own times, and may change")
    return lines


def _request_table(metrics: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE, caption=f"{MODE}; {FORMULAS}", caption_justify="left", pad_edge=False)
    table.add_column("request", justify="right")
    columns = (*COLUMNS, ("hops", "num_hops", "d"))
    for heading, _, _ in columns:
        table.add_column(heading, justify="right")
    table.add_row(f"{MODE} 1", *(cell(metrics[name], form) for _, name, form in columns))
    return table


def _ranks_table(ranks: Sequence[Mapping[str, Any]]) -> Table:
    caption = "idle = share of the time from the start to the last verdict without a pass"
    table = Table(box=box.SIMPLE, caption=caption, caption_justify="left", pad_edge=False)
    for heading in ("rank", "target s", "draft s", "idle"):
        table.add_column(heading, justify="right")
    for number, rank in enumerate(ranks):
        cells = (f"{rank['target_s']:.2f}", f"{rank['draft_s']:.2f}", f"{rank['idle_share']:.1%}")
        table.add_row(f"{MODE} {number}", *cells)
    return table
