"""transformers' own text: the rules that end it are those of a run, whoever makes it."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError
from pearl_pp.experiments import transformers_rows, transformers_text
from pearl_pp.experiments.commands import prompt_message
from pearl_pp.experiments.transformers_rows import TransformersRows
from pearl_pp.runtime.engine import PearlPP
from pearl_pp.runtime.request import Prompt, RequestOutput

TEXT = "def fibonacci(n):\n"


@pytest.fixture(scope="module")
def rows() -> TransformersRows:
    return TransformersRows(torch.device("cpu"))


@pytest.fixture(scope="module")
def alone() -> PearlPP:
    """The embedded pair's target on one rank."""
    return PearlPP(strategy="ar")


def answers(
    rows: TransformersRows, alone: PearlPP, kind: str, text: str = TEXT, **params: Any
) -> tuple[dict[str, Any], RequestOutput]:
    prompt = Prompt(text=text, params=SamplingParams(**({"max_new_tokens": 40} | params)))
    threads = torch.get_num_threads()
    try:
        return rows.run(kind, {}, prompt_message(prompt), 1), alone.generate([prompt])[0]
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("kind", ["hf", "hf assisted"])
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"max_new_tokens": 1},
        {"max_new_tokens": 0},
        {"stop": ("return",)},
        {"stop": ("e",), "min_new_tokens": 20},
        {"max_new_tokens": 300},
        {"max_new_tokens": 60, "repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_text_and_end_are_those_of_plain_decoding(
    rows: TransformersRows, alone: PearlPP, kind: str, params: dict[str, Any]
) -> None:
    found, expected = answers(rows, alone, kind, **params)
    assert found["prompt_token_ids"] == expected.prompt_token_ids
    assert found["token_ids"] == expected.token_ids
    assert (found["text"], found["finish_reason"]) == (expected.text, expected.finish_reason)
    assert found["metrics"]["num_output_tokens"] == len(expected.token_ids)


def test_an_end_of_sequence_token_ends_it_unless_it_is_ignored(rows: TransformersRows, alone: PearlPP) -> None:
    ends = {}
    for ignore_eos in (False, True):
        for kind in ("hf", "hf assisted"):
            found, expected = answers(rows, alone, kind, "Yes.", max_new_tokens=400, ignore_eos=ignore_eos)
            assert found["token_ids"] == expected.token_ids
            ends[ignore_eos] = found["finish_reason"]
    assert ends[True] == "length"


def test_metrics_are_of_the_time_after_the_first_token(rows: TransformersRows, alone: PearlPP) -> None:
    metrics = answers(rows, alone, "hf")[0]["metrics"]
    assert metrics["num_decode_tokens"] == 39
    assert metrics["decode_tokens_per_s"] == pytest.approx(39 / metrics["decode_s"])
    assert 0 < metrics["ttft_s"] < 5
    assisted = answers(rows, alone, "hf assisted")[0]["metrics"]
    assert 0 < assisted["num_decode_tokens"] <= 39
    nothing = answers(rows, alone, "hf", max_new_tokens=0)[0]["metrics"]
    assert nothing["ttft_s"] is None and nothing["decode_tokens_per_s"] is None


def test_sampled_text_is_a_function_of_the_seed(rows: TransformersRows, alone: PearlPP) -> None:
    def sampled(seed: int) -> list[int]:
        return answers(rows, alone, "hf", temperature=1.0, top_k=50, top_p=0.9, min_p=0.01, seed=seed)[0]["token_ids"]

    assert sampled(1) == sampled(1) != sampled(2)


def test_a_row_says_what_it_is(rows: TransformersRows, alone: PearlPP) -> None:
    found = answers(rows, alone, "hf assisted")[0]
    assert found["notes"] == [
        "transformers' generate(assistant_model=draft) in one process, 1 thread; its default: num_assistant_tokens "
        "20, constant, until the draft's confidence falls below 0.4"
    ]
    assert (found["mode"], found["plan"], found["gamma"], found["trace"]) == ("real", None, None, None)
    assert found["machine"]["device"] == "cpu"


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("hf", {"emulate": "configs/profiles/even_c8.yaml"}, "has no models that transformers could run"),
        ("hf", {"target": "/nowhere", "strategy": "ar"}, "--target /nowhere: no such folder"),
        ("hf pipeline", {}, "needs 2 cards"),
    ],
)
def test_what_cannot_be_run_is_one_line(
    rows: TransformersRows, monkeypatch: pytest.MonkeyPatch, kind: str, options: dict[str, Any], reason: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(UserError, match=reason):
        rows.run(kind, options, prompt_message(Prompt(text="a")), 2)


def test_without_accelerate_the_pipeline_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="hf pipeline: transformers' pipeline needs the package accelerate"):
        transformers_text.require_accelerate()


def test_a_synthetic_target_runs_without_a_folder(rows: TransformersRows) -> None:
    options = {"target": "synthetic:cpu_small", "strategy": "ar"}
    prompt = Prompt(token_ids=(1, 2, 3), params=SamplingParams(max_new_tokens=3))
    found = rows.run("hf", options, prompt_message(prompt), 1)
    assert len(found["token_ids"]) == 3
    rows.unload()
    assert rows.run("hf", options, prompt_message(prompt), 1)["token_ids"] == found["token_ids"]


def test_models_that_do_not_fit_are_refused_and_let_go(rows: TransformersRows, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setitem(transformers_rows._KINDS, "hf", full)
    with pytest.raises(UserError, match="do not fit"):
        rows.run("hf", {}, prompt_message(Prompt(text=TEXT)), 1)
    assert not rows._models
