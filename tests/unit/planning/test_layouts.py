"""Places for the draft, and the layers that fit beside them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl_pp.planning.layouts import Fit, Layout, fit_of, fits_of, sharded_layouts, whole_layouts
from pearl_pp.planning.question import Question
from pearl_pp.schedule.placement import Shard
from tests.unit.planning.machines import question

PLAIN = Layout(3, ())


def all_fits(asked: Question, layout: Layout) -> Iterator[Fit]:
    for cuts in itertools.combinations(range(1, asked.num_layers), layout.num_stages - 1):
        bounds = [0, *cuts, asked.num_layers]
        yield fit_of(asked, layout, tuple(b - a for a, b in itertools.pairwise(bounds)))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([1.2, 1.6, 2.4, 3.3, 4.1, 6.0, 9.0]), min_size=3, max_size=3),
    st.sampled_from([1.0, 0.5]),
    st.sampled_from([None, 0, 2]),
)
def test_a_split_that_fits_is_found_if_there_is_one(memory: list[float], speed: float, replica: int | None) -> None:
    replicas = () if replica is None else ((Shard(replica, 0, 4),),)
    layout = Layout(3, replicas)
    asked = question(3, memory=tuple(memory), ranks__speed=[1, speed, 1, 1, 1])
    found = fits_of(asked, layout)
    every = list(all_fits(asked, layout))
    if any(fit.fits for fit in every):
        assert found
        assert all(fit.fits for fit in found)
        times = [max(n / s for n, s in zip(fit.split, (1, speed, 1), strict=True)) for fit in every if fit.fits]
        best = min(max(n / s for n, s in zip(fit.split, (1, speed, 1), strict=True)) for fit in found)
        assert best == min(times)
    else:
        assert len(found) == 1
        assert not found[0].fits
        assert sum(found[0].short) == min(sum(fit.short) for fit in every)


def test_what_layers_bring_along_counts() -> None:
    """Beside its cache a rank needs room to let it grow, the more the more layers it gets: what the even split leaves
    on the fast rank 0 would do for four layers of 1.5 GB, but with four the cache that grows needs 1 GB, not 0.8.
    """
    kv = {"max_len": 1000, "target__kv_bytes_per_token": 8 * 500_000}
    asked = question(3, memory=(6.9, 3.6, 5.3), ranks__speed=[2, 1, 1, 1, 1], **kv)
    fits = fits_of(asked, PLAIN)
    assert [fit.split for fit in fits] == [(3, 2, 3)]
    assert fits[0].fits
    assert not fit_of(asked, PLAIN, (4, 2, 2)).fits


def test_a_rank_that_comes_out_too_full_gets_a_layer_less() -> None:
    """A pass needs 201 MB, whatever it passes through; a cache of five layers, when it grows, 256: more than what the
    even split leads to expect, and rank 0, a little faster, has room for five layers of 1.1 GB and 230 MB.
    """
    shape = {"max_len": 1000, "target__kv_bytes_per_token": 8 * 100_000, "target__hidden_size": 32768}
    asked = question(3, memory=(5.73, 50, 50), ranks__speed=[1.2, 1, 1, 1, 1], **shape)
    assert max(fit.split[0] for fit in fits_of(asked, PLAIN)) == 4
    assert not fit_of(asked, PLAIN, (5, 2, 1)).fits
    assert fit_of(asked, PLAIN, (4, 2, 2)).fits


def test_places_differ_and_are_complete() -> None:
    found = list(whole_layouts(4, 24))
    assert len(set(found)) == len(found) == 1 + 4 + 6 + 4
    assert [layout.num_stages for layout in found] == [3, *[4] * 14]
    many = list(whole_layouts(8, 24))
    assert len(many) == 1 + 8 + 13 + 6
    for layout in sharded_layouts(4, 7, 3):
        for replica in layout.replicas:
            assert [(s.start, s.end) for s in replica] == [(0, 2), (2, 4), (4, 7)]
            assert len({s.rank for s in replica}) == 3


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5])
def test_a_second_replica_is_cut_differently(num_ranks: int) -> None:
    for layout in sharded_layouts(num_ranks, 8, 2):
        if len(layout.replicas) == 2:
            first, second = layout.replicas
            assert all(a.rank != b.rank for a, b in zip(first, second, strict=True))
