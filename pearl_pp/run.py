"""The main job: `torchrun --standalone --nproc-per-node 4 -m pearl_pp.run [options]`."""

import contextlib
import io
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pearl_pp.config import RunConfig, check_named_files
from pearl_pp.config.flags import parse_flags
from pearl_pp.console import leaving
from pearl_pp.errors import UserError

if TYPE_CHECKING:
    from pearl_pp.console.summary import Line
    from pearl_pp.runtime.engine import PearlPP

Progress = Callable[[str, int, int], None]
OnPlan = Callable[[list[str]], None]
BuildEngine = Callable[[RunConfig, Progress | None, OnPlan | None], "PearlPP"]


def build_engine(config: RunConfig, on_progress: Progress | None, on_plan: OnPlan | None) -> "PearlPP":
    """The engine of this rank. Imported late: a mistake in an option shows before torch has loaded."""
    from pearl_pp.runtime.engine import PearlPP

    return PearlPP(config, on_progress=on_progress, on_plan=on_plan)


def main(argv: Sequence[str] | None = None, build: BuildEngine = build_engine) -> int:
    """Run one rank; returns its exit code.

    0: every prompt was answered; 1: one was not, or the run failed; 2: a mistake in options, files or models;
    130: interrupted.
    """

    def work(rank: int) -> int:
        config = _parse(sys.argv[1:] if argv is None else argv, rank)
        check_named_files(config)
        return _lead(config, build) if rank == 0 else _follow(config, build)

    return leaving.exit_code_of(work)


def _parse(argv: Sequence[str], rank: int) -> RunConfig:
    if rank == 0:
        return parse_flags(argv)
    with contextlib.redirect_stdout(io.StringIO()):
        return parse_flags(argv)


def _follow(config: RunConfig, build: BuildEngine) -> int:
    """Any rank but 0: works on what rank 0 asks for, and prints nothing."""
    engine = build(config, None, None)
    for _ in engine.iterate([]):
        pass
    engine.close()
    return 0


def _lead(config: RunConfig, build: BuildEngine) -> int:
    """Rank 0: reads the prompts, prints and records the answers."""
    from pearl_pp.console.printing import Printer  # rich: rank 0 alone
    from pearl_pp.console.prompts import fix_seed, load_prompts
    from pearl_pp.console.record import JsonRecord, require_own_paths, require_writable

    # Standard input may be slow, and the other ranks wait for this one only so long: connect first.
    prompts = None if config.prompts == "-" else load_prompts(config)
    require_own_paths({"--json": config.json_file, "--trace": config.trace}, {"--prompts": config.prompts})
    require_writable("--json", config.json_file)
    require_writable("--trace", config.trace)
    printer = Printer(config)
    try:
        engine = build(config, printer.progress, printer.plan)
        printer.end_progress()
        prompts, seed = fix_seed(load_prompts(config) if prompts is None else prompts)
        printer.expect(prompts)
        settings = config.record() if seed is None else config.record() | {"seed": seed}
        plan = engine.plan.record()
        record = JsonRecord(config.json_file, config=settings, plan=plan, versions=engine.versions, mode=config.mode)
        printer.start(engine.plan.decision_lines, seed)
        for index, output in enumerate(engine.iterate(prompts, printer.text)):
            record.add(output)
            printer.finish(index, output)
        printer.summary(record.lines, record.totals())
        engine.close()
    finally:
        printer.end_progress()
    return exit_code(record.lines)


def exit_code(lines: Sequence["Line"]) -> int:
    """Of a run that ended so: 0 all answered, 1 some not, 2 none could be run (then it is the user's mistake)."""
    if all(line.error is None for line in lines):
        return 0
    return UserError.exit_code if all(line.was_refused for line in lines) else leaving.EXIT_FAILED


if __name__ == "__main__":
    leaving.be_a_rank(main)
