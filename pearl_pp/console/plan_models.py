"""The models that `pearl-pp plan` is given: folders of which a config.json is enough, or synthetic shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pearl_pp.config import find_shape, read_shape
from pearl_pp.config.plan_options import PlanOptions
from pearl_pp.config.shape_file import PREFIX
from pearl_pp.errors import UserError
from pearl_pp.planning.machine import ModelSizes, model_sizes
from pearl_pp.stages.source import ModelSource, open_model
from pearl_pp.stages.synthetic import open_synthetic


def open_models(options: PlanOptions) -> dict[str, ModelSource]:
    """`--target` and `--draft`, those of them that are given. Raises UserError."""
    paths = {"--target": options.target, "--draft": options.draft}
    return {name: _open(path, name, options) for name, path in paths.items() if path is not None}


def _open(path: str, name: str, options: PlanOptions) -> ModelSource:
    """A folder with a config.json, that file itself, or one model of a synthetic pair."""
    if path.startswith(PREFIX):
        file = find_shape(path, name)
        return open_synthetic(read_shape(file, name), file, name, is_draft=name == "--draft")
    folder = Path(path).parent if Path(path).name == "config.json" else Path(path)
    _require_sizes(folder, path, name)
    return open_model(folder, name, options.trust_remote_code)


# A config class fills in what a file leaves out: a plan for a model of another size would be the result. In any of
# these spellings a family says how large it is.
_SIZES = {
    "the number of layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "the hidden size": ("hidden_size", "n_embd", "d_model", "dim"),
    "the vocabulary's size": ("vocab_size", "padded_vocab_size"),
    "the number of attention heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
}


def _require_sizes(folder: Path, path: str, option: str) -> None:
    file = folder / "config.json"
    if not file.is_file():
        return  # open_model says so
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UserError(option, path, f"its config.json cannot be read: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise UserError(option, path, "its config.json holds no names and values")
    text = content.get("text_config")
    keys = {**content, **(text if isinstance(text, dict) else {})}
    for what, names in _SIZES.items():
        if not any(name in keys for name in names):
            raise UserError(option, path, f"its config.json does not say {what} ({names[0]})")


def sizes_of(sources: dict[str, ModelSource], options: PlanOptions) -> dict[str, ModelSizes]:
    """Of each model, both in `--dtype` or the target's own."""
    import torch  # after what a mistake can stop

    dtype = getattr(torch, options.dtype, None)
    sizes = {}
    for name, source in sources.items():
        dtype = dtype or source.dtype
        sizes[name] = model_sizes(source, dtype)
    return sizes
