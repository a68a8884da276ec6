"""A model folder before anything is loaded: what its config says, and whether its checkpoint fits."""

import copy
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, PreTrainedModel

from pearl_pp.errors import UserError
from pearl_pp.stages import checkpoint, families, probe

MAX_NAMES = 3
WEIGHT_SUFFIXES = {".bin", ".gguf", ".pt", ".pth", ".safetensors"}


@dataclass(frozen=True)
class ModelSource:
    """A local Hugging Face folder. Made by `open_model`; `option` is the flag to blame in errors."""

    path: Path
    option: str
    config: PreTrainedConfig
    trust_remote_code: bool
    eos_token_ids: frozenset[int]

    @property
    def num_layers(self) -> int:
        return self.config.num_hidden_layers

    @property
    def hidden_size(self) -> int:
        return self.config.hidden_size

    @property
    def model_type(self) -> str:
        return self.config.model_type

    @property
    def fingerprint(self) -> str:
        """Equal on ranks that have opened the same model."""
        return self.config.to_json_string()

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding, padding rows included."""
        return self.config.vocab_size

    @cached_property
    def max_positions(self) -> int:
        return families.max_positions(self.config)

    @property
    def context_note(self) -> str | None:
        """Why the context is shorter than the model's own, where it is."""
        kind = families.length_dependent_rope(self.config)
        if kind is None:
            return None
        return (
            f"rope type {kind} changes its frequencies beyond {self.max_positions} positions, "
            "which no rollback undoes: the context ends there"
        )

    @property
    def tied(self) -> bool:
        """Whether head and embedding are one tensor, which the first and the last stage both hold."""
        return bool(self.meta_model.all_tied_weights_keys)

    @cached_property
    def dtype(self) -> torch.dtype:
        """The float type of the checkpoint; what the config says where there are no weights."""
        found = [t.torch_dtype for t in self.tensors.values() if t.torch_dtype] if self._files() else []
        return max(set(found), key=found.count) if found else self._declared_dtype

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes of one position's keys and values in all layers, as a `KVCache` holds them."""
        kv_heads, head_dim = self.kv_shape
        return self.num_layers * 2 * kv_heads * head_dim * dtype.itemsize

    @cached_property
    def kv_shape(self) -> tuple[int, int]:
        """KV heads and entry size as a pass shows them: configs name them in many ways."""
        kv_heads, head_dim = self._probe.kv_shape
        if kv_heads:
            return kv_heads, head_dim
        config, num_heads = self.config, self.config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
        return kv_heads, getattr(config, "head_dim", None) or config.hidden_size // num_heads

    @cached_property
    def _probe(self) -> probe.Probe:
        return probe.probe(self.meta_model, self.decoder, self.num_layers)

    @cached_property
    def meta_model(self) -> PreTrainedModel:
        """The whole model without memory, for its structure. Not to be changed."""
        try:
            return self.new_model(self._declared_dtype)
        except (ValueError, ImportError) as error:
            raise self.error(f"{self.config.model_type}: {_first_line(error)}") from error

    @property
    def attention(self) -> str:
        """The attention that transformers would choose."""
        return self.meta_model.config._attn_implementation or "eager"

    @cached_property
    def decoder(self) -> families.Decoder:
        try:
            return families.find_decoder(self.meta_model, self.num_layers)
        except ValueError as error:
            raise self.error(str(error)) from error

    @cached_property
    def tensors(self) -> dict[str, checkpoint.StoredTensor]:
        """All tensors of the checkpoint by name, from the headers of its files. Raises UserError."""
        tensors: dict[str, checkpoint.StoredTensor] = {}
        for file in self._files():
            try:
                tensors |= checkpoint.list_tensors(file)
            except FileNotFoundError as error:
                raise self.error(f"{file.name} is missing") from error
            except (SafetensorError, OSError) as error:
                raise self.error(f"{file.name} cannot be read: {error}") from error
        if not tensors:
            others = sorted(f.name for f in self.path.iterdir() if f.suffix in WEIGHT_SUFFIXES)
            hint = f"; {others[0]} is not read" if others else ""
            raise self.error(f"no model.safetensors{hint}")
        return tensors

    def loading_bytes(self, dtype: torch.dtype) -> int:
        """What `build_stage` needs for a while beside the weights it reads."""
        return checkpoint.merging_bytes(self.meta_model, dtype)

    def new_model(self, dtype: torch.dtype, attention: str | None = None) -> PreTrainedModel:
        """The whole model on the meta device: structure without memory."""
        config = copy.deepcopy(self.config)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=attention, trust_remote_code=self.trust_remote_code
            )

    def check(self) -> None:
        """Compare the checkpoint with what the layers need, before anything is loaded. Raises UserError."""
        tensors = self.tensors
        if self.meta_model._is_stateful:
            raise self.error(f"{self.config.model_type} keeps a recurrent state, which cannot be rolled back")
        reason = families.cannot_be_cut(self.new_model(torch.float32), self.decoder)
        if reason is not None or (reason := probe.refusal(self._probe, self.num_layers)) is not None:
            raise self.error(f"{self.config.model_type} cannot be cut into stages yet: {reason}")
        mismatch = checkpoint.compare(self.new_model(self.dtype), tensors)
        for names, what in (
            (mismatch.missing, "missing from the checkpoint"),
            (mismatch.wrong_shape, "of another shape than the config says"),
            (mismatch.errors, "not convertible"),
            (mismatch.unused, "in the checkpoint but not in the model"),
        ):
            if names:
                more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
                raise self.error(f"tensors {what}: {', '.join(names[:MAX_NAMES])}{more}")

    @property
    def _declared_dtype(self) -> torch.dtype:
        dtype = self.config.dtype
        return dtype if isinstance(dtype, torch.dtype) else torch.float32

    def error(self, reason: str) -> UserError:
        return UserError(self.option, self.path, reason)

    def _files(self) -> list[Path]:
        """The checkpoint's files as transformers picks them; none where there are no safetensors."""
        single, index = self.path / "model.safetensors", self.path / "model.safetensors.index.json"
        if single.is_file():
            return [single]
        if not index.is_file():
            return []
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            if elsewhere := next((name for name in names if Path(name).name != name), None):
                raise self.error(f"{index.name} names {elsewhere!a}, which is not a file of this folder")
            return [self.path / name for name in names]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self.error(f"{index.name} names no files") from error


def open_model(path: str | Path, option: str, trust_remote_code: bool = False) -> ModelSource:
    """Read a model folder's configs; weights are looked at by `ModelSource.check`.

    Raises UserError for what the user can mend: no folder, no config, quantised or unsupported models.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(option, path, "no such folder")
    if not (folder / "config.json").is_file():
        raise UserError(option, path, "no config.json in this folder")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        eos_token_ids = _eos_token_ids(folder, config)
    except Exception as error:  # whatever a damaged config raises is the user's to mend
        if "trust_remote_code" in str(error):
            reason = "the model comes with its own code, which runs only with --trust-remote-code"
        else:
            version = transformers.__version__
            reason = f"its configs cannot be used (transformers {version}): {_first_line(error)}"
        raise UserError(option, path, reason) from error
    if (reason := families.refusal(config)) is not None:
        raise UserError(option, path, reason)
    return ModelSource(folder, option, config, trust_remote_code, eos_token_ids)


def _eos_token_ids(folder: Path, config: PreTrainedConfig) -> frozenset[int]:
    """All ids that end a text: those of the generation config and of the config."""
    found: list[int | list[int] | None] = [getattr(config, "eos_token_id", None)]
    if (folder / "generation_config.json").is_file():
        found.append(GenerationConfig.from_pretrained(folder).eos_token_id)
    return frozenset(i for ids in found if ids is not None for i in (ids if isinstance(ids, (list, tuple)) else [ids]))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
