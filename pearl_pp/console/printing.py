"""What rank 0 shows: plan, options, texts as they are verified, progress, the summary."""

import json
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pearl_pp.config import RunConfig
from pearl_pp.config.reading import one_line, shortened
from pearl_pp.console.prompts import label
from pearl_pp.console.summary import Line, per_rank_table, requests_table
from pearl_pp.runtime.request import Prompt, RequestOutput

WIDTH_OF_A_FILE = 120
_LONGEST_ERROR = 1000  # a path in it may be long, and what is wrong stands behind it


class Printer:
    """Prints one run. Texts stream where `stdout` is a terminal, and come whole where it is not.

    Progress goes to `stderr`, only on a terminal, and never beside streamed text.
    """

    def __init__(self, config: RunConfig, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self._config = config
        self._prompts: Sequence[Prompt] = ()
        self._out = stdout or sys.stdout
        self._err = stderr or sys.stderr
        self._streams = self._out.isatty()
        self._opened: set[int] = set()
        self._streaming: set[int] = set()
        self._progress: Progress | None = None
        self._tasks: dict[str, Any] = {}

    def progress(self, what: str, done: int, total: int) -> None:
        """Show how far `what` is; the engine calls this while it loads."""
        if self._config.quiet or not self._err.isatty():
            return
        if self._progress is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
            if what == "prompts":
                columns = (*columns[:2], MofNCompleteColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, console=Console(file=self._err), transient=True)
            self._progress.start()
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done, total=total)

    def end_progress(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress, self._tasks = None, {}

    def plan(self, lines: Sequence[str]) -> None:
        """Where everything will be, before anything is loaded."""
        if not self._config.quiet:
            for line in lines:
                self._numbers(line)

    def expect(self, prompts: Sequence[Prompt]) -> None:
        """What will be answered, as soon as it is known; before `start`."""
        self._prompts = prompts

    def start(self, plan_lines: Sequence[str], seed: int | None) -> None:
        """What has been chosen, the options that are not defaults, and the seed if one was drawn, after loading."""
        self.end_progress()
        if not self._streams and len(self._prompts) > 1:
            self.progress("prompts", 0, len(self._prompts))
        if self._config.quiet:
            return
        changed = self._config.non_default().items()
        for line in plan_lines:
            self._numbers(line)
        pairs = [f"{name}={one_line(json.dumps(value, ensure_ascii=False))}" for name, value in changed]
        self._numbers("options: " + (" ".join(pairs) if pairs else "defaults"))
        if seed is not None:
            self._numbers(f"seed: {seed} (drawn; --seed {seed} repeats this run)")
        elif self._config.seed is not None:
            self._numbers(f"seed: {self._config.seed}")
        if self._config.draft is not None and self._config.strategy == "ar":
            self._line("the draft is not used: --strategy ar decodes with the target alone")

    def text(self, index: int, piece: str) -> None:
        """A verified piece of the answer to prompt `index`, as soon as there is one."""
        if self._streams:
            self._open(index)
            self._streaming.add(index)
            self._out.write(piece)
            self._out.flush()

    def finish(self, index: int, output: RequestOutput) -> None:
        """The end of an answer; its whole text where nothing was streamed."""
        self._open(index)
        if output.error is not None:
            if index in self._streaming:  # the error does not stand behind half an answer
                self._out.write("\n")
                self._out.flush()
            reason = shortened(output.error.removeprefix("prompt: "), _LONGEST_ERROR)
            self._err.write(f"error in prompt {index + 1}: {reason}\n")
            self._err.flush()
        else:
            self._out.write("\n" if self._streams else output.text + "\n")
        self._out.flush()
        if not self._config.quiet:
            for note in output.notes:
                self._numbers(f"note      {note}")
        if self._progress is not None:
            self.progress("prompts", index + 1, len(self._prompts))

    def summary(self, lines: Sequence[Line], totals: dict[str, Any]) -> None:
        """The tables after the last answer, and a line where a draft was there and never used."""
        self.end_progress()
        if self._config.quiet or not lines:
            return
        console = Console(
            file=self._out, width=None if self._streams else WIDTH_OF_A_FILE, highlight=False, markup=False
        )
        console.print()
        console.print(requests_table(lines, totals, self._config.mode))
        if totals.get("per_rank"):
            console.print(per_rank_table(totals["per_rank"], self._config.mode))
        if self._config.strategy != "ar" and not totals.get("num_draft_tokens"):
            self._line(f"no draft pass was made: {_why_no_draft(lines)}")

    def _open(self, index: int) -> None:
        """The heading of an answer, once."""
        if index in self._opened:
            return
        self._opened.add(index)
        if not self._config.quiet:
            self._line(f"\n[{index + 1}/{len(self._prompts)}] {label(self._prompts[index])}")

    def _numbers(self, text: str) -> None:
        """A line with numbers in it: says where they come from unless the run is real."""
        mode = self._config.mode
        self._line(text if mode == "real" else f"{mode}  {text}")

    def _line(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()


def _why_no_draft(lines: Sequence[Line]) -> str:
    finished = [line for line in lines if line.error is None]
    if not finished:
        return "no prompt was answered"
    if all(line.num_output_tokens <= 1 for line in finished):
        return "no answer is longer than one token"
    return "speculation was off; see the plan above"
