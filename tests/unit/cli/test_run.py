"""The main job around a fake engine: order of output, exit codes, what survives a failure."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

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
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "abc"}\nnot json\n{"prompt": "de"}\n')
    path = tmp_path / "r.json"
    assert run.main(["--prompts", str(prompts), "--json", str(path)], make_factory()) == 1
    shown = capsys.readouterr()
    assert shown.err == f"error in prompt 2: {prompts} line 2: not JSON: Expecting value at column 1\n"
    assert "abc!\n" in shown.out and "de!\n" in shown.out
    requests = json.loads(path.read_text())["requests"]
    assert [bool(request["error"]) for request in requests] == [False, True, False]


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


def test_other_ranks_wait_for_rank_0_to_say_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], slept: list[float]
) -> None:
    assert run.main(["--gamma", "0"]) == 2
    assert slept == []
    monkeypatch.setenv("RANK", "3")
    capsys.readouterr()
    assert run.main(["--gamma", "0"]) == 2
    assert slept == [leaving.BEHIND_RANK_0]
    # Alive after the wait: rank 0 did not have this mistake, so it must not be lost.
    assert capsys.readouterr().err.startswith("error: rank 3: --gamma 0: ")


def test_the_rank_that_failed_speaks_before_the_ranks_that_miss_it(
    make_factory: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    slept: list[float],
) -> None:
    from pearl_pp.transport.base import Channel, PeerLost

    lost = RuntimeError("wrapped")
    lost.__cause__ = PeerLost(0, 2, Channel.CONTROL, "connection reset")
    assert run.main(["-p", "a"], make_factory(fault=lost)) == 1
    monkeypatch.setenv("RANK", "2")

    def broken(*_: object) -> Any:
        raise ValueError("the first error")

    assert run.main([], broken) == 1
    of_peer, of_rank_2 = slept
    assert of_rank_2 < of_peer
    assert "error: rank 2 failed\n" in capsys.readouterr().err


@pytest.mark.parametrize(("num_alive", "is_silent"), [(3, False), (2, True)])
def test_a_rank_is_silent_where_another_one_has_left_already(
    num_alive: int, is_silent: bool, monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    """Its launcher may not have looked yet: deepspeed's does so once a second."""
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(os.getpid()), "WORLD_SIZE": "3"}
    for name, value in {**job, "RANK": "0", "LOCAL_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    code = "print(flush=True); input()"
    with ExitStack() as started:
        for rank in range(1, num_alive):
            other = subprocess.Popen(
                [sys.executable, "-c", code],
                env={**os.environ, "RANK": str(rank)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            started.callback(other.communicate)
            assert other.stdout is not None
            other.stdout.readline()
        leaving.report_failure(ValueError("odd"), 0)
    assert slept == [0.0, leaving.BEHIND_CAUSE] if is_silent else slept == [0.0]


@pytest.mark.case("P4")
@pytest.mark.parametrize(("rank", "gamma"), [("0", "4"), ("2", "0")])
def test_ctrl_c_in_the_silence_before_a_rank_speaks_is_quiet(
    rank: str,
    gamma: str,
    make_factory: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from pearl_pp.transport.base import Channel, PeerLost

    def interrupt(_: float) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(leaving.time, "sleep", interrupt)
    monkeypatch.setenv("RANK", rank)
    lost = PeerLost(0, 2, Channel.CONTROL, "connection reset")
    assert run.main(["-p", "a", "--quiet", "--gamma", gamma], make_factory(fault=lost)) == 130
    assert capsys.readouterr().err == ""


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


def in_a_process(code: str, *, wait_for: str = "") -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if wait_for:
        assert process.stdout.readline().strip() == wait_for
    return process


@pytest.mark.case("P4")
def test_ctrl_c_ends_a_process_that_hangs_in_a_library() -> None:
    code = (
        "import ctypes\nfrom pearl_pp.console import leaving\n"
        "leaving.AFTER_INTERRUPT = 0.1\nleaving.watch_for_interrupt()\n"
        "mutex = ctypes.create_string_buffer(128)\nlock = ctypes.CDLL(None).pthread_mutex_lock\n"
        "lock(mutex)\n"
        "import threading\nthreading.Timer(0.5, lambda: print('hangs', flush=True)).start()\nlock(mutex)\n"
    )
    process = in_a_process(code, wait_for="hangs")
    process.send_signal(2)
    assert process.wait(timeout=20) == 130
    assert process.communicate() == ("", "")


def test_another_signal_does_not_end_a_process() -> None:
    code = (
        "import signal, time\nfrom pearl_pp.console import leaving\n"
        "signal.signal(signal.SIGUSR1, lambda *_: None)\n"
        "leaving.AFTER_INTERRUPT = 0.1\nleaving.watch_for_interrupt()\n"
        "print('ready', flush=True)\ntime.sleep(1.5)\n"
        "try:\n    print('alive', flush=True)\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    time.sleep(60)\n"
    )
    process = in_a_process(code, wait_for="ready")
    process.send_signal(signal.SIGUSR1)
    assert process.stdout is not None and process.stdout.readline() == "alive\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130


def test_a_rank_with_a_mistake_of_its_own_speaks_before_those_that_miss_it(
    make_factory: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    from pearl_pp.transport.base import Channel, PeerLost

    assert run.main(["-p", "a"], make_factory(fault=PeerLost(0, 2, Channel.CONTROL, "connection reset"))) == 1
    monkeypatch.setenv("RANK", "2")
    assert run.main(["--gamma", "0"]) == 2
    of_peer, of_rank_2 = slept
    assert of_rank_2 < of_peer


@pytest.mark.parametrize("waited_s", [3.0, 9.0, 130.0])
def test_a_rank_with_a_mistake_of_its_own_speaks_before_those_that_wait_for_it_to_come(
    waited_s: float, make_factory: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    from pearl_pp.transport.base import RanksMissing

    monkeypatch.setattr(leaving, "_STARTED", time.monotonic() - waited_s)
    assert run.main(["-p", "a"], make_factory(fault=RanksMissing("rank 0: not all 3 ranks came"))) == 1
    monkeypatch.setenv("RANK", "2")
    assert run.main(["--gamma", "0"]) == 2
    of_missing, of_rank_2 = slept
    assert of_rank_2 < waited_s + of_missing
    assert of_missing == 0 or waited_s + of_missing == pytest.approx(leaving.BEHIND_CAUSE, abs=1.0)


def test_a_failed_process_does_not_wait_for_its_threads() -> None:
    code = (
        "import threading, time\nfrom pearl_pp.console import leaving\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('said', end='')\nleaving.leave(1)\n"
    )
    process = in_a_process(code)
    assert process.wait(timeout=20) == 1
    assert process.communicate() == ("said", "")
