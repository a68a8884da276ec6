"""Target layers per stage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl_pp.errors import UserError
from pearl_pp.planning.partition import checked_split, split_layers


@given(st.integers(1, 12), st.integers(0, 100), st.sets(st.integers(0, 11)))
def test_an_even_split_uses_every_layer_and_spares_loaded_ranks(stages: int, more: int, loaded: set[int]) -> None:
    num_layers = stages + more
    split = split_layers(num_layers, stages, loaded)
    assert len(split) == stages
    assert sum(split) == num_layers
    assert max(split) - min(split) <= 1
    larger = {rank for rank in range(stages) if split[rank] > min(split)}
    free = set(range(stages)) - loaded
    assert larger <= free or free <= larger, "a rank with a replica gets one more only when all others have it"


def test_what_is_left_over_goes_to_the_last_rank_last() -> None:
    """The last stage has the head as well."""
    assert split_layers(6, 4) == (2, 2, 1, 1)
    assert split_layers(7, 4) == (2, 2, 2, 1)
    assert split_layers(6, 4, {0, 3}) == (1, 2, 2, 1)
    assert split_layers(7, 4, {0, 3}) == (2, 2, 2, 1)


@pytest.mark.case("P5")
@given(st.integers(2, 12), st.data())
def test_more_stages_than_layers_are_refused(stages: int, data: st.DataObject) -> None:
    num_layers = data.draw(st.integers(0, stages - 1))
    with pytest.raises(UserError) as caught:
        split_layers(num_layers, stages)
    reason = f"the target has {num_layers} layers, too few for {stages} pipeline stages; start fewer ranks"
    assert str(caught.value) == f"--nproc-per-node {stages}: {reason}"


def test_a_split_by_hand_is_taken_as_it_is() -> None:
    assert checked_split((1, 5, 2), 8, 3, "--layer-split") == (1, 5, 2)


@pytest.mark.parametrize(
    ("split", "reason"),
    [
        ((4, 4), "has 2 stages, this run has 3"),
        ((2, 2, 2, 2), "has 4 stages, this run has 3"),
        ((3, 3, 3), "has 9 layers, the target has 8"),
        ((2, 2, 2), "has 6 layers, the target has 8"),
    ],
)
def test_a_split_that_does_not_cover_the_target_is_refused(split: tuple[int, ...], reason: str) -> None:
    with pytest.raises(UserError) as caught:
        checked_split(split, 8, 3, "--layer-split")
    assert str(caught.value) == f"--layer-split {','.join(map(str, split))}: {reason}"
