"""What `generate` takes: prompts, and sampling options for all of them or for each."""

from __future__ import annotations

import pytest

from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError
from pearl_pp.runtime.engine import PearlPP
from pearl_pp.runtime.request import Prompt, as_prompts


def test_options_for_all_for_each_and_of_their_own() -> None:
    own = Prompt(text="c", params=SamplingParams(top_k=3))
    one, two = SamplingParams(top_k=1), SamplingParams(top_k=2)
    assert [p.params.top_k for p in as_prompts(["a", "b", own], one)] == [1, 1, 3]
    assert [p.params.top_k for p in as_prompts(["a", "b", own], [one, two, one])] == [1, 2, 3]
    assert as_prompts([], one) == []


@pytest.mark.parametrize("params", [[], [SamplingParams()] * 2])
def test_as_many_options_as_prompts(params: list[SamplingParams]) -> None:
    engine = PearlPP.__new__(PearlPP)  # the mistake is found before anything is asked of the ranks
    with pytest.raises(UserError, match=r"^params [02]: must be one for all or one for each of 1 prompts$"):
        engine.generate(["a"], params)
    with pytest.raises(UserError, match="must be a list of prompts, not one text"):
        as_prompts("a", SamplingParams())
