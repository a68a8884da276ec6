"""Where a text ends: end-of-sequence tokens, stop strings and the length limit, in verified tokens only."""

from collections.abc import Sequence
from enum import IntEnum

from pearl_pp.decoding.detokenizer import Detokenizer
from pearl_pp.decoding.sampling_params import SamplingParams


class StopReason(IntEnum):
    """Why a request ended; NONE while it goes on."""

    NONE = 0
    EOS = 1
    STOP_STRING = 2
    LENGTH = 3
    NO_DISTRIBUTION = 4  # the target's logits for the next position cannot be used: the request has failed


_FINISH_REASONS = {StopReason.EOS: "stop", StopReason.STOP_STRING: "stop", StopReason.LENGTH: "length"}


def finish_reason(reason: StopReason) -> str:
    """The word users read: "length" at the length limit, else "stop". Raises ValueError where there is no answer."""
    if reason not in _FINISH_REASONS:
        raise ValueError("the request has not ended" if reason is StopReason.NONE else "the request has failed")
    return _FINISH_REASONS[reason]


class StopChecker:
    """Takes the verified tokens of one request, in any portions, and says where the text ends.

    eos_token_ids: all of the target's. max_total_len: most ids in all, prompt included (params.max_new_tokens
    counts as well). detokenizer: needed for stop strings and for text(); without it text() is "".
    """

    def __init__(
        self,
        params: SamplingParams,
        eos_token_ids: frozenset[int],
        max_total_len: int,
        prompt_token_ids: Sequence[int],
        detokenizer: Detokenizer | None,
    ) -> None:
        if params.stop and detokenizer is None:
            raise ValueError("stop strings need a detokenizer")
        self._params = params
        self._eos_token_ids = frozenset() if params.ignore_eos else eos_token_ids
        self._max_new = max(0, min(max_total_len - len(prompt_token_ids), params.max_new_tokens))
        self._detokenizer = detokenizer
        self._num_tokens = 0
        self._text = ""
        self._num_shown = 0
        self.reason = StopReason.LENGTH if self._max_new == 0 else StopReason.NONE

    def feed(self, new_ids: Sequence[int], ended_by: int = StopReason.NONE) -> tuple[int, StopReason]:
        """Take the next verified ids; returns how many of them belong to the answer, and why it ended if so.

        The token that ends the text is kept: an end-of-sequence token, the one that completes a stop string.
        After the end nothing is kept. ended_by: why the text ends after `new_ids`, where they do not show it.
        """
        for num_kept, token in enumerate(new_ids):
            if self.reason is not StopReason.NONE:
                return num_kept, self.reason
            self._take(token)
        if self.reason is StopReason.NONE and ended_by != StopReason.NONE:
            self._end(StopReason(ended_by))
        return len(new_ids), self.reason

    def text(self) -> str:
        """The text so far, without the stop string; an unfinished character shows only at the end."""
        return self._text

    def new_text(self) -> str:
        """What text() has gained since the last call and no stop string can take back."""
        end = len(self._text)
        if self.reason is StopReason.NONE:
            end -= max((_overlap(self._text, stop) for stop in self._params.stop), default=0)
        piece = self._text[self._num_shown : end]
        self._num_shown += len(piece)
        return piece

    def _take(self, token: int) -> None:
        self._num_tokens += 1
        if self._detokenizer is not None:
            self._append(self._detokenizer.push([token]))
        if self.reason is not StopReason.NONE:
            return
        if token in self._eos_token_ids:
            self._end(StopReason.EOS)
        elif self._num_tokens == self._max_new:
            self._end(StopReason.LENGTH)

    def _end(self, reason: StopReason) -> None:
        self.reason = reason
        if self._detokenizer is not None:
            self._text += self._detokenizer.flush()

    def _append(self, piece: str) -> None:
        """Add readable text; cut it before the first stop string that the piece completes."""
        num_before = len(self._text)
        self._text += piece
        if not piece or self._num_tokens < self._params.min_new_tokens:
            return
        # It must end within the new piece: one completed earlier, below min_new_tokens, does not count.
        starts = [self._text.find(stop, max(0, num_before - len(stop) + 1)) for stop in self._params.stop]
        found = [start for start in starts if start >= 0]
        if found:
            self._text = self._text[: min(found)]
            self.reason = StopReason.STOP_STRING


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning, not the whole, of `stop`."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)
