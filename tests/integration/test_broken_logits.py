"""A target whose logits are no numbers fails the request it happens in, on every rank, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pearl_pp import PearlPP, Prompt, SamplingParams
from pearl_pp.decoding.stopping import StopReason
from pearl_pp.transport.base import Transport
from tests.inprocess import Cluster
from tests.integration.test_lossless import PLACEMENTS, PROMPT
from tests.pairs import noisy, oracle, save, tiny_model
from tests.rank_pool import shared_pool

BROKEN = 7


def save_broken(root: Path, broken: int, num_layers: int = 4) -> tuple[Path, Path]:
    """A target that computes NaN from the token `broken` on, and a draft that is right now and then."""
    target = tiny_model(num_hidden_layers=num_layers)
    with torch.no_grad():
        target.model.embed_tokens.weight[broken] = float("nan")
    draft = noisy(tiny_model(num_hidden_layers=num_layers), 0.1)
    return save(target, root / "target"), save(draft, root / "draft")


def answers(transport: Transport, folders: tuple[str, str], options: dict) -> list[tuple]:
    engine = PearlPP(transport=transport, target=folders[0], draft=folders[1], gamma=2, **options)
    params = SamplingParams(max_new_tokens=6, ignore_eos=True, temperature=options.get("temperature", 0.0), seed=3)
    prompts = [Prompt(token_ids=ids, params=params) for ids in ((3, 5), (3, BROKEN, 5), (3, 6))]
    outputs = engine.generate(prompts)
    engine.close()
    return [(output.token_ids, output.finish_reason, output.error) for output in outputs]


@pytest.mark.case("S6")
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0}, {"temperature": 1.0, "verify": "coupled"}, {"strategy": "ar"}], ids=str
)
def test_the_request_fails_and_the_others_are_answered(options: dict, tmp_path: Path) -> None:
    folders = tuple(map(str, save_broken(tmp_path, BROKEN)))
    mine, theirs = shared_pool(2).run(answers, folders, options, timeout_s=60.0)
    assert mine == theirs
    assert [len(ids) for ids, _, _ in mine] == [6, 0, 6]
    assert [reason for _, reason, _ in mine] == ["length", None, "length"]
    error = "the target's logits for position 3 give no distribution (NaN, inf or all -inf)"
    assert [found for _, _, found in mine] == [None, error, None]


@pytest.fixture(scope="module")
def breaking_later(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[int], int]:
    """Folders, the greedy text without the fault, and the place of the first token that brings it."""
    root = tmp_path_factory.mktemp("later")
    text = oracle(save(tiny_model(num_hidden_layers=5), root / "whole"), PROMPT, 20)
    place = next(i for i in range(9, 20) if text[i] not in (*PROMPT, *text[:i]))
    return *save_broken(root, text[place], num_layers=5), text, place


@pytest.mark.case("S6")
@pytest.mark.parametrize("name", PLACEMENTS)
def test_what_was_verified_before_stays(name: str, breaking_later: tuple[Path, Path, list[int], int]) -> None:
    target, draft, text, place = breaking_later
    num_ranks, options = PLACEMENTS[name]
    outcome = Cluster(target, draft, num_ranks, **options).run(PROMPT, max_new_tokens=20, ignore_eos=True)
    assert outcome.reason is StopReason.NO_DISTRIBUTION
    # Within one pass NaN spreads to the rows before it, so a window that holds the token may fail as a whole.
    num_kept = len(outcome.ids)
    assert outcome.ids == text[:num_kept] and place - 8 < num_kept <= place + 1
    assert (num_kept == place + 1) or name != "ar"
