"""Drafts of known quality in whole runs: what is counted is what there is, and the same prompt again is as fast."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pearl_pp import builtin
from pearl_pp.builtin.wrong_draft import make_wrong_draft
from tests.integration.commands import pearl_pp_run

pytestmark = pytest.mark.alone

NUM_TOKENS = 48
SPEED_CLASS = 2.0  # on a busy machine; a first answer that pays for what later ones find done is slower by more


@pytest.fixture(scope="module")
def anti_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded draft with its head negated: its likeliest token is the one that was least likely."""
    folder = tmp_path_factory.mktemp("anti")
    make_wrong_draft(folder)
    return folder


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], list[dict[str, Any]]]:
    """One prompt, twice, in one run with a draft."""

    def run(draft: Path) -> list[dict[str, Any]]:
        record = tmp_path_factory.mktemp("run") / "out.json"
        models = ("--target", str(builtin.TARGET_DIR), "--draft", str(draft), "--placement", "hop", "--gamma", "4")
        prompts = ("--prompt", builtin.prompts()[0]) * 2
        length = ("--max-new-tokens", str(NUM_TOKENS), "--ignore-eos")
        finished = pearl_pp_run(2, *models, *prompts, *length, "--json", str(record))
        assert finished.exit_code == 0, finished.stderr
        return json.loads(record.read_text())["requests"]

    return run


@pytest.mark.case("H2")
@pytest.mark.parametrize(("name", "acceptance"), [("self", 1.0), ("anti", 0.0), ("embedded", None)])
def test_acceptance_is_that_of_the_draft_and_the_same_run_is_as_fast_again(
    name: str, acceptance: float | None, anti_draft: Path, twice: Callable[[Path], list[dict[str, Any]]]
) -> None:
    drafts = {"self": builtin.TARGET_DIR, "anti": anti_draft, "embedded": builtin.DRAFT_DIR}
    first, second = twice(drafts[name])
    assert first["token_ids"] == second["token_ids"]
    for metrics in (first["metrics"], second["metrics"]):
        assert metrics["num_output_tokens"] == NUM_TOKENS
        counts = [metrics[f"num_{fate}_tokens"] for fate in ("accepted", "rejected", "discarded")]
        assert metrics["num_draft_tokens"] == sum(counts) > 0
        if acceptance is not None:
            assert metrics["acceptance_rate"] == acceptance
    rates = sorted(request["metrics"]["decode_tokens_per_s"] for request in (first, second))
    assert rates[1] < SPEED_CLASS * rates[0]
