"""Ways out of an engine: a loop that is left early, a constructor that fails."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pearl_pp import PearlPP
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError
from pearl_pp.runtime import engine as engine_module
from pearl_pp.runtime.request import Prompt
from pearl_pp.transport.base import Transport
from pearl_pp.transport.inprocess import InProcessGroup
from tests.integration.conftest import PairOf
from tests.rank_pool import shared_pool

PARAMS = SamplingParams(max_new_tokens=6, ignore_eos=True)


def ids_after(transport: Transport, folders: tuple[str, str], breaking: tuple[int, ...], closes: bool) -> list:
    """The ranks in `breaking` leave their loop after one of three answers; then an ordinary run on the same ranks."""
    prompts = [Prompt(token_ids=(3, 5 + i), params=PARAMS) for i in range(3)]
    engine = PearlPP(transport=transport, target=folders[0], draft=folders[1], gamma=2)
    outputs = []
    for output in engine.iterate(prompts):
        outputs.append(output.token_ids)
        if transport.rank in breaking:
            break
    if closes:
        engine.close()
        engine = PearlPP(transport=transport, target=folders[0], draft=folders[1], gamma=2)
    again = [output.token_ids for output in engine.generate(prompts)]
    engine.close()
    return [outputs, again]


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("breaking", [(0,), (1,), (0, 1)])
def test_a_loop_may_be_left_early(breaking: tuple[int, ...], closes: bool, pair_of: PairOf) -> None:
    folders = tuple(map(str, pair_of("noisy")))
    results = shared_pool(2).run(ids_after, folders, breaking, closes, timeout_s=60.0)
    seen = [len(outputs) for outputs, _ in results]
    assert seen == [1 if 0 in breaking else 3, 1]
    again = results[0][1]
    assert [len(ids) for ids in again] == [6, 6, 6]
    assert results[1][1] == again


def answers_and_errors(transport: Transport, folders: tuple[str, str]) -> list[tuple[int, str | None]]:
    engine = PearlPP(transport=transport, target=folders[0], draft=folders[1], gamma=2)
    odd = [(3, "5"), tuple(np.array([3, 5])), (3.5, 6), (3, 7)]
    outputs = engine.generate([Prompt(token_ids=ids, params=PARAMS) for ids in odd])
    engine.close()
    return [(len(output.token_ids), output.error) for output in outputs]


def test_a_prompt_of_the_wrong_kind_is_reported_and_the_others_answered(pair_of: PairOf) -> None:
    folders = tuple(map(str, pair_of("noisy")))
    results = shared_pool(2).run(answers_and_errors, folders, timeout_s=60.0)
    assert results[0] == results[1], "ranks stay in step"
    assert [length for length, _ in results[0]] == [0, 6, 0, 6]
    assert [error is not None for _, error in results[0]] == [True, False, True, False]


def test_a_constructor_that_fails_leaves_its_peers(pair_of: PairOf, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = map(str, pair_of("noisy"))
    group = InProcessGroup(2, 5.0)
    monkeypatch.setattr(engine_module, "connect", lambda *_: group.transport(1))
    with pytest.raises(UserError, match="--placement"):
        PearlPP(target=target, draft=draft, placement="nowhere.yaml")
    assert group.transport(0).broken
    torch.set_grad_enabled(True)


def test_a_transport_that_was_handed_in_stays_open(pair_of: PairOf) -> None:
    target, draft = map(str, pair_of("noisy"))
    group = InProcessGroup(2, 5.0)
    with pytest.raises(UserError, match="--placement"):
        PearlPP(transport=group.transport(1), target=target, draft=draft, placement="nowhere.yaml")
    assert not group.transport(0).broken
    torch.set_grad_enabled(True)
