"""The console script: what it starts, and whose exit code it returns."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pearl_pp import cli


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[str]]]:
    """What would have been started."""
    calls: list[tuple[int, list[str]]] = []

    def launch(ranks: int, options: list[str]) -> int:
        calls.append((ranks, options))
        return 0

    monkeypatch.setattr(cli, "_launch", launch)
    return calls


def test_run_takes_the_ranks_and_leaves_the_options(launched: list[tuple[int, list[str]]]) -> None:
    assert cli.main(["run", "-n", "4", "--prompt", "a b", "--gamma=3"]) == 0
    assert cli.main(["run", "--nproc-per-node=2", "--quiet"]) == 0
    assert launched == [(4, ["--prompt", "a b", "--gamma=3"]), (2, ["--quiet"])]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["run", "-n", "4", "--gama", "3"], "--gama: no such option; did you mean --gamma?"),
        (["run", "--gamma", "3"], "-n: say how many ranks to start, as in pearl-pp run -n 4"),
        (["run", "-n", "0"], "-n 0: must be a whole number, at least 1"),
        (["run", "-n", "four"], "-n four: must be a whole number, at least 1"),
        (["run", "-n"], "-n: needs a number"),
        (["run", "-n", "100000"], "-n 100000: must be at most 99999"),
        (["run", "-n", "4", "--emulate", "/"], "--emulate /: cannot be read: Is a directory"),
        (["run", "-n", "4", "--placement", "/none.yaml"], "--placement /none.yaml: no such file"),
        (["rnu", "-n", "4"], "pearl-pp rnu: no such command; did you mean run?"),
    ],
)
def test_a_mistake_is_one_line_and_starts_nothing(
    argv: list[str], expected: str, launched: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    assert capsys.readouterr() == ("", f"error: {expected}\n")
    assert launched == []


def test_help_lists_the_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in cli.COMMANDS)


def test_a_mistake_of_rank_0_comes_back_once_through_the_launcher(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.txt")
    command = [sys.executable, "-m", "pearl_pp.cli", "run", "-n", "2", "--prompts", missing]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: --prompts {missing}: no such file\n"


def test_usage_without_a_command_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage: pearl-pp run" in capsys.readouterr().out


def test_commands_are_a_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = SimpleNamespace(rest=None)
    monkeypatch.setitem(cli.COMMANDS, "other", lambda rest: setattr(seen, "rest", list(rest)) or 5)
    assert cli.main(["other", "x"]) == 5
    assert seen.rest == ["x"]


def test_ctrl_c_is_an_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "report", interrupted)
    assert cli.main(["report", "x"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["run", "-n", "1", "--max-new-tokens", "2"]])
def test_output_on_a_full_disk_is_one_line(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "pearl_pp.cli", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (2, "error: standard output: cannot be written: No space left on device\n")


def test_a_standard_output_that_is_closed_is_no_fault() -> None:
    command = f"{sys.executable} -m pearl_pp.cli plan --help >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fault_of_another_file_is_not_the_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (
        FileNotFoundError(2, "No such file", "x"),
        OSError(28, "No space left", "x"),
        OSError(111, "refused"),
    ):
        monkeypatch.setitem(cli.COMMANDS, "report", lambda _, error=error: (_ for _ in ()).throw(error))
        with pytest.raises(OSError) as caught:
            cli.main(["report"])
        assert caught.value is error


def test_a_name_that_is_no_text_can_be_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cli.COMMANDS, "report", lambda rest: print(f"wrote {rest[0]}") or 0)
    assert cli.main(["report", "caf\udce9"]) == 0
    assert capsys.readouterr().out == "wrote caf?\n"


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"]])
def test_nobody_reads_to_the_end(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "pearl_pp.cli", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


@pytest.mark.parametrize(
    "argv",
    [["run", "-n"], ["simulate", "-n"], ["simulate", "-n", "2", "--prompt-len"], ["get-example", "--draft-layers"]],
)
def test_more_digits_than_python_reads_are_one_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    last = "1," * (argv[0] == "get-example") + "9" * 5000
    assert cli.main([*argv, last]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {argv[-1]} 999") and ": must be at most " in told and told.count("\n") == 1
