"""transformers' own pipeline: `generate` of a model whose layers it has spread over the ranks of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pearl_pp.config import run_config
from pearl_pp.errors import UserError
from pearl_pp.experiments.commands import prompt_of, run_options
from pearl_pp.experiments.transformers_text import (
    described,
    generate,
    open_models,
    require_accelerate,
    whole_model,
    with_plain_defaults,
)
from pearl_pp.transport.base import Transport


class TransformersRanks:
    """Models that lie on all ranks, loaded once each. CPU ranks over gloo; on cards see `transformers_rows`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._models: dict[tuple, Any] = {}

    def run(self, options: Mapping[str, Any], prompt: Mapping[str, Any]) -> dict[str, Any]:
        """Collective: one prompt, the same on every rank.

        Raises:
            UserError: a model or a prompt that does not fit; the same on every rank.
        """
        require_accelerate()
        num_ranks = self._transport.world_size
        if num_ranks == 1:
            raise UserError("hf pipeline", None, "needs two ranks")
        config = run_config(run_options(options))
        pair = open_models(config, self._transport.device, drafts=False)
        name = (pair.target.path, pair.target.fingerprint, pair.dtype)
        if name not in self._models:
            self._models[name] = self._load(pair.target, pair.dtype)
        asked = prompt_of(dict(prompt))
        if asked.params.seed is None:  # every rank draws for itself, so all must draw alike
            asked = replace(asked, params=asked.params.model_copy(update={"seed": 0}))
        answer = generate(self._models[name], pair, asked, self._transport.device)
        note = f"transformers' own pipeline (DistributedConfig) on {num_ranks} ranks"
        return described(answer, config, str(self._transport.device), [note])

    def _load(self, source: Any, dtype: Any) -> Any:
        from transformers.distributed import DistributedConfig

        spread = DistributedConfig(pp_size=self._transport.world_size)
        return with_plain_defaults(whole_model(source, dtype, self._transport.device, distributed_config=spread))
