"""The main job around a fake engine: order of output, exit codes, what survives a failure."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pearl_pp import run
from pearl_pp.console import leaving
from pearl_pp.console.summary import line_of
from pearl_pp.errors import UserError
from pearl_pp.runtime.request import RequestOutput


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that a rank waited before it spoke."""
    seconds: list[float] = []
    monkeypatch.setattr(leaving.time, "sleep", seconds.append)
    return seconds


def test_a_good_run(make_factory: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    factory = make_factory()
    path = tmp_path / "r.json"
    assert run.main(["-p", "abc", "-p", "de", "--json", str(path), "--gamma", "3"], factory) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.startswith("target: 4 stages\noptions: ")
    assert shown.out.count("abc!\n") == shown.out.count("de!\n") == 1
    assert shown.out.index("[1/2] abc") < shown.out.index("abc!\n") < shown.out.index("[2/2] de")
    content = json.loads(path.read_text())
    assert [request["text"] for request in content["requests"]] == ["abc!", "de!"]
    assert content["config"]["gamma"] == 3 and content["totals"]["num_output_tokens"] == 7
    assert factory.engine.closed


@pytest.mark.case("S5")
def test_the_seed_drawn_is_given_to_the_engine_printed_and_recorded(
    make_factory: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = set()
    for _ in range(3):
        factory = make_factory()
        assert run.main(["-p", "a", "--temperature", "1", "--json", str(tmp_path / "r.json")], factory) == 0
        seed = json.loads((tmp_path / "r.json").read_text())["config"]["seed"]
        assert [prompt.params.seed for prompt in factory.engine.seen] == [seed]
        assert f"seed: {seed} " in capsys.readouterr().out
        seeds.add(seed)
    assert len(seeds) == 3


def test_one_bad_prompt_leaves_the_others_answered_and_exit_code_1(
    make_factory: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / ("x" * 150)  # a long name does not hide what is wrong
    folder.mkdir()
    prompts = folder / "p.jsonl"
    prompts.write_text('{"prompt": "abc"}\nnot json\n{"prompt": "de"}\n')
    path = tmp_path / "r.json"
    assert run.main(["--prompts", str(prompts), "--json", str(path)], make_factory()) == 1
    shown = capsys.readouterr()
    assert shown.err == f"error in prompt 2: {prompts} line 2: not JSON: Expecting value at column 1\n"
    assert "abc!\n" in shown.out and "de!\n" in shown.out
    requests = json.loads(path.read_text())["requests"]
    assert [bool(request["error"]) for request in requests] == [False, True, False]


def test_a_trace_that_cannot_be_written_does_not_cost_the_summary(
    make_factory: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    fault = UserError("--trace", "t.json", "cannot be written: No space left on device")
    assert run.main(["-p", "abc"], make_factory(fault_at_close=fault)) == 2
    shown = capsys.readouterr()
    assert shown.err == "error: --trace t.json: cannot be written: No space left on device\n"
    assert "tokens/s" in shown.out


@pytest.mark.case("S6")
def test_the_exit_code_says_whether_a_prompt_could_be_run() -> None:
    answered, refused = RequestOutput("p", [1], [2], "t", "stop"), RequestOutput("p", [], [], "", None, error="bad")
    broke_off = RequestOutput("p", [1], [2], "t", None, error="no numbers")
    outputs = {
        0: [[answered], [answered, answered], []],
        1: [[answered, refused], [broke_off], [broke_off, refused]],
        2: [[refused], [refused, refused]],
    }
    for code, runs in outputs.items():
        assert [run.exit_code([line_of(output) for output in each]) for each in runs] == [code] * len(runs)


@pytest.mark.case("P4")
@pytest.mark.parametrize("fault", [RuntimeError("broken"), KeyboardInterrupt()])
def test_finished_requests_are_on_disk_when_a_run_breaks(
    fault: BaseException, make_factory: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    argv = ["-p", "abc", "-p", "de", "-p", "f", "--json", str(path)]
    code = run.main(argv, make_factory(fault=fault, fault_at=2))
    assert [request["text"] for request in json.loads(path.read_text())["requests"]] == ["abc!", "de!"]
    err = capsys.readouterr().err
    if isinstance(fault, KeyboardInterrupt):
        assert (code, err) == (130, "")
    else:
        assert code == 1
        assert err.startswith("error: rank 0 failed\nTraceback ") and err.endswith("RuntimeError: broken\n")
        assert err.count("RuntimeError") == 1


@pytest.mark.parametrize(
    "argv",
    [["--gamma", "0"], ["--prompts", "nowhere.txt"], ["--json", "no/such/folder/r.json"], ["--gama=1"]],
)
def test_a_mistake_is_one_line_and_exit_code_2_before_an_engine_is_built(
    argv: list[str], make_factory: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    factory = make_factory()
    assert run.main(argv, factory) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1 and shown.err.startswith(f"error: {argv[0].split('=')[0]}")
    assert factory.engine is None


def test_a_mistake_that_the_engine_finds(capsys: pytest.CaptureFixture[str]) -> None:
    def build(*_: object) -> Any:
        raise UserError("--target", "/nowhere", "no such folder")

    assert run.main([], build) == 2
    assert capsys.readouterr() == ("", "error: --target /nowhere: no such folder\n")


def test_other_ranks_print_nothing_and_read_no_prompts(
    make_factory: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    factory = make_factory()
    assert run.main(["--prompts", "nowhere.txt"], factory) == 0
    assert (factory.engine.seen, factory.engine.closed, factory.progress) == ([], True, None)
    assert run.main(["--help"], factory) == 0
    assert capsys.readouterr() == ("", "")


class SlowInput:
    """Standard input that comes only when the engine is there, and so all ranks are connected."""

    def __init__(self, factory: Any, text: bytes) -> None:
        self._factory, self._text = factory, text

    @property
    def buffer(self) -> io.BytesIO:
        assert self._factory.engine is not None, "read while the other ranks wait to connect"
        return io.BytesIO(self._text)


def test_standard_input_is_read_when_the_ranks_are_connected(
    make_factory: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    factory = make_factory()
    monkeypatch.setattr(run.sys, "stdin", SlowInput(factory, b"abc\nde\n"))
    assert run.main(["--prompts", "-", "-p", "first"], factory) == 0
    assert [prompt.text for prompt in factory.engine.seen] == ["first", "abc", "de"]
    assert "[3/3] de" in capsys.readouterr().out
    monkeypatch.setattr(run.sys, "stdin", SlowInput(factory, b""))
    assert run.main(["--prompts", "-"], factory) == 2
    assert capsys.readouterr().err == "error: --prompts -: holds no prompt\n"


@pytest.mark.case("E6")
def test_no_tokens_asked_for_is_a_good_run(
    make_factory: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(["-p", "", "--max-new-tokens", "0"], make_factory(num_draft_tokens=0)) == 0
    assert "nan" not in capsys.readouterr().out.lower()


@pytest.mark.case("U2")
def test_the_module_leaves_with_its_exit_code() -> None:
    command = [sys.executable, "-m", "pearl_pp.run", "--gama", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --gama: no such option; did you mean --gamma?\n"
