"""Target layers per stage."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl_pp.errors import UserError
from pearl_pp.planning.partition import (
    Card,
    Layer,
    checked_split,
    least_bottleneck,
    least_shortage,
    least_total,
    split_layers,
)


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


# -- where memory and speed allow

CARDS = st.builds(
    Card, st.one_of(st.just(math.inf), st.integers(0, 30).map(float)), st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0])
)
LAYERS = st.lists(st.builds(Layer, st.integers(0, 9), st.sampled_from([0.001, 0.002, 0.005])), min_size=1, max_size=9)


def all_splits(num_layers: int, num_ranks: int) -> Iterator[tuple[int, ...]]:
    for cuts in itertools.combinations(range(1, num_layers), num_ranks - 1):
        bounds = [0, *cuts, num_layers]
        yield tuple(b - a for a, b in itertools.pairwise(bounds))


class Stages:
    """Bytes and picoseconds of the stages of a split."""

    def __init__(self, split: tuple[int, ...], layers: list[Layer], cards: list[Card]) -> None:
        bounds = [0, *itertools.accumulate(split)]
        parts = [layers[a:b] for a, b in itertools.pairwise(bounds)]
        self.times = [
            sum(round(layer.seconds / card.speed * 1e12) for layer in part)
            for part, card in zip(parts, cards, strict=True)
        ]
        sizes = [sum(layer.num_bytes for layer in part) for part in parts]
        self.short = sum(max(0, size - card.num_bytes) for size, card in zip(sizes, cards, strict=True))


@given(LAYERS, st.lists(CARDS, min_size=1, max_size=4), st.data())
def test_the_split_is_the_best_of_all_that_fit(layers: list[Layer], cards: list[Card], data: st.DataObject) -> None:
    loaded = data.draw(st.sets(st.integers(0, len(cards) - 1)))
    every = [Stages(split, layers, cards) for split in all_splits(len(layers), len(cards))]
    fitting = [stages.times for stages in every if not stages.short]
    total, bottleneck = least_total(layers, cards, loaded), least_bottleneck(layers, cards, loaded)
    if not fitting:
        assert total is None
        assert bottleneck is None
        return
    assert total is not None
    assert bottleneck is not None
    chosen = [Stages(split, layers, cards) for split in (total, bottleneck)]
    assert not any(stages.short for stages in chosen)
    assert (sum(chosen[0].times), max(chosen[0].times)) == min((sum(t), max(t)) for t in fitting)
    assert (max(chosen[1].times), sum(chosen[1].times)) == min((max(t), sum(t)) for t in fitting)


@given(LAYERS, st.lists(CARDS, min_size=1, max_size=4), st.sampled_from([0.002, 0.005, 0.01, 0.02]))
def test_no_stage_is_slower_than_allowed(layers: list[Layer], cards: list[Card], limit: float) -> None:
    split = least_total(layers, cards, slowest_s=limit)
    every = [Stages(split, layers, cards) for split in all_splits(len(layers), len(cards))]
    allowed = [s.times for s in every if not s.short and max(s.times) <= round(limit * 1e12)]
    if split is None:
        assert not allowed
    else:
        times = Stages(split, layers, cards).times
        assert max(times) <= round(limit * 1e12)
        assert sum(times) == min(map(sum, allowed))


@given(LAYERS, st.lists(CARDS, min_size=1, max_size=4))
def test_where_nothing_fits_the_least_is_missing(layers: list[Layer], cards: list[Card]) -> None:
    split = least_shortage(layers, cards)
    every = [Stages(split, layers, cards).short for split in all_splits(len(layers), len(cards))]
    if not every:
        assert split is None
    else:
        assert split is not None
        assert Stages(split, layers, cards).short == min(every)


def test_a_layer_that_fits_nowhere_is_refused() -> None:
    """Not squeezed onto the card where it lacks least."""
    layers = [Layer(4, 0.01), Layer(11, 0.01), Layer(4, 0.01)]
    cards = [Card(10, 1.0), Card(10, 1.0)]
    assert least_total(layers, cards) is None
    assert least_bottleneck(layers, cards) is None
    assert least_shortage(layers, cards) is not None


def test_slow_cards_get_less_and_ranks_with_a_replica_the_smaller_stages() -> None:
    layers = [Layer(1, 0.001)] * 48
    cards = [Card(math.inf, speed) for speed in (1.0, 1.0, 0.5, 0.5)]
    assert least_bottleneck(layers, cards) == (16, 16, 8, 8)
    assert least_total(layers, cards) == (23, 23, 1, 1)
    limited = least_total(layers, [Card(20, 1.0), Card(20, 1.0), *cards[2:]])
    assert limited is not None
    assert limited[:2] == (20, 20)
    equal = [Card(math.inf, 1.0)] * 4
    assert least_total([Layer(1, 0.001)] * 6, equal, {0, 3}) == (1, 2, 2, 1)
    assert least_bottleneck([Layer(1, 0.001)] * 7, equal, {1}) == (2, 1, 2, 2)
