"""The window state machine of one sequence: what is committed, drafted, fed and in flight. Pure, no torch.

`x[0..committed)` is verified text (prompt included), `x[committed..drafted)` has been drafted, and the target
has been fed `x[0..fed)`. PEARL's three rules (arXiv 2408.11850, section 4; DESIGN section 3) are `take_chunk`
(pre-verify is the chunk after a restart, post-verify every later one) and `apply`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from pearl_pp.messages import Verdict


class Chunk(NamedTuple):
    """Positions [start, end) fed to the target in one pass; its rows judge `first_judged` .. `end`.

    A piece of the prompt that is not its last judges nothing.
    """

    entry_slot: int
    start: int
    end: int
    first_judged: int

    @property
    def num_judged(self) -> int:
        """Rows that need logits: one for each judged position."""
        return self.end - self.first_judged + 1


@dataclass
class SequenceState:
    """State of one request, replayed identically on every rank.

    Args:
        prompt_len: tokens of the prompt, at least 1.
        total_len: length at which generation ends, prompt included.
        draft_end: no position at or beyond it is drafted (length limit and the draft's own context).
    """

    prompt_len: int
    total_len: int
    draft_end: int
    committed: int = field(init=False)
    drafted: int = field(init=False)
    fed: int = 0
    in_flight: deque[Chunk] = field(default_factory=deque)
    stop: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.prompt_len < self.total_len:
            raise ValueError(f"prompt_len {self.prompt_len} must be in [1, total_len {self.total_len})")
        self.draft_end = min(self.draft_end, self.total_len)
        self.committed = self.drafted = self.prompt_len

    @property
    def num_unfed(self) -> int:
        """Tokens the next chunk would take. The last token of all is judged, never fed."""
        return min(self.drafted, self.total_len - 1) - self.fed

    def take_chunk(self, slot: int) -> Chunk | None:
        """All that was drafted and not yet fed enters the pipeline in `slot`; None when there is nothing."""
        if self.num_unfed <= 0:
            return None
        start, end = self.fed, self.fed + self.num_unfed
        return self._enter(Chunk(slot, start, end, max(start + 1, self.committed)))

    def take_piece(self, slot: int, size: int) -> Chunk:
        """The next `size` tokens of the prompt enter; the prompt's last token is never among them."""
        end = self.fed + size
        if end >= self.prompt_len:
            raise ValueError(f"a piece must end before the prompt's last token, not at {end} of {self.prompt_len}")
        return self._enter(Chunk(slot, self.fed, end, end + 1))

    def _enter(self, chunk: Chunk) -> Chunk:
        self.fed = chunk.end
        self.in_flight.append(chunk)
        return chunk

    def retire(self) -> None:
        """The oldest chunk has left the last stage without a verdict."""
        self.in_flight.popleft()

    def num_drafted_for(self, chunk: Chunk) -> int:
        """Judged positions of `chunk` that have a drafted token; one fewer than judged means a bonus row."""
        return min(self.drafted, chunk.end + 1) - chunk.first_judged

    def apply(self, verdict: Verdict) -> None:
        """Commit the oldest chunk's verdict; at a restart everything beyond it is dropped."""
        self.in_flight.popleft()
        self.committed += len(verdict.token_ids)
        self.stop = verdict.stop
        if not verdict.restarts and not verdict.stop:
            return
        self.in_flight.clear()
        self.drafted = self.committed
        self.fed = self.committed - 1
