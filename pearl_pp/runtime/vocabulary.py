"""One vocabulary for two models: their tokenizers must agree on every id that can be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import AutoTokenizer

from pearl_pp.errors import UserError
from pearl_pp.runtime.byte_tokenizer import ByteTokenizer
from pearl_pp.stages.source import ModelSource
from pearl_pp.stages.synthetic import SyntheticSource

_MAX_SHOWN = 3


@dataclass(frozen=True)
class Vocabulary:
    """The target's tokenizer and the number of ids that may be drawn.

    Args:
        tokenizer: None for a model folder without one: prompts must then be token ids.
        size: real ids; rows of the head beyond them are padding and never drawn.
        num_unshared: tokens that only one of the two tokenizers has.
    """

    tokenizer: Any | None
    size: int
    num_unshared: int = 0


def load_vocabulary(target: ModelSource, draft: ModelSource | None) -> Vocabulary:
    """Reads the target's tokenizer and compares it with the draft's, before any weights are loaded.

    Raises:
        UserError: the tokenizers give the same id to different tokens.
    """
    tokenizer = load_tokenizer(target)
    size = target.vocab_size if tokenizer is None else min(len(tokenizer), target.vocab_size)
    num_unshared = 0
    if draft is not None:
        draft_tokenizer = load_tokenizer(draft)
        if tokenizer is not None and draft_tokenizer is not None:
            num_unshared = _compare(tokenizer, draft_tokenizer, draft)
        elif draft.vocab_size != target.vocab_size:
            sizes = f"{draft.vocab_size} and {target.vocab_size}"
            raise UserError(draft.option, draft.path, f"no tokenizers to compare, and the vocabularies differ: {sizes}")
    return Vocabulary(tokenizer, size, num_unshared)


def load_tokenizer(source: ModelSource) -> Any | None:
    """The tokenizer of a model folder, None where it has none. Raises UserError where it cannot be read."""
    if isinstance(source, SyntheticSource):
        return ByteTokenizer(source.vocab_size)
    names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
    if not any((source.path / name).is_file() for name in names):
        return None
    try:
        return AutoTokenizer.from_pretrained(source.path, trust_remote_code=source.trust_remote_code)
    except Exception as error:  # whatever a broken tokenizer file raises is the user's to mend
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(source.option, source.path, f"its tokenizer cannot be read: {reason}") from error


def _compare(target: Any, draft: Any, source: ModelSource) -> int:
    """The number of tokens that only one of them has; raises UserError where an id means two tokens."""
    tokens, draft_tokens = (
        {token_id: token for token, token_id in tokenizer.get_vocab().items()} for tokenizer in (target, draft)
    )
    shared = tokens.keys() & draft_tokens.keys()
    different = sorted(token_id for token_id in shared if tokens[token_id] != draft_tokens[token_id])
    if different:
        shown = ", ".join(f"{i} ({tokens[i]!r} / {draft_tokens[i]!r})" for i in different[:_MAX_SHOWN])
        reason = f"its tokenizer ({len(draft_tokens)} tokens) is not the target's ({len(tokens)}): ids {shown} differ"
        raise UserError(source.option, source.path, reason)
    return len(tokens.keys() ^ draft_tokens.keys())
