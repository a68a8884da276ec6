"""What goes into the engine and what comes out of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from pearl_pp.config.reading import one_line
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError


@dataclass(frozen=True)
class Prompt:
    """One prompt as the user gave it: exactly one of `text`, `messages`, `token_ids`, or an `error` instead.

    A prompt that cannot be used is an error of its own request, not of the run: `check` says what is wrong.

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

    def check(self) -> None:
        """Raises UserError, in one line, for a prompt that nobody could run."""
        if self.error is not None:
            raise UserError("prompt", None, self.error)
        contents = {"text": self.text, "messages": self.messages, "token_ids": self.token_ids}
        given = [name for name, content in contents.items() if content is not None]
        if len(given) != 1:
            has = " and ".join(given) if given else "nothing"
            raise UserError("prompt", None, f"has {has}; give one of {', '.join(contents)}")
        if self.chat and self.token_ids is not None:
            raise UserError("--chat", None, "token ids are no message to put into a chat template")
        if self.text is not None:
            _check_text("prompt", self.text)
        if self.messages is not None:
            _check_messages(self.messages)


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise UserError(name, one_line(text), "must be text")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UserError(name, None, "is not Unicode text (half a surrogate pair)")


def _check_messages(messages: object) -> None:
    if not isinstance(messages, (list, tuple)) or not messages:
        shown = list(messages) if isinstance(messages, tuple) else messages
        raise UserError("messages", one_line(shown), "must be a list of objects")
    for message in messages:
        is_known = isinstance(message, Mapping) and isinstance(message.get("role"), str) and "content" in message
        if not is_known:
            raise UserError("messages", None, f'{one_line(message)} needs "role" and "content"')
    for text in _texts_in(messages):
        _check_text("messages", text)


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(part)


def as_prompts(prompts: Sequence[str | Prompt], params: SamplingParams | Sequence[SamplingParams]) -> list[Prompt]:
    """Strings become prompts with `params`; prompts keep their own."""
    if isinstance(prompts, str):
        raise UserError("prompts", repr(prompts[:20]), "must be a list of prompts, not one text")
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    if len(each) != len(prompts):
        raise UserError("params", len(each), f"must be one for all or one for each of {len(prompts)} prompts")
    return [p if isinstance(p, Prompt) else Prompt(text=p, params=q) for p, q in zip(prompts, each, strict=True)]


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
    """A finished request; `error` is set where it could not be run or broke off, and there are no metrics then.

    Args:
        finish_reason: "stop" or "length".
        metrics: the names of DESIGN section 9; a rate that does not exist is None.
        logprobs: log-probability of each returned token under the target, where asked for.
        notes: changes of the schedule on the way, one line each.
    """

    prompt: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: str | None
    error: str | None = None
    metrics: dict = field(default_factory=dict)
    logprobs: list[float] | None = None
    notes: list[str] = field(default_factory=list)
