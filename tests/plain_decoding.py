"""One token after another in one process: the texts that every strategy and placement must give, sampled ones too.

Scores come from transformers' own processors; the draws are those that `pearl_pp.decoding.noise` has for a position.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pearl_pp.decoding.noise import Purpose, gumbel, uniform
from pearl_pp.decoding.sampling_params import SamplingParams
from tests.pairs import reference


def processors(params: SamplingParams, prompt_len: int, eos: Collection[int]) -> LogitsProcessorList:
    """What `generate` puts between logits and draw, in its order."""
    found = LogitsProcessorList()
    if params.repetition_penalty != 1.0:
        found.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.min_new_tokens and eos:
        found.append(MinNewTokensLengthLogitsProcessor(prompt_len, params.min_new_tokens, sorted(eos)))
    if not params.greedy:
        found.append(TemperatureLogitsWarper(params.temperature))
        if params.top_k:
            found.append(TopKLogitsWarper(params.top_k))
        if params.top_p < 1.0:
            found.append(TopPLogitsWarper(params.top_p))
        if params.min_p > 0.0:
            found.append(MinPLogitsWarper(params.min_p))
    return found


@dataclass(frozen=True)
class PlainDecoder:
    """The target and the draft as whole models, and a text made position by position.

    Args:
        eos: ids that end a text.
        decode: ids to text, for stop strings.
    """

    target: Path
    draft: Path
    eos: frozenset[int] = frozenset()
    decode: Callable[[Sequence[int]], str] | None = None

    def text(
        self, prompt: Sequence[int], params: SamplingParams, verify: str, bonus: Collection[int] = ()
    ) -> list[int]:
        """The ids after `prompt`.

        Args:
            bonus: positions that were drawn from the target although there was no drafted token (`rejection`
                draws them with other noise; nothing else depends on it).
        """
        eos = frozenset() if params.ignore_eos else self.eos
        process = processors(params, len(prompt), eos)
        ids = list(prompt)

        def scores(folder: Path) -> Tensor:
            with torch.inference_mode():
                logits = reference(folder)(torch.tensor([ids])).logits[:, -1]
            return process(torch.tensor([ids]), logits.clone())[0]

        while len(ids) - len(prompt) < params.max_new_tokens:
            position, target = len(ids), scores(self.target)
            if params.greedy:
                ids.append(int(target.argmax()))
            elif verify == "coupled":
                noise = torch.tensor(gumbel(params.seed or 0, position, len(target)))
                ids.append(int((target.double() + noise).argmax()))
            elif position in bonus:
                ids.append(_draw(target.softmax(-1), params.seed or 0, position, Purpose.TARGET))
            else:
                ids.append(_judged(target.softmax(-1), scores(self.draft).softmax(-1), params.seed or 0, position))
            if ids[-1] in eos or self._is_stopped(ids[len(prompt) :], params):
                break
        return ids[len(prompt) :]

    def logprobs(self, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
        """Of each id under the target, before any processing."""
        with torch.inference_mode():
            rows = reference(self.target)(torch.tensor([[*prompt, *ids]])).logits[0].log_softmax(-1)
        return [rows[len(prompt) + i - 1, token].item() for i, token in enumerate(ids)]

    def _is_stopped(self, ids: list[int], params: SamplingParams) -> bool:
        if not params.stop or len(ids) < params.min_new_tokens:
            return False
        assert self.decode is not None
        before, now = self.decode(ids[:-1]), self.decode(ids)
        return any(now.find(stop, max(0, len(before) - len(stop) + 1)) >= 0 for stop in params.stop)


def _judged(p: Tensor, q: Tensor, seed: int, position: int) -> int:
    """One step of speculative sampling: a token drawn from q, kept or replaced (Leviathan et al. 2023)."""
    token = _draw(q, seed, position, Purpose.DRAFT)
    if uniform(seed, position, Purpose.ACCEPT) < float(p[token]) / float(q[token]):
        return token
    residual = (p - q).clamp(min=0)
    return _draw(residual if residual.sum() > 0 else p, seed, position, Purpose.RESIDUAL)


def _draw(weights: Tensor, seed: int, position: int, purpose: Purpose) -> int:
    cdf = np.cumsum(weights.double().numpy())
    return int(np.searchsorted(cdf, uniform(seed, position, purpose) * cdf[-1], side="right"))


def word_decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
