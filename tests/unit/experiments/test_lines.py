"""Programs that are told what to do: what they say when they crash, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pearl_pp
from pearl_pp.errors import UserError
from pearl_pp.experiments import lines
from pearl_pp.experiments.lines import Program, ProgramFailed

ROOT = Path(pearl_pp.__file__).parents[1]


def module(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> str:
    (folder / "told.py").write_text(f"from pearl_pp.experiments.lines import *\n{code}\n")
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{ROOT}")
    return "told"


def test_a_mistake_is_an_answer_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
def half(number):
    if number % 2:
        raise UserError("number", number, "is odd")
    return number // 2
answer_all(Told(), {"half": half})
"""
    program = Program("halves", [module(tmp_path, monkeypatch, code)])
    try:
        assert program.ask({"half": {"number": 4}}) == 2
        with pytest.raises(UserError, match="number 3: is odd"):
            program.ask({"half": {"number": 3}})
        assert program.ask({"half": {"number": 8}}) == 4
    finally:
        program.close()


def test_of_several_crashes_the_first_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
print("noise before", file=sys.stderr)
report_crash(2, ValueError("the cause\\non two lines"))
report_crash(0, RuntimeError("lost rank 2"))
print("a launcher's summary\\n" * 500, file=sys.stderr)
sys.exit(3)
"""
    program = Program("3 ranks", [module(tmp_path, monkeypatch, code)])
    try:
        with pytest.raises(ProgramFailed) as failed:
            program.answer()
    finally:
        program.close()
    assert str(failed.value) == "3 ranks: ended with exit code 3\nrank 2:\nValueError: the cause\non two lines"


def test_an_answer_that_was_cut_short_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "sys.stdout.write('{\"half')\nsys.exit(3)"
    program = Program("halves", [module(tmp_path, monkeypatch, code)])
    try:
        with pytest.raises(ProgramFailed, match="halves: ended with exit code 3"):
            program.answer()
    finally:
        program.close()


@pytest.mark.parametrize("work", ["time.sleep(600)", "told.next()"])
def test_a_program_ends_with_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    name = module(tmp_path, monkeypatch, f"import time\ntold = Told()\ntold.answer(os.getpid())\ntold.next()\n{work}")
    parent = "from pearl_pp.experiments.lines import *\nimport time\n"
    parent += f"p = Program('x', ['{name}'])\nprint(p.answer(), flush=True)\np.tell({{}})\ntime.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 10
    while _is_running(child):
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.05)


def _is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return os.path.exists(f"/proc/{process}") and state != "Z"


@pytest.mark.parametrize("text", ["NCCL INFO", "[" * 100_000, "nan nan"])
def test_what_is_no_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    program = Program("2 ranks", [module(tmp_path, monkeypatch, f"print({text!r})\nsys.stdin.read()")])
    try:
        with pytest.raises(ProgramFailed, match="2 ranks: something else was written among its answers: ") as failed:
            program.answer()
    finally:
        program.close()
    assert len(str(failed.value)) < 300


def test_a_program_that_does_not_end_is_killed_with_all_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
told = Told()
told.answer(child.pid)
threading.Event().wait()
"""
    program = Program("deaf", [module(tmp_path, monkeypatch, code.replace("told = Told()", _DEAF))])
    child = program.answer()
    monkeypatch.setattr(lines, "_CLOSING_S", 0.1)
    program.close()
    deadline = time.monotonic() + 10
    while _is_running(child):
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.01)


# Whose end of input is not the program's.
_DEAF = """
class Deaf(Told):
    def _listen(self):
        pass
told = Deaf()"""
