"""Randomness as a pure function of (seed, position, purpose), equal on every rank and device.

Why the noise of a position may be used again after a rollback. The draws of different (position, purpose)
pairs are independent, and the token committed at position i is a function of the committed prefix x[0..i)
and of the noise of position i alone. With `rejection`: the draft draws y with the DRAFT noise of i, y's test
takes the ACCEPT noise, its replacement the RESIDUAL noise, a bonus token the TARGET noise of i. A token
drafted at i on a prefix that was dropped later used the DRAFT noise of i too, but nobody judged it, since
judging ends at the first rejection; so it influenced nothing that was committed. Given the prefix, the noise
of i is still fresh, and the token committed there has exactly the target's distribution. The condition:
whether position i is judged or drawn as a bonus may depend on noise of earlier positions, never on which
tokens were drafted at i or later.

So one seed gives one text: where drafts happen to start and end does not change what is drawn at a position.

The generator is Philox (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), whose raw words
numpy keeps stable between versions. It runs on the CPU.
"""

from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_MASK_64 = (1 << 64) - 1
# The second word of the key; the first is the seed.
_UNIFORM, _GUMBEL = 0, 1
# Positions computed at once: making a generator costs more than its numbers.
_BLOCK = 64


class Purpose(IntEnum):
    """What a uniform draw is for; the number is the draw's column in uniforms()."""

    DRAFT = 0
    ACCEPT = 1
    RESIDUAL = 2
    TARGET = 3  # a plain draw from the target: a bonus token


def uniforms(seed: int, position: int, count: int) -> NDArray[np.float64]:
    """The draws of `count` positions from `position` on: float64 [count, one per Purpose], in [0, 1)."""
    first, offset = divmod(position, _BLOCK)
    draws = _block(seed, first)
    for index in range(first + 1, (position + count - 1) // _BLOCK + 1):
        draws = np.concatenate([draws, _block(seed, index)])
    return draws[offset : offset + count]


def uniform(seed: int, position: int, purpose: Purpose) -> float:
    """One uniform draw, in [0, 1)."""
    return float(_block(seed, position // _BLOCK)[position % _BLOCK, purpose])


def is_right(acceptance: float, seed: int, position: int) -> bool:
    """Where no model decides: whether the token drafted at `position` is the target's."""
    return uniform(seed, position, Purpose.ACCEPT) < acceptance


@lru_cache(maxsize=16)
def _block(seed: int, index: int) -> NDArray[np.float64]:
    """The draws of _BLOCK positions: a Philox counter gives four 64-bit words, one for each Purpose."""
    words = _philox(seed, _UNIFORM, index * _BLOCK).random_raw(len(Purpose) * _BLOCK)
    draws = np.multiply(words >> np.uint64(11), 2.0**-53, dtype=np.float64).reshape(_BLOCK, len(Purpose))
    draws.flags.writeable = False
    return draws


@lru_cache(maxsize=32)
def gumbel(seed: int, position: int, vocab_size: int) -> NDArray[np.float64]:
    """The Gumbel(0, 1) noise of one position: float64 [vocab_size], finite, read-only.

    32 random bits per entry, which costs half of 64 and moves no probability by more than about 2**-32.
    Cached, since a rank that drafts and verifies needs a position's noise twice, and again after a rollback.
    """
    words = _philox(seed, _GUMBEL, 0, position).random_raw((vocab_size + 1) // 2)
    noise = (words.astype("<u8", copy=False).view("<u4")[:vocab_size] + 0.5) * 2.0**-32
    for step in (np.log, np.negative, np.log, np.negative):
        step(noise, out=noise)
    noise.flags.writeable = False
    return noise


def _philox(seed: int, stream: int, *counter: int) -> np.random.Philox:
    counter_words = (*counter, 0, 0, 0, 0)[:4]
    return np.random.Philox(
        key=np.array([seed & _MASK_64, stream], dtype=np.uint64),
        counter=np.array(counter_words, dtype=np.uint64),
    )
