"""One table says what the names of `--strategy` mean."""

from __future__ import annotations

from typing import get_args

import pytest

from pearl_pp.config import RunConfig
from pearl_pp.config.strategies import STRATEGIES, strategy_on


def test_the_table_has_every_name_and_no_other() -> None:
    assert set(get_args(RunConfig.model_fields["strategy"].annotation)) == set(STRATEGIES)


@pytest.mark.parametrize("name", STRATEGIES)
def test_on_one_rank_nothing_is_idle(name: str) -> None:
    alone = STRATEGIES[strategy_on(name, 1)]
    assert not alone.pre_verify and not alone.post_verify
    assert alone.drafts == STRATEGIES[name].drafts
    assert strategy_on(name, 2) == name


@pytest.mark.parametrize(
    ("options", "adapts"),
    [
        ({}, True),
        ({"strategy": "sd"}, True),
        ({"strategy": "ar"}, False),
        ({"placement": "hop"}, False),
        ({"no_post_verify": True}, False),
    ],
)
def test_only_what_is_left_open_adapts(options: dict, adapts: bool) -> None:
    assert RunConfig(**options).adapts is adapts
