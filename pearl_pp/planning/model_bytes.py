"""How large the parts of a model are, from its structure on the meta device: no weights are needed."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

import torch
from torch import nn

from pearl_pp.stages import families
from pearl_pp.stages.pass_bytes import PassBytes, pass_bytes
from pearl_pp.stages.source import ModelSource

Ends = tuple[bool, bool]


@dataclass(frozen=True)
class ModelBytes:
    """Sizes of a model's parts in bytes.

    Args:
        layers: weights of each layer.
        ends: weights beside the layers of a stage that is (first, last): embedding, final norm, head. A head tied to
            the embedding counts on either end.
        kv_per_layer: keys and values of one position in one layer.
        tied: the matrix that is embedding and head at once; 0 where they are two.
        hidden_row: hidden states of one position, as they travel.
        vocab_size: width of a row of logits.
        of_pass: what a pass needs while it runs.
        loading: what reading or making the weights needs beside them.
    """

    layers: tuple[int, ...]
    ends: Mapping[Ends, int]
    kv_per_layer: int
    tied: int = 0
    hidden_row: int = 0
    vocab_size: int = 0
    of_pass: PassBytes = field(default_factory=PassBytes)
    loading: int = 0

    def weights_of(self, start: int, end: int) -> int:
        """Weights of a stage of layers [start, end), a tied head's second copy included."""
        return sum(self.layers[start:end]) + self.ends[start == 0, end == len(self.layers)]

    def tied_copy_of(self, start: int, end: int) -> int:
        """What of them is a second copy: a last stage's tied head, whose first copy is another stage's embedding."""
        return self.tied if start > 0 and end == len(self.layers) else 0

    def kv_of(self, start: int, end: int, num_positions: int) -> int:
        """KV entries of layers [start, end)."""
        return (end - start) * self.kv_per_layer * num_positions


def count_bytes(source: ModelSource, dtype: torch.dtype) -> ModelBytes:
    """Sizes of a model in `dtype`; its folder may hold a config.json alone."""
    layers = getattr(source.decoder.module(source.meta_model), source.decoder.layers)
    head = source.meta_model.get_output_embeddings()
    return ModelBytes(
        layers=tuple(_num_weights(layer) * dtype.itemsize for layer in layers),
        ends={ends: number * dtype.itemsize for ends, number in _ends(source, dtype)},
        kv_per_layer=source.kv_bytes_per_token(dtype) // source.num_layers,
        tied=_num_weights(head) * dtype.itemsize if source.tied and head is not None else 0,
        hidden_row=source.hidden_size * dtype.itemsize,
        vocab_size=source.vocab_size,
        of_pass=pass_bytes(source, dtype),
        loading=source.loading_bytes(dtype),
    )


def _ends(source: ModelSource, dtype: torch.dtype) -> Iterator[tuple[Ends, int]]:
    """Numbers of weights that `build_stage` leaves beside the layers."""
    bare = source.new_model(dtype)
    families.cut_layers(bare, source.decoder, 0, 0)
    for is_first, is_last in product((False, True), repeat=2):
        model = copy.deepcopy(bare)
        families.drop_ends(model, source.decoder, is_first=is_first, is_last=is_last, keep_tied=False)
        yield (is_first, is_last), _num_weights(model)


def _num_weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())  # a tied one comes once
