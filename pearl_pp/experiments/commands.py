"""What programs of a measurement are told, as JSON. No torch in here."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.runtime.request import Prompt

CONTEXT = 100
"""Tokens before a pass that is measured alone."""


def prompt_message(prompt: Prompt) -> dict[str, Any]:
    """A prompt as JSON holds it."""
    return asdict(replace(prompt, params=SamplingParams())) | {"params": prompt.params.model_dump(mode="json")}


def prompt_of(message: dict[str, Any]) -> Prompt:
    """The prompt of a message; the inverse of `prompt_message`."""
    fields: dict[str, Any] = message | {"params": SamplingParams(**message["params"])}
    for name in ("messages", "token_ids"):
        if fields[name] is not None:
            fields[name] = tuple(fields[name])
    return Prompt(**fields)
