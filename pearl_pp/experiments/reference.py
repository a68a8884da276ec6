"""What transformers alone does on this machine: its passes beside ours, and the oracle's text. One process.

python -m pearl_pp.experiments.reference OPTIONS.json-text NUM_RANKS
"""

from __future__ import annotations

import inspect
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from pearl_pp.config import RunConfig, run_config
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError
from pearl_pp.experiments.commands import CONTEXT
from pearl_pp.experiments.lines import Told
from pearl_pp.experiments.transformers_text import whole_model
from pearl_pp.runtime.loading import open_pair
from pearl_pp.stages.rank_module import AnyStage
from pearl_pp.stages.source import ModelSource
from pearl_pp.transport.torch_distributed import pick_device


class Whole:
    """transformers' own model, unsplit, with its own cache."""

    def __init__(self, source: ModelSource, dtype: torch.dtype, device: torch.device, context: torch.Tensor) -> None:
        self.model: Any = whole_model(source, dtype, device)
        self._cache = DynamicCache()
        # The argument's name changed between transformers releases.
        has_new_name = "cache" in inspect.signature(self.model.forward).parameters
        self._arguments = {"cache" if has_new_name else "past_key_values": self._cache}
        self.model(context[None], **self._arguments)

    def run(self, ids: torch.Tensor) -> list[float]:
        """Seconds of one pass over `ids` after the context, as a list of one."""
        ids = ids[None]
        seconds = _timed(lambda: self.model(ids, **self._arguments))[0]
        self._cache.crop(-ids.shape[1])
        return [seconds]


class Cut:
    """The same model in our stages, one after another."""

    def __init__(self, stages: Sequence[AnyStage], context: torch.Tensor) -> None:
        self._stages = stages
        self._start = 0
        self.run(context)
        self._start = len(context)

    def run(self, ids: torch.Tensor) -> list[float]:
        """Seconds of each stage's pass over `ids` after the context."""
        taken, hidden = [], ids
        for stage in self._stages:
            rows = len(ids) if stage.is_last else 0
            seconds, hidden = _timed(lambda s=stage, h=hidden, n=rows: s.run(h, self._start, num_logits=n))
            taken.append(seconds)
        return taken


class Reference:
    """Both models of the pair, whole and cut as `config` places them on `num_ranks` ranks."""

    def __init__(self, config: RunConfig, num_ranks: int) -> None:
        device = pick_device(config.run_device)
        pair = open_pair(config, num_ranks, device)
        assert isinstance(pair.target, ModelSource) and isinstance(pair.draft, ModelSource)
        self._device = device
        self._eos = sorted(pair.target.eos_token_ids)
        context = torch.arange(CONTEXT, device=device) % min(pair.target.vocab_size, pair.draft.vocab_size)
        target_ranges = [pair.placement.stage_range(rank) or (0, 0) for rank in range(pair.placement.num_stages)]
        draft_ranges = [(shard.start, shard.end) for shard in pair.placement.replicas[0]]
        self._subjects: dict[str, tuple[Whole, Cut]] = {}
        models = (("target", pair.target, target_ranges), ("draft", pair.draft, draft_ranges))
        build = pair.stage_builder(0, device)
        for name, source, ranges in models:
            whole = Whole(source, pair.dtype, device, context)
            stages = [build(source, start, end, lambda *_: None) for start, end in ranges]
            self._subjects[name] = (whole, Cut(stages, context))

    def passes(self, num_tokens: Sequence[int], repeats: int) -> dict[str, Any]:
        """Seconds of single passes, all subjects in turn.

        Returns, for "target" and "draft" and each number of tokens: a list of [whole, stages], one for each repeat.
        """
        taken: dict[str, Any] = {name: {str(n): [] for n in num_tokens} for name in self._subjects}
        for _ in range(repeats):
            for number in num_tokens:
                ids = torch.full((number,), 7, device=self._device)
                for name, (whole, cut) in self._subjects.items():
                    taken[name][str(number)].append([whole.run(ids)[0], cut.run(ids)])
        return taken

    def oracle(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> list[int]:
        """transformers' greedy `generate` on the unsplit target."""
        prompt = torch.tensor([prompt_token_ids], device=self._device)
        ids = self._subjects["target"][0].model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=params.max_new_tokens,
            min_new_tokens=params.min_new_tokens or None,
            repetition_penalty=params.repetition_penalty,
            eos_token_id=None if params.ignore_eos else self._eos,
            pad_token_id=0,
        )
        return ids[0, len(prompt_token_ids) :].tolist()


def _timed(work: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def main() -> int:
    """Answers {"passes": ..} and {"oracle": ..} until the pipe closes."""
    told = Told()
    config = run_config(json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            reference = Reference(config, int(sys.argv[2]))
            told.answer({})
            while (command := told.next()) is not None:
                if "passes" in command:
                    told.answer(reference.passes(**command["passes"]))
                else:
                    asked = command["oracle"]
                    told.answer(reference.oracle(asked["prompt_token_ids"], SamplingParams(**asked["params"])))
    except UserError as error:
        told.user_error(error)
        return UserError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
