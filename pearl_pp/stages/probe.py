"""One pass over one token of a model without memory: in which order its parts work, and what its cache must hold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from pearl_pp.stages.families import Decoder
from pearl_pp.stages.kv_cache import KVCache


class Probe(NamedTuple):
    """What a pass has shown.

    `steps`: numbers of the layers and names of the decoder's exit modules, as they were called. `is_whole`: the
    pass came to its end; it stops where numbers would decide (a router). `kv_shape`: KV heads and size of an
    entry, the largest of all layers; (0, 0) where nothing was cached. `is_cached`: every layer cached something.
    """

    steps: tuple[int | str, ...]
    is_whole: bool
    kv_shape: tuple[int, int]
    is_cached: bool


def probe(model: PreTrainedModel, decoder: Decoder, num_layers: int) -> Probe:
    """Run `model`, which is on the meta device, over one token."""
    module = decoder.module(model)
    cache = KVCache(0, num_layers, 1, torch.float32, torch.device("meta"))
    token = torch.zeros(1, 1, dtype=torch.int64, device="meta")
    steps: list[int | str] = []
    is_whole = False
    with _watched(module, decoder, steps), contextlib.suppress(Exception), torch.inference_mode():
        module(input_ids=token, position_ids=token, **cache.as_arguments(module))
        is_whole = True
    return Probe(tuple(steps), is_whole, cache.probed_shape(), cache.is_probed)


@contextlib.contextmanager
def _watched(module: nn.Module, decoder: Decoder, steps: list[int | str]) -> Iterator[None]:
    parts: list[tuple[int | str, nn.Module]] = [(name, getattr(module, name)) for name in decoder.exit]
    parts += enumerate(getattr(module, decoder.layers))
    handles = [part.register_forward_pre_hook(_note(step, steps)) for step, part in parts]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _note(step: int | str, steps: list[int | str]) -> Callable[..., None]:
    return lambda *_: steps.append(step)


def refusal(probe: Probe, num_layers: int) -> str | None:
    """Why stages would not compute what the whole model does, as far as the pass has come; None if they would."""
    layers = [step for step in probe.steps if isinstance(step, int)]
    expected = list(range(num_layers))
    if layers != (expected if probe.is_whole else expected[: len(layers)]):
        return "its layers do not run once each, in their order"
    early = next((step for step in probe.steps[:num_layers] if isinstance(step, str)), None)
    if early is not None:
        return f"{early} works before the last layer too"
    if probe.is_whole and not probe.is_cached:
        return "its layers keep no KV cache"
    return None
