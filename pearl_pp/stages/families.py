"""What differs between decoder families: which can be cut, and where their layers and ends are.

Nothing here names a family that works: the parts are found in the module tree.
"""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

ATTENTION_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}
# Rope variants whose frequencies follow the length of a pass once it exceeds the model's original length.
LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}
# Attributes of a decoder by which it scales what comes from the embedding, and their neutral values.
ENTRY_FACTORS = {"embedding_multiplier": 1.0}


def refusal(config: PreTrainedConfig) -> str | None:
    """Why a model with this config cannot be cut into stages or rolled back; None if it can."""
    family = config.model_type
    if getattr(config, "quantization_config", None) is not None:
        quantization = config.quantization_config
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization.quant_method
        return f"the weights are quantised ({method or 'unknown method'}); only float weights are supported"
    if config.is_encoder_decoder:
        return f"{family} is an encoder-decoder model; only decoders are supported"
    if config.get_text_config(decoder=True) is not config:
        return f"{family} is a multimodal model; only text models are supported"
    foreign = set(getattr(config, "layer_types", None) or ()) - ATTENTION_LAYER_TYPES
    if foreign:
        return f"{family} has layers of type {', '.join(sorted(foreign))}, whose state cannot be rolled back"
    if getattr(config, "use_bidirectional_attention", None) is True or getattr(config, "is_causal", True) is False:
        return f"{family} attends to later tokens here; only causal decoders are supported"
    if getattr(config, "num_kv_shared_layers", 0):
        return f"{family} shares KV entries between layers, so its layers cannot be cut apart"
    return None


def max_positions(config: PreTrainedConfig) -> int:
    """Positions up to which a pass gives the same numbers however the text is cut into passes."""
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 2048
    for rope in _length_dependent_ropes(config):
        original = rope.get("original_max_position_embeddings")
        limit = min(limit, original or getattr(config, "original_max_position_embeddings", None) or limit)
    return limit


def length_dependent_rope(config: PreTrainedConfig) -> str | None:
    """The rope type that ends the context at the model's original length, if there is one."""
    return next((rope["rope_type"] for rope in _length_dependent_ropes(config)), None)


def _length_dependent_ropes(config: PreTrainedConfig) -> Iterator[dict[str, Any]]:
    ropes = getattr(config, "rope_parameters", None) or {}
    for rope in (ropes, *ropes.values()):  # one, or one for each type of layer
        if isinstance(rope, dict) and rope.get("rope_type") in LENGTH_DEPENDENT_ROPE:
            yield rope


@dataclass(frozen=True)
class Decoder:
    """The module of a causal language model that owns the list of decoder layers.

    `entry` are its embeddings and norms before the list, `exit` those after it (the final norm).
    """

    name: str
    layers: str
    entry: tuple[str, ...]
    exit: tuple[str, ...]

    def module(self, model: PreTrainedModel) -> PreTrainedModel:
        return model.get_submodule(self.name)  # pyright: ignore[reportReturnType]


def find_decoder(model: PreTrainedModel, num_layers: int) -> Decoder:
    """Find the decoder by the outermost list of `num_layers` modules. Raises ValueError if there is none."""
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            name, _, layers = path.rpartition(".")
            children = [n for n, child in model.get_submodule(name).named_children() if n == layers or _is_end(child)]
            place = children.index(layers)
            return Decoder(name, layers, tuple(children[:place]), tuple(children[place + 1 :]))
    raise ValueError(f"{type(model).__name__} has no list of {num_layers} layers")


def cut_layers(model: PreTrainedModel, decoder: Decoder, start: int, end: int) -> None:
    """Keep the layers [start, end). They stay as the whole model built them, with their own layer numbers."""
    module = decoder.module(model)
    module.config = cut_config(model.config, start, end)
    setattr(module, decoder.layers, getattr(module, decoder.layers)[start:end])


def drop_ends(model: PreTrainedModel, decoder: Decoder, *, is_first: bool, is_last: bool, keep_tied: bool) -> None:
    """Take the ends that other stages have out of a model.

    `keep_tied` spares an embedding and head that are one tensor where the stage needs either: which of the
    two the checkpoint holds is known once it is loaded.
    """
    module = decoder.module(model)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    spared = keep_tied and bool(model.all_tied_weights_keys) and (is_first or is_last)
    if not is_first:
        for name in decoder.entry:
            if getattr(module, name) is not embedding:
                setattr(module, name, _Zero())
        for name, value in ENTRY_FACTORS.items():
            if hasattr(module, name):
                setattr(module, name, value)
    if not is_last:
        for name in decoder.exit:
            setattr(module, name, nn.Identity())
    if not spared:
        if not is_first:
            _replace(model, embedding, nn.Identity())
        if not is_last:
            _replace(model, head, nn.Identity())
        if not (is_first and is_last):
            model.all_tied_weights_keys = {}


def cannot_be_cut(model: PreTrainedModel, decoder: Decoder) -> str | None:
    """Why stages behind the first would go wrong in this family; None if they take hidden states as they are.

    `model`, float32 on the meta device, is used up: without layers and ends it must be the identity.
    """
    module = decoder.module(model.eval())
    embedding = model.get_input_embeddings()
    entry = {name: getattr(module, name) for name in decoder.entry}
    if odd := [name for name, child in entry.items() if child is not embedding and not isinstance(child, nn.Embedding)]:
        return f"{odd[0]} stands before the first layer"
    cut_layers(model, decoder, 0, 0)
    drop_ends(model, decoder, is_first=False, is_last=False, keep_tied=False)
    model.to_empty(device="cpu")  # only buffers are left, and nothing reads them
    hidden = torch.randn(1, 2, model.config.hidden_size)
    try:
        with torch.inference_mode():
            output = module(inputs_embeds=hidden, position_ids=torch.tensor([[3, 4]])).last_hidden_state
    except Exception as error:  # whatever a forward raises that wants its layers, or other inputs
        return f"its forward does not run without layers ({type(error).__name__})"
    return None if torch.equal(output, hidden) else "its forward changes hidden states before the first layer"


class _Zero(nn.Module):
    """In place of position embeddings, which the first stage has added."""

    def forward(self, position_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.zeros((), device=position_ids.device)


def _replace(model: nn.Module, old: nn.Module | None, new: nn.Module) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if child is old:
                setattr(module, name, new)


def cut_config(config: PreTrainedConfig, start: int, end: int) -> PreTrainedConfig:
    """A copy that speaks of the layers [start, end) only, in every list with one entry per layer."""
    num_layers = config.num_hidden_layers
    cut = copy.deepcopy(config)
    for name, value in vars(config).items():
        if isinstance(value, (list, tuple)) and len(value) == num_layers:
            setattr(cut, name, value[start:end])
    cut.num_hidden_layers = end - start
    return cut


_LAYER_NUMBER = re.compile(r"(?:^|(?<=\.))\d+(?=\.)")


def layer_number(tensor_name: str) -> int | None:
    """The layer a tensor of a checkpoint belongs to: the first number in its name (experts come after it)."""
    match = _LAYER_NUMBER.search(tensor_name)
    return int(match[0]) if match else None


def renumbered(tensor_name: str, start: int) -> str:
    """The name that a layer's tensor has in a stage that begins with layer `start`."""
    return _LAYER_NUMBER.sub(lambda match: str(int(match[0]) - start), tensor_name, count=1)


def _is_end(module: nn.Module) -> bool:
    """Embeddings and norms, also norms without weights; not rotary tables and dropout."""
    return next(module.parameters(), None) is not None or "Norm" in type(module).__name__
