"""Chi-square tests of a text against the Markov chain it should come from."""

from collections.abc import Sequence

import numpy as np
from scipy import stats
from torch import Tensor


def p_value_of_blocks(text: Sequence[int], probs: Sequence[float], size: int) -> float:
    """How well neighbouring tokens, in blocks of `size`, fit independent draws from probs."""
    vocab_size = len(probs)
    blocks = np.array(text[: len(text) // size * size]).reshape(-1, size)
    counts = np.bincount(blocks @ vocab_size ** np.arange(size), minlength=vocab_size**size)
    expected = np.array(1.0)
    for _ in range(size):
        expected = np.outer(probs, expected).ravel()
    return float(stats.chisquare(counts, expected * counts.sum()).pvalue)


def p_value_of_chain(text: Sequence[int], scores: Tensor, order: int = 2) -> float:
    """How well the tokens after each `order` tokens fit the chain (order 1: pairs, order 2: triples).

    Given how often each history occurs, the counts after it are multinomial; their statistics add up.
    Entries expected fewer than 5 times are put together.
    """
    probs = scores.double().softmax(-1).numpy()
    vocab_size = len(probs)
    tokens = np.array([0, *text])
    history = sum(tokens[shift : len(tokens) - order + shift] * vocab_size**shift for shift in range(order))
    counts = np.zeros((vocab_size**order, vocab_size))
    np.add.at(counts, (history, tokens[order:]), 1)
    statistic, freedom = 0.0, 0
    for index, row in enumerate(counts):
        expected = row.sum() * probs[index // vocab_size ** (order - 1)]
        assert not row[expected == 0].any(), "a token of probability 0 was drawn"
        observed, expected = _merge_rare(row, expected)
        statistic += ((observed - expected) ** 2 / expected).sum() if len(expected) > 1 else 0.0
        freedom += max(len(expected) - 1, 0)
    return float(stats.chi2.sf(statistic, freedom))


def _merge_rare(observed: np.ndarray, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(expected)
    observed, expected = observed[order], expected[order]
    num_rare = int(np.searchsorted(np.cumsum(expected), 5.0)) + 1
    return (
        np.concatenate([[observed[:num_rare].sum()], observed[num_rare:]]),
        np.concatenate([[expected[:num_rare].sum()], expected[num_rare:]]),
    )
