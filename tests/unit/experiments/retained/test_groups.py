"""Which program makes a run, and who frees its memory for whom; nothing is started."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pearl_pp.errors import UserError
from pearl_pp.experiments.lines import ProgramFailed
from pearl_pp.experiments.retained import groups
from pearl_pp.experiments.retained.groups import Groups
from pearl_pp.experiments.retained.job import ENGINE, HF, HF_ASSISTED, HF_PIPELINE, Job
from pearl_pp.runtime.request import Prompt

PROMPT = Prompt(text="a")


class Fake:
    """A program that is told things."""

    has_cuda = False
    started: list[Fake]

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name = name
        self.arguments = arguments
        self.told: list[str] = []
        self.answer: Any = {}
        self.is_closed = False
        self.started.append(self)

    def ask(self, message: dict[str, Any]) -> Any:
        ((what, arguments),) = message.items()
        self.told.append(arguments.get("kind", what))
        if what == "device":
            return {"has_cuda": self.has_cuda}
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def let_go(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Fake]]:
    programs: list[Fake] = []
    monkeypatch.setattr(Fake, "started", programs, raising=False)
    monkeypatch.setattr(groups, "Program", Fake)
    yield programs


def ran(started: list[Fake]) -> list[tuple[str, list[str]]]:
    return [(program.name, program.told) for program in started]


def test_one_group_for_each_number_of_ranks_and_one_process_for_transformers(started: list[Fake]) -> None:
    with Groups() as kept:
        for num_ranks, kind in ((4, ENGINE), (5, ENGINE), (4, HF_PIPELINE), (1, HF), (4, HF_ASSISTED), (4, ENGINE)):
            kept.run(Job(num_ranks, kind, {}, PROMPT))
    assert ran(started) == [
        ("4 ranks", ["device", "run", "run_pipeline", "run"]),
        ("5 ranks", ["device", "run"]),
        ("transformers", ["device", "hf", "hf assisted"]),
    ]
    assert "--nproc-per-node=5" in started[1].arguments
    assert all(program.is_closed for program in started)


def test_emulated_runs_and_real_ones_share_a_group_where_there_is_no_card(started: list[Fake]) -> None:
    with Groups() as kept:
        for options in ({"emulate": "x.yaml"}, {}, {"device": "cpu"}):
            kept.run(Job(2, ENGINE, options, PROMPT))
    assert ran(started) == [("2 ranks", ["device", "run", "run", "run"])]


def test_on_cards_one_program_at_a_time_holds_models(started: list[Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fake, "has_cuda", True)
    with Groups() as kept:
        for num_ranks in (2, 3, 3, 2):
            kept.run(Job(num_ranks, ENGINE, {}, PROMPT))
        kept.run(Job(2, ENGINE, {"emulate": "x.yaml"}, PROMPT))
        kept.run(Job(2, HF_PIPELINE, {"device": "cuda"}, PROMPT))
    assert ran(started) == [
        ("2 ranks", ["device", "run", "unload", "run", "unload"]),
        ("3 ranks", ["device", "run", "run", "unload"]),
        ("2 ranks", ["device", "run"]),
        ("transformers", ["device", "hf pipeline"]),
    ]
    assert started[2].arguments[-2] == "cpu"


@pytest.mark.parametrize(("keep_alive", "unloaded"), [(True, False), (False, True), (None, False)])
def test_who_may_keep_what_it_has_loaded_can_be_said(
    started: list[Fake], keep_alive: bool | None, unloaded: bool
) -> None:
    with Groups(keep_alive) as kept:
        kept.run(Job(2, ENGINE, {}, PROMPT))
        kept.run(Job(3, ENGINE, {}, PROMPT))
    assert ("unload" in started[0].told) is unloaded


def test_a_mistake_leaves_a_program_and_a_crash_ends_it(started: list[Fake]) -> None:
    job = Job(2, ENGINE, {}, PROMPT)
    with Groups() as kept:
        kept.run(job)
        started[0].answer = UserError("--draft", None, "does not fit")
        with pytest.raises(UserError):
            kept.run(job)
        assert not started[0].is_closed
        started[0].answer = ProgramFailed("2 ranks: ended")
        with pytest.raises(ProgramFailed):
            kept.run(job)
        assert started[0].is_closed
        kept.run(job)
    assert len(started) == 2


def test_a_misspelt_option_starts_nothing(started: list[Fake]) -> None:
    with Groups() as kept, pytest.raises(UserError, match="did you mean gamma"):
        kept.run(Job(2, ENGINE, {"gama": 3}, PROMPT))
    assert started == []


def test_a_program_that_has_crashed_unseen_is_not_the_next_ones_fault(
    started: list[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fake, "has_cuda", True)
    with Groups() as kept:
        kept.run(Job(2, ENGINE, {}, PROMPT))
        started[0].answer = ProgramFailed("2 ranks: ended")
        assert kept.run(Job(3, ENGINE, {}, PROMPT)) == {}
        assert started[0].is_closed
        assert kept.run(Job(2, ENGINE, {}, PROMPT)) == {}
    assert [program.name for program in started] == ["2 ranks", "3 ranks", "2 ranks"]
