"""transformers alone, kept alive: `generate`, and `generate` with the draft as its assistant. One process.

python -m pearl_pp.experiments.transformers_rows DEVICE
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pearl_pp.config import RunConfig, run_config
from pearl_pp.errors import UserError
from pearl_pp.experiments.commands import prompt_of, run_options
from pearl_pp.experiments.lines import Told, answer_all
from pearl_pp.experiments.transformers_text import (
    described,
    generate,
    open_models,
    require_accelerate,
    whole_model,
    with_plain_defaults,
)
from pearl_pp.runtime.machine import num_cores
from pearl_pp.runtime.request import Prompt
from pearl_pp.stages.source import ModelSource
from pearl_pp.transport.torch_distributed import pick_device

Answer = dict[str, Any]
Noted = tuple[Answer, str]
"""An answer, and what made it in one line."""


class TransformersRows:
    """Models of this process, loaded once each."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._models: dict[tuple, Any] = {}

    def unload(self) -> None:
        """Frees every model."""
        self._models.clear()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def run(self, kind: str, options: Mapping[str, Any], prompt: Mapping[str, Any], num_devices: int) -> Answer:
        """One prompt.

        Args:
            kind: "hf", "hf assisted" or "hf pipeline".
            num_devices: on a CPU so many threads, a device being one, but no more than it has cores; on GPUs the
                cards of "hf pipeline".

        Raises:
            UserError: a model or a prompt that does not fit.
        """
        config = run_config(run_options(options))
        try:
            answer, note = _KINDS[kind](self, config, prompt_of(dict(prompt)), num_devices)
        except torch.OutOfMemoryError:
            self.unload()
            raise UserError(kind, None, "the models do not fit the memory of the card") from None
        return described(answer, config, str(self._device), [note])

    def plain(self, config: RunConfig, prompt: Prompt, num_devices: int) -> Noted:
        pair = open_models(config, self._device, drafts=False)
        threads = self._use_threads(num_devices)
        answer = generate(self._model(pair.target, pair.dtype), pair, prompt, self._device)
        return answer, f"transformers' generate in one process, {threads}"

    def assisted(self, config: RunConfig, prompt: Prompt, num_devices: int) -> Noted:
        pair = open_models(config, self._device, drafts=True)
        threads = self._use_threads(num_devices)
        assistant = self._model(pair.draft, pair.dtype)
        answer = generate(self._model(pair.target, pair.dtype), pair, prompt, self._device, assistant)
        defaults = assistant.generation_config._get_default_generation_params()
        schedule = (
            f"num_assistant_tokens {defaults['num_assistant_tokens']}, {defaults['num_assistant_tokens_schedule']}, "
            f"until the draft's confidence falls below {defaults['assistant_confidence_threshold']:g}"
        )
        what = f"transformers' generate(assistant_model=draft) in one process, {threads}"
        return answer, f"{what}; its default: {schedule}"

    def across_cards(self, config: RunConfig, prompt: Prompt, num_devices: int) -> Noted:
        require_accelerate()
        if self._device.type != "cuda" or torch.cuda.device_count() < num_devices:
            found = torch.cuda.device_count() if self._device.type == "cuda" else "no"
            raise UserError("hf pipeline", None, f"needs {num_devices} cards, there are {found} CUDA devices")
        pair = open_models(config, self._device, drafts=False)
        cards = {number: torch.cuda.get_device_properties(number).total_memory for number in range(num_devices)}
        model = self._model(pair.target, pair.dtype, device_map="balanced", max_memory=cards)
        answer = generate(model, pair, prompt, self._device)
        return answer, f"transformers' generate with device_map=balanced on {num_devices} cards"

    def _use_threads(self, number: int) -> str:
        if self._device.type == "cuda":
            return "1 GPU"
        number = min(number, num_cores())  # more threads than cores would only be in each other's way
        torch.set_num_threads(number)
        return f"{number} thread{'s' * (number > 1)}"

    def _model(self, source: Any, dtype: torch.dtype, **options: Any) -> Any:
        assert isinstance(source, ModelSource)
        name = (source.path, source.fingerprint, source.num_layers, dtype, str(options))
        if name not in self._models:
            self._models[name] = with_plain_defaults(whole_model(source, dtype, self._device, **options))
        return self._models[name]


_KINDS: dict[str, Callable[[TransformersRows, RunConfig, Prompt, int], Noted]] = {
    "hf": TransformersRows.plain,
    "hf assisted": TransformersRows.assisted,
    "hf pipeline": TransformersRows.across_cards,
}


def main() -> int:
    """Answers {"run": ..}, {"unload": {}} and {"device": {}} until the pipe closes."""
    told = Told()
    try:
        device = pick_device(sys.argv[1])
    except UserError as error:
        told.user_error(error)
        return UserError.exit_code
    rows = TransformersRows(device)
    commands = {"device": lambda: {"device": device.type, "has_cuda": torch.cuda.is_available()}}
    answer_all(told, commands | {"run": rows.run, "unload": rows.unload})
    return 0


if __name__ == "__main__":
    sys.exit(main())
