"""From a prompt to a request that every rank can run: token ids, seed, and where it must end."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from pearl_pp.config.reading import one_line
from pearl_pp.errors import UserError
from pearl_pp.runtime.pair import ModelPair
from pearl_pp.runtime.request import Prompt, Request


def make_request(prompt: Prompt, pair: ModelPair) -> Request:
    """Tokenises a prompt and sets its limits.

    Raises:
        UserError: the prompt cannot be run; it names the reason.
    """
    prompt.check()
    ids = _token_ids(prompt, pair)
    if prompt.params.stop and pair.vocabulary.tokenizer is None:
        reason = f"{pair.target.path} has no tokenizer, so there is no text to look for stop strings in"
        raise UserError("--stop", list(prompt.params.stop), reason)
    if not ids:
        raise UserError("prompt", repr(prompt.text or ""), "is empty, and the tokenizer adds no token to start with")
    if bad := next((i for i in ids if not 0 <= i < pair.target.vocab_size), None):
        raise UserError("prompt", bad, f"is no token id of the target ({pair.target.vocab_size} ids)")
    if len(ids) >= pair.max_len:
        raise UserError("prompt", f"of {len(ids)} tokens", f"leaves no room in a context of {pair.max_len}")
    params = prompt.params
    seed = pair.draw_seed() if params.seed is None else params.seed
    total_len = min(len(ids) + params.max_new_tokens, pair.max_len)
    # The draft feeds position i to guess i + 1, so its own context ends one position earlier.
    draft_end = pair.draft.max_positions + 1 if pair.draft else 0
    return Request(ids, params, seed, total_len, min(draft_end, total_len))


def prompt_text(prompt: Prompt) -> str:
    """What the record shows as the prompt."""
    if prompt.text is not None:
        return prompt.text
    if prompt.messages and isinstance(prompt.messages[-1], Mapping):
        return str(prompt.messages[-1].get("content", ""))
    return ""


def _token_ids(prompt: Prompt, pair: ModelPair) -> tuple[int, ...]:
    if prompt.token_ids is not None:
        return tuple(operator.index(i) for i in prompt.token_ids)
    tokenizer = pair.vocabulary.tokenizer
    if tokenizer is None:
        raise UserError("--target", pair.target.path, "has no tokenizer: prompts must be token ids")
    messages = prompt.messages
    if messages is None and prompt.chat:
        messages = ({"role": "user", "content": prompt.text},)
    if messages is None:
        return tuple(tokenizer(prompt.text)["input_ids"])
    if not getattr(tokenizer, "chat_template", None):
        raise UserError("--chat", None, f"the tokenizer of {pair.target.path} has no chat template; leave --chat out")
    # The template writes its own special tokens; the tokenizer must not add a second BOS.
    return tuple(tokenizer(_render(tokenizer, messages), add_special_tokens=False)["input_ids"])


def _render(tokenizer: Any, messages: Sequence[Mapping]) -> str:
    """The conversation in the tokenizer's chat template, up to where the answer starts."""
    try:
        return tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    except Exception as error:  # a template is a program, and refuses a conversation by raising what it likes
        reason = str(error).strip() or type(error).__name__
        raise UserError("messages", None, f"the tokenizer's chat template refuses them: {one_line(reason)}") from error
