"""Token ids to text, piece by piece, for text that is shown while it is made."""

from collections.abc import Sequence
from typing import Protocol

UNREADABLE = "\ufffd"
# A UTF-8 character has at most four bytes: only the last three replacement characters may still become one.
_MAX_PENDING = 3
# Tokens decoded again as context: some decoders treat the first token of a text in a way of its own.
_CONTEXT = 4
_MAX_WINDOW = 16
_LONGEST_WINDOW = 4 * _MAX_WINDOW


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that decoding needs."""

    @property
    def all_special_ids(self) -> list[int]: ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str: ...


class Detokenizer:
    """Incremental decoding of one request's output, special tokens left out.

    What push() and flush() return, joined, is the tokenizer's decoding of all ids at once, however they are
    portioned. One exception: tokenizers with byte tokens decode a whole run of them as unreadable if its end
    is; characters in it that were complete by then have been returned and stay.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._special = set(tokenizer.all_special_ids)
        self._special.update(token for token, entry in added.items() if entry.special)
        self._window: list[int] = []  # the last ids: some context, and all whose text is not returned yet
        self._returned = ""  # the part of the window's text that was returned

    def push(self, token_ids: Sequence[int]) -> str:
        """Add ids; returns the text that became readable: whole characters only."""
        return "".join(self._push(token) for token in token_ids if token not in self._special)

    def flush(self) -> str:
        """The rest, at the end of the text: unfinished characters as replacement characters."""
        text = self._decode()
        piece = _gained(self._returned, text)
        self._returned = text
        return piece

    def _push(self, token: int) -> str:
        self._window.append(token)
        text = self._decode()
        readable = text[:-_MAX_PENDING] + text[-_MAX_PENDING:].rstrip(UNREADABLE)
        if readable != text and not readable.startswith(self._returned):
            return ""
        piece = _gained(self._returned, readable)
        self._returned = readable
        if readable == text and len(self._window) >= _MAX_WINDOW:
            self._shorten()
        return piece

    def _shorten(self) -> None:
        """Keeps a context that begins where a character does: byte tokens are unreadable, all of a run, behind a part
        of one. Where unreadable characters are the text itself, they need not keep the window long for ever.
        """
        for length in range(_CONTEXT, _CONTEXT + _MAX_PENDING + 1):
            text = self._decode(self._window[-length:])
            if UNREADABLE not in text or (length == _CONTEXT and len(self._window) >= _LONGEST_WINDOW):
                self._window = self._window[-length:]
                self._returned = text
                return

    def _decode(self, token_ids: list[int] | None = None) -> str:
        ids = self._window if token_ids is None else token_ids
        return self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _gained(before: str, now: str) -> str:
    """What `now` has beyond the beginning that it shares with `before`."""
    if now.startswith(before):
        return now[len(before) :]
    pairs = enumerate(zip(before, now, strict=False))
    return now[next((index for index, (old, new) in pairs if old != new), len(now)) :]
