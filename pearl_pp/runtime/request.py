"""What goes into the engine and what comes out of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from pearl_pp.decoding.sampling_params import SamplingParams


@dataclass(frozen=True)
class Prompt:
    """One prompt as the user gave it: exactly one of `text`, `messages`, `token_ids`, or an `error` instead.

    Args:
        text: raw text.
        messages: chat messages, rendered with the tokenizer's chat template.
        token_ids: ready ids.
        params: sampling options of this prompt.
        chat: render `text` as one user message.
        error: the prompt could not be read; it is reported with this reason and not run.
    """

    text: str | None = None
    messages: tuple[dict, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    params: SamplingParams = field(default_factory=SamplingParams)
    chat: bool = False
    error: str | None = None


@dataclass(frozen=True)
class Request:
    """A prompt that every rank has agreed to run.

    Args:
        token_ids: the prompt, at least one id.
        params: sampling options, `seed` always set.
        total_len: prompt plus the most tokens that may be generated.
        draft_end: no position at or beyond it is drafted.
        report_at: see `Schedule.report_at`.
    """

    token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    total_len: int
    draft_end: int
    report_at: tuple[int, ...] = ()

    def to_bytes(self) -> bytes:
        fields = asdict(self) | {"params": self.params.model_dump(mode="json")}
        return json.dumps(fields).encode()

    @staticmethod
    def from_bytes(payload: bytes) -> Request:
        fields = json.loads(payload)
        return Request(
            tuple(fields["token_ids"]),
            SamplingParams(**fields["params"]),
            fields["seed"],
            fields["total_len"],
            fields["draft_end"],
            tuple(fields["report_at"]),
        )


@dataclass
class RequestOutput:
    """A finished request; `error` is set, and the rest empty, where it could not be run.

    Args:
        finish_reason: "stop" or "length".
        metrics: the names of DESIGN section 9; a rate that does not exist is None.
        logprobs: log-probability of each returned token under the target, where asked for.
    """

    prompt: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: str | None
    error: str | None = None
    metrics: dict = field(default_factory=dict)
    logprobs: list[float] | None = None
