"""What rank 0 shows, on a terminal and in a file."""

import io
import re
from typing import Any

import pytest

from pearl_pp.config import RunConfig
from pearl_pp.console.printing import Printer
from pearl_pp.console.summary import cell, line_of
from pearl_pp.runtime.metrics import empty_metrics, totals
from pearl_pp.runtime.request import Prompt, RequestOutput


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def finished(text: str, metrics: dict[str, Any], error: str | None = None) -> RequestOutput:
    ids = list(range(metrics.get("num_output_tokens", 0)))
    return RequestOutput("p", [1], ids, text, None if error else "stop", error=error, metrics=metrics)


def printer_for(config: RunConfig, out: io.StringIO, err: io.StringIO, num_prompts: int = 2) -> Printer:
    printer = Printer(config, out, err)
    printer.expect([Prompt(text=f"prompt {n}") for n in range(num_prompts)])
    return printer


def one_answer(printer: Printer) -> None:
    printer.start(["the plan"], None)
    printer.text(0, "Hel")
    printer.text(0, "lo")
    printer.finish(0, finished("Hello", empty_metrics()))


def test_on_a_terminal_pieces_appear_as_they_come() -> None:
    out = Terminal()
    printer = printer_for(RunConfig(), out, io.StringIO())
    printer.start(["the plan"], None)
    printer.text(0, "Hel")
    assert out.getvalue().endswith("\n[1/2] prompt 0\nHel")
    printer.text(0, "lo")
    printer.finish(0, finished("Hello", empty_metrics()))
    assert out.getvalue() == "the plan\noptions: defaults\n\n[1/2] prompt 0\nHello\n"


def test_in_a_file_a_text_comes_once_and_whole() -> None:
    out, err = io.StringIO(), io.StringIO()
    one_answer(printer_for(RunConfig(), out, err))
    assert out.getvalue() == "the plan\noptions: defaults\n\n[1/2] prompt 0\nHello\n"
    assert err.getvalue() == ""


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_quiet_prints_the_texts_only(stream: type[io.StringIO]) -> None:
    out, err = stream(), Terminal()
    printer = printer_for(RunConfig(quiet=True), out, err)
    printer.progress("weights", 1, 2)
    one_answer(printer)
    printer.summary([line_of(finished("Hello", empty_metrics()))], totals([]))
    assert (out.getvalue(), err.getvalue()) == ("Hello\n", "")


def test_progress_is_for_terminals_only() -> None:
    log, terminal = io.StringIO(), Terminal()
    for err in (log, terminal):
        printer = printer_for(RunConfig(), io.StringIO(), err)
        printer.progress("weights", 1, 2)
        printer.start([], None)
        printer.finish(0, finished("a", empty_metrics()))
        printer.end_progress()
    assert log.getvalue() == ""
    assert "weights" in terminal.getvalue() and re.search(r"prompts.*1/2", terminal.getvalue())


def test_no_progress_beside_streamed_text() -> None:
    err = Terminal()
    one_answer(printer_for(RunConfig(), Terminal(), err))
    assert err.getvalue() == ""


@pytest.mark.case("U2")
def test_options_that_are_not_defaults_are_printed_once_in_a_line() -> None:
    out = io.StringIO()
    config = RunConfig(gamma=5, prompt=("a\nb",), layer_split=(2, 2), json="r.json")
    printer_for(config, out, io.StringIO()).start(["plan"], None)
    assert out.getvalue() == 'plan\noptions: prompt=["a\\nb"] gamma=5 layer_split=[2, 2] json="r.json"\n'


@pytest.mark.case("S5")
def test_the_seed_in_use_is_printed() -> None:
    drawn, given = io.StringIO(), io.StringIO()
    printer_for(RunConfig(temperature=1.0), drawn, io.StringIO()).start([], 123)
    assert "seed: 123 (drawn; --seed 123 repeats this run)\n" in drawn.getvalue()
    printer_for(RunConfig(temperature=1.0, seed=9), given, io.StringIO()).start([], None)
    assert "seed: 9\n" in given.getvalue()


def test_an_error_is_one_line_on_stderr() -> None:
    out, err = io.StringIO(), io.StringIO()
    printer = printer_for(RunConfig(), out, err)
    printer.finish(1, finished("", {}, error="prompt: too\nlong"))
    assert err.getvalue() == "error in prompt 2: too long\n"


def test_an_error_in_the_middle_of_an_answer_stands_on_a_line_of_its_own() -> None:
    out = Terminal()
    printer = printer_for(RunConfig(quiet=True), out, out)
    printer.text(0, "Hel")
    printer.finish(0, finished("Hel", {}, error="broken"))
    printer.finish(1, finished("", {}, error="broken"))
    assert out.getvalue() == "Hel\nerror in prompt 1: broken\nerror in prompt 2: broken\n"


def summary_of(outputs: list[RequestOutput], config: RunConfig | None = None) -> str:
    out = io.StringIO()
    printer_for(config or RunConfig(), out, io.StringIO()).summary(
        [line_of(output) for output in outputs], totals(output.metrics for output in outputs)
    )
    return out.getvalue()


def row(text: str, first: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [first])


@pytest.mark.case("E6")
def test_rates_that_do_not_exist_are_na() -> None:
    text = summary_of([finished("", empty_metrics()), finished("", {}, error="bad")])
    assert row(text, "1") == ["1", "0", "n/a", "n/a", "n/a", "n/a", "n/a", "stop"]
    assert row(text, "2") == ["2", "n/a", "n/a", "n/a", "n/a", "n/a", "n/a", "error"]
    assert "nan" not in text.lower()
    assert cell(float("nan"), ".2f") == cell(None, "d") == "n/a"


def test_the_summary_has_a_row_for_each_request_and_one_for_all(metrics_of: Any) -> None:
    text = summary_of([finished("a", metrics_of(5)), finished("b", metrics_of(3, num_draft_tokens=8))])
    assert row(text, "1") == ["1", "5", "8.00", "0.125", "75.0%", "3.00", "1.00", "stop"]
    assert row(text, "2") == ["2", "3", "4.00", "0.125", "75.0%", "3.00", "1.00", "stop"]
    assert row(text, "all") == ["all", "8", "6.00", "0.125", "75.0%", "3.00", "1.00"]
    assert row(text, "rank")[1:] == ["target", "s", "draft", "s", "target", "pass", "ms", "planned", "MiB"]
    assert row(text, "0") == ["0", "1.00", "0.50", "3.00", "1.0"]
    assert "\x1b" not in text


@pytest.mark.case("U1")
def test_a_draft_that_never_worked_is_told(metrics_of: Any) -> None:
    unused = metrics_of(5, num_draft_tokens=0)
    assert "no draft pass was made: speculation was off" in summary_of([finished("a", unused)])
    one_token = [finished("a", metrics_of(1, num_draft_tokens=0))]
    assert "no draft pass was made: no answer is longer than one token" in summary_of(one_token)
    failed = [finished("", {}, error="bad")]
    assert "no draft pass was made: no prompt was answered" in summary_of(failed)
    assert "no draft pass" not in summary_of([finished("a", metrics_of(5))])
    assert "no draft pass" not in summary_of([finished("a", unused)], RunConfig(strategy="ar"))


@pytest.mark.case("U1")
def test_a_draft_beside_ar_is_told() -> None:
    out = io.StringIO()
    config = RunConfig(strategy="ar", target="t", draft="d")
    printer_for(config, out, io.StringIO()).start([], None)
    assert "the draft is not used: --strategy ar decodes with the target alone\n" in out.getvalue()
