"""Engines that share their stages: one configuration after another on the same ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError
from pearl_pp.experiments.commands import prompt_message
from pearl_pp.experiments.engines import Engines
from pearl_pp.runtime import pair
from pearl_pp.runtime.request import Prompt
from pearl_pp.stages.stage import build_stage
from pearl_pp.transport.inprocess import InProcessGroup, InProcessTransport
from tests.pairs import noisy, save, tiny_model
from tests.unit.simulation.machines import save_profile

pytestmark = pytest.mark.alone

ROWS: dict[str, dict[str, Any]] = {
    "ar": {"strategy": "ar"},
    "sd": {"strategy": "sd", "gamma": 3},
    "hop": {"placement": "hop", "gamma": 3},
    "pipelined": {"placement": "pipelined", "gamma": 2, "verify_interval": 2},
}


class Ranks:
    """Engines of several ranks, a thread each."""

    def __init__(self, num_ranks: int) -> None:
        self._group = InProcessGroup(num_ranks, 30.0)
        self.engines = [Engines(self._group.transport(rank)) for rank in range(num_ranks)]
        for engines in self.engines:
            engines._stages.has_pipeline = True  # DeepSpeed's needs processes

    def run(self, options: dict[str, Any], prompt: Prompt, trace: bool = False) -> dict[str, Any]:
        def work(transport: InProcessTransport) -> Any:
            try:
                return self.engines[transport.rank].run(options, prompt_message(prompt), trace)
            except UserError as error:
                return error

        answers = self._group.run(work)
        if isinstance(answers[0], UserError):
            raise answers[0]
        assert answers[1:] == [None] * (len(answers) - 1)
        return answers[0]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pair")
    target, draft = tiny_model(), noisy(tiny_model(), 0.1)
    return {"target": str(save(target, folder / "target")), "draft": str(save(draft, folder / "draft"))}


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int, int]]]:
    """What is read from a checkpoint."""
    stages: list[tuple[str, int, int]] = []

    def build(source: Any, start: int, end: int, **options: Any) -> Any:
        stages.append((source.path.name, start, end))
        return build_stage(source, start, end, **options)

    monkeypatch.setattr(pair, "build_stage", build)
    yield stages


def ids(start: int, num_tokens: int = 40) -> Prompt:
    return Prompt(token_ids=tuple(range(start, start + 5)), params=SamplingParams(max_new_tokens=num_tokens))


def oracle(models: dict[str, str], prompt: Prompt) -> list[int]:
    model = tiny_model()
    asked = torch.tensor([prompt.token_ids])
    with torch.inference_mode():
        text = model.generate(
            asked, attention_mask=torch.ones_like(asked), do_sample=False, max_new_tokens=prompt.params.max_new_tokens
        )
    return text[0, asked.shape[1] :].tolist()


def test_rows_alternate_on_stages_that_are_loaded_once(
    models: dict[str, str], loaded: list[tuple[str, int, int]]
) -> None:
    ranks = Ranks(2)
    for number in range(3):
        prompt = ids(10 + 20 * number, 60 - 15 * number)  # a shorter text after a longer one
        expected = oracle(models, prompt)
        for name, options in ROWS.items():
            assert ranks.run(models | options, prompt)["token_ids"] == expected, name
    assert sorted(loaded) == [("draft", 0, 4)] * 2 + [("target", 0, 2), ("target", 2, 4)]


def test_peak_bytes_are_what_this_engine_holds_whatever_others_have_loaded(models: dict[str, str]) -> None:
    ranks = Ranks(1)
    ranks.run(models | {"strategy": "ar"}, ids(1))
    alone = next(iter(ranks.engines[0]._engines.values())).module.held_bytes
    ranks.run(models | {"strategy": "sd", "gamma": 2}, ids(1))
    both = list(ranks.engines[0]._engines.values())[1].module.held_bytes
    assert both > 1.9 * alone
    peaks = [
        ranks.run(models | options, ids(1))["metrics"]["per_rank"][0]["peak_bytes"]
        for options in ({"strategy": "ar"}, {"strategy": "sd", "gamma": 2})
    ]
    slack = 3 * 2**20
    assert alone <= peaks[0] < alone + slack and both <= peaks[1] < both + slack


def test_after_unloading_everything_is_loaded_anew(models: dict[str, str], loaded: list[tuple[str, int, int]]) -> None:
    ranks = Ranks(1)
    prompt = ids(3)
    first = ranks.run(models | ROWS["sd"], prompt)["token_ids"]
    assert len(loaded) == 2
    ranks.engines[0].unload()
    assert len(ranks.engines[0]._stages) == 0
    assert ranks.run(models | ROWS["sd"], prompt)["token_ids"] == first
    assert len(loaded) == 4


@pytest.mark.parametrize("fits", [True, False])
def test_where_memory_is_short_engines_make_room_for_one_another(
    models: dict[str, str], loaded: list[tuple[str, int, int]], fits: bool
) -> None:
    ranks = Ranks(2)
    for engines in ranks.engines:
        engines._stages._capacity_bytes = 10**12 if fits else 1
    prompt = ids(7)
    expected = oracle(models, prompt)
    for name in ("hop", "ar", "hop"):
        assert ranks.run(models | ROWS[name], prompt)["token_ids"] == expected
    assert loaded.count(("target", 0, 2)) == 1, "wanted by both"
    assert loaded.count(("draft", 0, 4)) == (2 if fits else 4)


def _short_of_memory(models: dict[str, str]) -> tuple[dict[str, Any], Prompt]:
    return models | {"memory_gb": "0.0001"}, ids(1)


def _bad_prompt(models: dict[str, str]) -> tuple[dict[str, Any], Prompt]:
    return models | ROWS["sd"], Prompt(token_ids=(999,))


def _no_such_placement(models: dict[str, str]) -> tuple[dict[str, Any], Prompt]:
    return models | {"layer_split": "2,1,1"}, ids(1)


@pytest.mark.parametrize("mistake", [_short_of_memory, _bad_prompt, _no_such_placement])
def test_a_users_mistake_leaves_everything_usable(
    models: dict[str, str], mistake: Callable[[dict[str, str]], tuple[dict[str, Any], Prompt]]
) -> None:
    ranks = Ranks(2)
    prompt = ids(5)
    with pytest.raises(UserError):
        ranks.run(*mistake(models))
    assert ranks.run(models | ROWS["hop"], prompt)["token_ids"] == oracle(models, prompt)


def test_what_one_rank_alone_cannot_load_is_every_ranks_user_error(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(source: Any, start: int, end: int, **options: Any) -> Any:
        if (source.path.name, start) == ("target", 2):
            raise UserError("--target", source.path, "layer 3 is broken")
        return build_stage(source, start, end, **options)

    ranks = Ranks(2)
    monkeypatch.setattr(pair, "build_stage", build)
    with pytest.raises(UserError, match="layer 3 is broken"):
        ranks.run(models | ROWS["ar"], ids(1))
    monkeypatch.undo()
    assert ranks.run(models | ROWS["ar"], ids(1))["token_ids"] == oracle(models, ids(1))


def test_a_trace_is_of_the_run_that_asked_for_it(models: dict[str, str]) -> None:
    ranks = Ranks(2)
    assert ranks.run(models | ROWS["hop"], ids(1))["trace"] is None
    trace = ranks.run(models | ROWS["hop"], ids(2), trace=True)["trace"]
    bars = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [bar["name"][:9] for bar in bars if bar["cat"] == "requests"] == ["request 1"]
    assert {bar["pid"] for bar in bars} == {0, 1}
    assert {"target", "draft", "verify", "idle"} <= {bar["cat"] for bar in bars}
    assert {"target accepted", "draft accepted"} & {bar["name"] for bar in bars}
    assert ranks.run(models | ROWS["hop"], ids(3))["trace"] is None


def test_an_emulated_run_keeps_the_profiles_pace_and_says_what_is_simulated(tmp_path: Path) -> None:
    options = {"emulate": save_profile(tmp_path, target__pass_ms=8.0, draft__pass_ms=1.6), "placement": "hop"}
    ranks = Ranks(2)
    prompt = Prompt(token_ids=(0,) * 4, params=SamplingParams(max_new_tokens=40, seed=5, ignore_eos=True))
    answer = ranks.run(options, prompt)
    assert answer["mode"] == "emulated"
    # c = 5 on two stages: a pass of 0.4 slots, which is not measured but known
    assert answer["gamma"] == pytest.approx(5.0) and answer["plan"]["pass_slots"] == pytest.approx(0.4)
    measured = answer["metrics"]["decode_tokens_per_s"]
    assert 0.5 * answer["simulated_tokens_per_s"] < measured < 1.1 * answer["simulated_tokens_per_s"]
    assert ranks.run(options | {"gamma": 3}, prompt)["gamma"] == pytest.approx(3.0)


def test_options_of_a_prompt_alone_make_no_other_engine(models: dict[str, str]) -> None:
    ranks = Ranks(1)
    ranks.run(models | ROWS["ar"], ids(1))
    ranks.run(models | ROWS["ar"] | {"max_new_tokens": 7, "seed": 3, "quiet": True}, ids(1))
    assert len(ranks.engines[0]._engines) == 1
    ranks.run(models | ROWS["ar"] | {"max_model_len": 64}, ids(1))
    assert len(ranks.engines[0]._engines) == 2
