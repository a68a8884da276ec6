"""Text by transformers' own `generate`, timed: what the runs of this project stand beside."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteria, StoppingCriteriaList, set_seed
from transformers.generation.streamers import BaseStreamer

from pearl_pp.config import RunConfig, run_config
from pearl_pp.decoding.detokenizer import Detokenizer
from pearl_pp.decoding.stopping import StopChecker, StopReason, finish_reason
from pearl_pp.errors import UserError
from pearl_pp.experiments.commands import machine_record
from pearl_pp.runtime.intake import make_request
from pearl_pp.runtime.loading import open_pair
from pearl_pp.runtime.machine import num_cores, package_versions
from pearl_pp.runtime.pair import ModelPair
from pearl_pp.runtime.request import Prompt, Request
from pearl_pp.stages import checkpoint
from pearl_pp.stages.source import ModelSource
from pearl_pp.stages.synthetic import SyntheticSource

MODEL_OPTIONS = ("target", "draft", "trust_remote_code", "dtype", "device", "max_model_len")
"""What transformers is told of a run: the models and where they are; the text's options come with each prompt."""


def open_models(config: RunConfig, device: torch.device, drafts: bool) -> ModelPair:
    """The models of a run as one process has them, the draft only where it `drafts`.

    Raises:
        UserError: a folder that does not fit, or no models at all.
    """
    if config.emulate is not None:
        raise UserError("--emulate", config.emulate, "has no models that transformers could run")
    options: dict[str, Any] = {name: getattr(config, name) for name in MODEL_OPTIONS}
    return open_pair(run_config(options | {"strategy": "sd" if drafts else "ar"}), 1, device)


def whole_model(source: ModelSource, dtype: torch.dtype, device: torch.device, **options: Any) -> Any:
    """The unsplit model: as transformers reads it from a folder; the weights of a synthetic one are generated.

    options: of `from_pretrained`. With a `device_map` or a `distributed_config` these say where the model goes.
    """
    if not isinstance(source, SyntheticSource):
        model: Any = AutoModelForCausalLM.from_pretrained(
            source.path, dtype=dtype, trust_remote_code=source.trust_remote_code, **options
        )
        return (model if options else model.to(device)).eval()
    if options:
        raise source.error("is made of generated weights: transformers' pipeline reads a folder")
    model = source.new_model(dtype)
    checkpoint.load(model, source.tensors, device, None)
    return model.eval()


def require_accelerate() -> None:
    """Raises UserError where the package that transformers' pipelines need is missing."""
    if importlib.util.find_spec("accelerate") is None:
        raise UserError("hf pipeline", None, "transformers' pipeline needs the package accelerate: pip install it")


def described(answer: Mapping[str, Any], config: RunConfig, device: str, notes: Sequence[str]) -> dict[str, Any]:
    """An answer of `generate` with what an engine's answer says beside it."""
    return {
        **answer,
        "plan": None,
        "versions": package_versions(),
        "machine": machine_record(device, num_cores()),
        "mode": config.mode,
        "gamma": None,
        "notes": list(notes),
        "trace": None,
    }


def with_plain_defaults(model: Any) -> Any:
    """The model without sampling options of its own: those of the request alone count, as they do for the engine."""
    model.generation_config = GenerationConfig()
    return model


@torch.inference_mode()
def generate(model: Any, pair: ModelPair, prompt: Prompt, device: torch.device, assistant: Any = None) -> dict:
    """One prompt, ended by the same rules as the engine's.

    Args:
        device: of the ids.
        assistant: the draft model, for assisted generation.

    Returns `prompt_token_ids`, `token_ids`, `text`, `finish_reason` and `metrics`. In these the first "token" of
    assisted generation is all of its first round, and on a GPU transformers hands over every token one step late.

    Raises:
        UserError: the prompt cannot be run.
    """
    request = make_request(prompt, pair)
    answer = _Answer(request, pair)
    if request.total_len > len(request.token_ids):
        ids = torch.tensor([request.token_ids], device=device)
        set_seed(request.seed % 2**32)
        answer.start_s = time.perf_counter()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=_generation_config(request, pair),
            stopping_criteria=StoppingCriteriaList([_Ended(answer)]),
            streamer=answer,
            **({} if assistant is None else {"assistant_model": assistant}),
        )
    return answer.record()


def _generation_config(request: Request, pair: ModelPair) -> GenerationConfig:
    params = request.params
    options: dict[str, Any] = {
        "max_new_tokens": request.total_len - len(request.token_ids),
        "min_new_tokens": params.min_new_tokens or None,
        "repetition_penalty": params.repetition_penalty,
        "eos_token_id": None if params.ignore_eos else sorted(pair.target.eos_token_ids) or None,
        "pad_token_id": 0,
        "do_sample": not params.greedy,
    }
    if not params.greedy:
        options |= {"temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p}
        options |= {"min_p": params.min_p or None}
    return GenerationConfig(**options)


class _Answer(BaseStreamer):
    """Takes tokens as transformers has verified them, and says where the text ends."""

    def __init__(self, request: Request, pair: ModelPair) -> None:
        self._request = request
        tokenizer = pair.vocabulary.tokenizer
        detokenizer = None if tokenizer is None else Detokenizer(tokenizer)
        eos = pair.target.eos_token_ids
        self._checker = StopChecker(request.params, eos, request.total_len, request.token_ids, detokenizer)
        self._has_prompt = False
        self._num_first = 0
        self._token_ids: list[int] = []
        self._times: list[float] = []
        self.start_s = 0.0

    @property
    def has_ended(self) -> bool:
        return self._checker.reason is not StopReason.NONE

    def put(self, value: torch.Tensor) -> None:
        """Called with the prompt first, then with the new ids of each pass, on the CPU."""
        if not self._has_prompt:
            self._has_prompt = True
            return
        if self.has_ended:
            return
        self._times.append(time.perf_counter())
        ids = value.flatten().tolist()
        num_kept, _ = self._checker.feed(ids)
        self._token_ids += ids[:num_kept]
        self._num_first = self._num_first or num_kept

    def end(self) -> None: ...

    def record(self) -> dict[str, Any]:
        """What `generate` returns."""
        num_decoded = len(self._token_ids) - self._num_first
        decode_s = self._times[-1] - self._times[0] if self._times else 0.0
        metrics = {
            "num_output_tokens": len(self._token_ids),
            "ttft_s": self._times[0] - self.start_s if self._times else None,
            "num_decode_tokens": num_decoded,
            "decode_s": decode_s,
            "decode_tokens_per_s": num_decoded / decode_s if decode_s else None,
        }
        return {
            "prompt_token_ids": list(self._request.token_ids),
            "token_ids": self._token_ids,
            "text": self._checker.text(),
            "finish_reason": finish_reason(self._checker.reason),
            "metrics": metrics,
        }


class _Ended(StoppingCriteria):
    """Ends the loop where the answer has ended, which only verified tokens decide."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> Any:
        return torch.full((input_ids.shape[0],), self._answer.has_ended, device=input_ids.device)
