"""Reading safetensors into a model on the meta device, through transformers' own weight conversion.

Only tensors that the model has are read, one by one, straight to their device and dtype; renamed and fused
weights (a mixture's experts) are transformers' business. The one place that knows its loading functions.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    GLOBAL_WORKERS,
    WeightConverter,
    convert_and_load_state_dict_in_model,
)
from transformers.modeling_utils import LoadStateDictConfig
from transformers.utils import logging

NUM_LOADERS = GLOBAL_WORKERS  # threads that read tensors at the same time

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class TensorSource(Protocol):
    """Where the numbers of one tensor come from."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def materialize(self, index: Any, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """The part at `index`, in memory of its own if it is on `device` in `dtype`; else the loader copies it."""
        ...


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor of a checkpoint lies; `dtype` is safetensors' name of it."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def torch_dtype(self) -> torch.dtype | None:
        """None where it is no float type that a model computes in."""
        return _DTYPES.get(self.dtype)

    def read(self) -> torch.Tensor:
        """The tensor, memory-mapped: pages are read when they are used."""
        with safe_open(self.file, framework="pt") as file:
            return file.get_tensor(self.name)

    def materialize(self, index: Any, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        tensor = self.read()[index]
        if tensor.device == device and tensor.dtype == dtype:
            return tensor.clone()  # else the model would go on living in the file's pages
        return tensor


def list_tensors(file: Path) -> dict[str, StoredTensor]:
    """What a safetensors file holds, from its header. Raises SafetensorError if it is damaged."""
    with safe_open(file, framework="pt") as handle:
        names = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118 (not a mapping)
        return {
            name: StoredTensor(file, name, tuple(part.get_shape()), part.get_dtype()) for name, part in names.items()
        }


@dataclass(frozen=True)
class Mismatch:
    """How a checkpoint and a model disagree: names of tensors, some with what is wrong with them."""

    missing: tuple[str, ...]
    unused: tuple[str, ...]
    wrong_shape: tuple[str, ...]
    errors: tuple[str, ...]


def compare(model: PreTrainedModel, tensors: Mapping[str, TensorSource]) -> Mismatch:
    """Go through the whole loading of a model on the meta device without reading a tensor."""
    shapes = {name: torch.empty(tensor.shape, device="meta") for name, tensor in tensors.items()}
    with _quiet():
        info, _ = convert_and_load_state_dict_in_model(model, shapes, _load_config(model, "meta"))
    model._adjust_missing_and_unexpected_keys(info)
    missing = set(info.missing_keys)
    for target, source in model.all_tied_weights_keys.items():
        if not {target, source} <= missing:
            missing -= {target, source}
    return Mismatch(
        missing=tuple(sorted(missing)),
        unused=tuple(sorted(info.unexpected_keys)),
        wrong_shape=tuple(
            f"{name} {list(have)} instead of {list(want)}" for name, have, want in sorted(info.mismatched_keys, key=str)
        ),
        errors=tuple(f"{name}: {reason}" for name, reason in info.conversion_errors.items()),
    )


def load(
    model: PreTrainedModel,
    tensors: Mapping[str, TensorSource],
    device: torch.device,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Fill a model on the meta device with those of `tensors` that it has, and move it to `device`.

    `progress(done_bytes, total_bytes)`, in the model's dtype, may be called from another thread.
    """
    dtype = _dtype(model)
    total = sum(parameter.numel() for parameter in set(model.parameters())) * dtype.itemsize
    counter = _Counter(total, dtype.itemsize, progress)
    lazy = {name: _LazyTensor(tensor, device, dtype, counter) for name, tensor in tensors.items()}
    load_config = _load_config(model, device)
    with _quiet():
        info, _ = convert_and_load_state_dict_in_model(model, lazy, load_config)
        info.unexpected_keys.clear()  # the tensors of other stages
        model._finalize_model_loading(model, load_config, info)


def merging_bytes(model: PreTrainedModel, dtype: torch.dtype) -> int:
    """The largest weight that is put together from several tensors: until it is, both are there."""
    if not any(isinstance(entry, WeightConverter) for entry in get_model_conversion_mapping(model) or ()):
        return 0
    merged = [parameter.numel() for parameter in model.parameters() if parameter.ndim > 2]  # one matrix an expert
    return max(merged, default=0) * dtype.itemsize


@dataclass(frozen=True)
class _LazyTensor:
    """Stands for a tensor in a state dict; transformers' loader reads it by slicing."""

    source: TensorSource
    device: torch.device
    dtype: torch.dtype
    counter: "_Counter"

    def __getitem__(self, index: Any) -> torch.Tensor:
        tensor = self.source.materialize(index, self.device, self.dtype)
        self.counter.add(tensor.numel())
        return tensor


class _Counter:
    """Adds up what the loading threads have read."""

    def __init__(self, total: int, itemsize: int, progress: Callable[[int, int], None] | None) -> None:
        self._total, self._itemsize, self._progress = total, itemsize, progress
        self._done = 0
        self._lock = threading.Lock()

    def add(self, num_elements: int) -> None:
        with self._lock:
            self._done += num_elements * self._itemsize
            if self._progress is not None:
                self._progress(min(self._done, self._total), self._total)


def _load_config(model: PreTrainedModel, device: torch.device | str) -> LoadStateDictConfig:
    return LoadStateDictConfig(
        ignore_mismatched_sizes=True,
        device_map={"": device},
        dtype=_dtype(model),
        dtype_plan=model._get_dtype_plan(_dtype(model)),
        weight_mapping=get_model_conversion_mapping(model),  # pyright: ignore[reportArgumentType]
    )


def _dtype(model: PreTrainedModel) -> torch.dtype:
    assert isinstance(model.config.dtype, torch.dtype)  # `from_config` was given one
    return model.config.dtype


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' own progress bar and loading report out of the output."""
    verbosity, had_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bar:
            logging.enable_progress_bar()
