"""Synthetic models (DESIGN section 10): Llamas of any shape with random weights, made where they are used.

A number of a weight is a pure function of (seed, tensor name, place in the tensor), in integer arithmetic, so it is
the same on every rank, on every device and however the layers are cut.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig

from pearl_pp.stages import families
from pearl_pp.stages.checkpoint import NUM_LOADERS
from pearl_pp.stages.shapes import PairShape
from pearl_pp.stages.source import ModelSource

# Numbers made at a time, in buffers that are made once: what the work takes beside the weights stays small. On a CPU
# they stay in its cache, and blocks this small do not make malloc keep the memory of larger ones for itself.
CHUNKS = {"cpu": 2**14, "cuda": 2**20}
SCRATCH = 8 + 8 + 4  # bytes of the buffers for each number

_SCALED = ("o_proj.weight", "down_proj.weight")  # what a layer adds to its input comes out of these
_MASK = 2**32 - 1


@dataclass(frozen=True)
class GeneratedTensor:
    """A weight that is computed instead of read: uniform, with mean 0 and standard deviation `std`.

    Its name is its place in the uncut model. Norms, tensors of one dimension, are ones.
    """

    name: str
    shape: tuple[int, ...]
    seed: int
    std: float

    def materialize(self, index: Any, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        if len(self.shape) == 1:
            return torch.ones(self.shape, device=device, dtype=dtype)[index]
        key = int.from_bytes(hashlib.blake2b(f"{self.seed}/{self.name}".encode(), digest_size=4).digest())
        scale = self.std * 3**0.5 / 2**23
        weight = torch.empty(self.shape, device=device, dtype=dtype)
        chunks = weight.view(-1).split(CHUNKS[device.type])
        buffers = torch.empty(2, chunks[0].numel(), dtype=torch.int64, device=device)
        floats = torch.empty(chunks[0].numel(), dtype=torch.float32, device=device)
        start = 0
        for chunk in chunks:
            bits, scratch = buffers[:, : chunk.numel()]
            torch.arange(start, start + chunk.numel(), out=bits)
            _hash(bits, scratch)
            bits ^= key
            _hash(bits, scratch)
            bits >>= 8
            bits -= 2**23
            # 24 bits are exact in float32; the one rounding of the product is the same on all devices.
            chunk.copy_(floats[: chunk.numel()].copy_(bits).mul_(scale))
            start += chunk.numel()
        return weight[index]


def _hash(numbers: torch.Tensor, scratch: torch.Tensor) -> None:
    """A well-mixing bijection of 32-bit numbers held in int64, in place; no product exceeds 63 bits."""
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        numbers ^= torch.bitwise_right_shift(numbers, shift, out=scratch)
        numbers *= factor
        numbers &= _MASK
    numbers ^= torch.bitwise_right_shift(numbers, 15, out=scratch)


def is_scaled(name: str, shape: PairShape) -> bool:
    """Whether a weight, by its name in the uncut model, is one that eps scales."""
    number = families.layer_number(name)
    return number is not None and number >= shape.draft.num_layers and name.endswith(_SCALED)


@dataclass(frozen=True)
class SyntheticSource(ModelSource):
    """One model of a synthetic pair in place of a folder; `path` is the shape's file. Made by `open_synthetic`."""

    shape: PairShape

    @property
    def model_type(self) -> str:
        return f"synthetic {self.config.model_type}"

    @property
    def fingerprint(self) -> str:
        return self.shape.model_dump_json()

    @property
    def note(self) -> str:
        """What a user should know of the pair, in one line."""
        agreement = self.shape.agreement
        told = "not measured" if agreement is None else f"{agreement:g}"
        return f"{self.shape.name}: random weights, agreement {told} (eps {self.shape.eps:g})"

    def is_draft_of(self, target: ModelSource) -> bool:
        """Whether both come from one shape."""
        return isinstance(target, SyntheticSource) and target.shape == self.shape

    def loading_bytes(self, dtype: torch.dtype) -> int:
        return NUM_LOADERS * CHUNKS["cpu"] * SCRATCH  # a card's few tens of MB are in its reserve

    @cached_property
    def dtype(self) -> torch.dtype:
        return self._declared_dtype

    @cached_property
    def tensors(self) -> dict[str, GeneratedTensor]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Every weight of the model by name. The layers that only the target has are scaled by eps."""
        std = self.shape.hidden_size**-0.5
        made = {}
        for name, parameter in self.meta_model.named_parameters():
            factor = self.shape.eps if is_scaled(name, self.shape) else 1.0
            made[name] = GeneratedTensor(name, tuple(parameter.shape), self.shape.seed, std * factor)
        return made


def open_synthetic(shape: PairShape, path: Path, option: str, *, is_draft: bool) -> SyntheticSource:
    """The target or the draft of a pair; `path` and `option` are what errors name."""
    config = LlamaConfig(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.draft.num_layers if is_draft else shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        dtype=torch.bfloat16,
    )
    return SyntheticSource(path, option, config, False, frozenset(), shape)
