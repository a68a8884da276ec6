"""Noise is a function of (seed, position, purpose), with the distributions it claims."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pearl_pp.decoding.noise import Purpose, gumbel, uniform, uniforms

seeds = st.integers(0, 2**63 - 1)
positions = st.integers(0, 10**6)


@given(seeds, positions, st.integers(1, 200))
def test_a_window_of_draws_is_its_single_draws(seed: int, position: int, count: int) -> None:
    draws = uniforms(seed, position, count)
    assert draws.shape == (count, len(Purpose)) and draws.dtype == np.float64
    for index in {0, count // 2, count - 1}:
        assert [uniform(seed, position + index, purpose) for purpose in Purpose] == draws[index].tolist()


def test_draws_are_fixed_for_ever() -> None:
    """A text belongs to its seed: another generator, key or layout would change it."""
    assert uniforms(7, 100, 1)[0].tolist() == [
        0.20719617945673485,
        0.13037417699432385,
        0.08630755933108092,
        0.8831073266420796,
    ]
    assert gumbel(7, 100, 3).tolist() == pytest.approx(
        [0.19190266013452514, -0.3655034884433123, 2.481917535370897], abs=1e-12
    )


def test_uniform_draws_are_uniform_and_independent_of_each_other() -> None:
    draws = uniforms(1, 0, 20_000)
    assert draws.min() >= 0 and draws.max() < 1
    for column in draws.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
    for other in (uniforms(2, 0, 20_000), uniforms(1, 20_000, 20_000)):
        columns = np.concatenate([draws, other, np.roll(draws, 1, axis=0)], axis=1)
        correlation = np.corrcoef(columns.T) - np.eye(12)
        assert abs(correlation).max() < 5 / 20_000**0.5


@given(seeds, positions, st.integers(1, 50))
def test_gumbel_noise_does_not_depend_on_the_vocabulary_beyond_it(seed: int, position: int, size: int) -> None:
    assert (gumbel(seed, position, 64)[:size] == gumbel(seed, position, size)).all()


def test_gumbel_noise_is_gumbel_finite_and_read_only() -> None:
    noise = gumbel(3, 5, 50_000)
    assert noise.dtype == np.float64 and np.isfinite(noise).all()
    assert stats.kstest(noise, "gumbel_r").pvalue > 1e-3
    assert abs(np.corrcoef(noise, gumbel(3, 6, 50_000))[0, 1]) < 5 / 50_000**0.5
    assert abs(np.corrcoef(noise, gumbel(4, 5, 50_000))[0, 1]) < 5 / 50_000**0.5
    with pytest.raises(ValueError, match="read-only"):
        noise[0] = 0.0


def test_the_extreme_words_give_finite_gumbel_noise() -> None:
    for word in (0, 2**32 - 1):
        assert np.isfinite(-np.log(-np.log((word + 0.5) * 2.0**-32)))
