"""How often the two models of a synthetic pair agree, and the eps that makes them agree as often as asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from pearl_pp.stages.shapes import DEFAULT_EPS, PairShape
from pearl_pp.stages.stage import Stage, build_stage
from pearl_pp.stages.synthetic import is_scaled, open_synthetic

SEARCH_TOKENS = 2048  # standard error .01 near .75; the same tokens for every eps, so the search does not wander
MEASURE_TOKENS = 2048  # others than those: a search fits the noise of its own tokens
TEXT_LEN = 256
TOLERANCE = 0.005
LARGEST_EPS, SMALLEST_EPS = 1.0, 2.0**-12
MAX_STEPS = 10


class Measured(NamedTuple):
    """Top-1 agreement of a pair with this eps, over `num_tokens` that the search has not seen."""

    eps: float
    agreement: float
    num_tokens: int


def find_eps(
    shape: PairShape,
    agreement: float,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    num_tokens: int = SEARCH_TOKENS,
    on_step: Callable[[float, float], None] | None = None,
) -> Measured:
    """Search, from the shape's eps on, until the two models agree on the share `agreement` of all tokens.

    Contexts are random ids: the models' own greedy text is as random to them, and passes over many tokens at
    once are cheaper than writing it. Both models must fit on `device`. `on_step(eps, agreement)` is called
    after each step.
    """
    texts = _random_texts(shape, num_tokens, seed=0)
    whole = shape.model_copy(update={"eps": LARGEST_EPS})
    draft, target = (_build(whole, is_draft, device, dtype) for is_draft in (True, False))
    guesses = _guesses(draft, texts)
    steps = {0.0: 1.0}  # without its later layers' share the target is the draft
    now, eps = LARGEST_EPS, shape.eps or DEFAULT_EPS
    while _miss(steps, agreement) > TOLERANCE and len(steps) <= MAX_STEPS and eps not in steps:
        _rescale(target, shape, eps / now)
        now, steps[eps] = eps, _share(guesses, _guesses(target, texts))
        if on_step is not None:
            on_step(eps, steps[eps])
        eps = _next_eps(steps, agreement)
    best = min(steps, key=lambda eps: abs(steps[eps] - agreement))
    del draft, target
    return measure(shape.model_copy(update={"eps": float(f"{best:.3g}")}), device=device, dtype=dtype)


def _miss(steps: Mapping[float, float], agreement: float) -> float:
    return min(abs(found - agreement) for found in steps.values())


def _next_eps(steps: Mapping[float, float], agreement: float) -> float:
    """Twice or half as much until `agreement` lies between two steps, then between them, on a logarithmic scale."""
    low = max(eps for eps, found in steps.items() if found >= agreement)
    high = min((eps for eps, found in steps.items() if found < agreement), default=None)
    if high is None:
        return min(2 * low, LARGEST_EPS)
    if low == 0.0:
        return max(high / 2, SMALLEST_EPS)
    share = (steps[low] - agreement) / (steps[low] - steps[high])
    return low * (high / low) ** share


def measure(
    shape: PairShape,
    num_tokens: int = MEASURE_TOKENS,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Measured:
    """Agreement of the pair as it is, over `num_tokens` random contexts."""
    texts = _random_texts(shape, num_tokens, seed=1)
    draft, target = (_guesses(_build(shape, is_draft, device, dtype), texts) for is_draft in (True, False))
    return Measured(shape.eps, _share(draft, target), num_tokens)


def _build(shape: PairShape, is_draft: bool, device: torch.device | str, dtype: torch.dtype) -> Stage:
    source = open_synthetic(shape, Path(shape.name), "--shape", is_draft=is_draft)
    return build_stage(source, 0, source.num_layers, dtype=dtype, device=device, max_len=TEXT_LEN)


def _random_texts(shape: PairShape, num_tokens: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(shape.vocab_size, (num_tokens,), generator=generator)
    return list(ids.split(min(TEXT_LEN, shape.max_positions)))


def _guesses(stage: Stage, texts: list[torch.Tensor]) -> torch.Tensor:
    """The likeliest id after every token of every text."""
    return torch.cat([stage.run(text, 0, num_logits=len(text)).argmax(-1).cpu() for text in texts])


def _share(one: torch.Tensor, other: torch.Tensor) -> float:
    return (one == other).double().mean().item()


def _rescale(target: Stage, shape: PairShape, factor: float) -> None:
    """What another eps would have made of the weights, but for rounding: the search need not make them anew."""
    for name, weight in target.model.named_parameters():
        if is_scaled(name, shape):
            weight.mul_(factor)
