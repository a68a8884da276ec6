"""Draft passes on this rank: feed a shard, and on the last shard draw the next token."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pearl_pp.decoding.sampling import LogitsPipeline
from pearl_pp.decoding.verification import VerificationRule
from pearl_pp.runtime.mailbox import Mailbox, TokenTape
from pearl_pp.schedule.instructions import Draft, Kind
from pearl_pp.stages.rank_module import AnyStage


class Drafter:
    """Executes `Draft` instructions for the shards that live on this rank.

    Args:
        shards: replica number -> shard.
        rule: draws tokens the way the verifier expects.
        pipeline: from logits to the scores the rule draws from.
    """

    def __init__(self, shards: dict[int, AnyStage], rule: VerificationRule, pipeline: LogitsPipeline) -> None:
        self._shards = shards
        self._rule = rule
        self._pipeline = pipeline
        self.hidden: dict[int, torch.Tensor] = {}
        self.probs: dict[int, torch.Tensor] = {}

    def fetch(self, draft: Draft, tape: TokenTape, mailbox: Mailbox) -> torch.Tensor:
        """What the shard is fed: ids int64 [n] on the first shard, else hidden states [n, hidden]."""
        if draft.shard == 0:
            ids = torch.tensor(tape.read(draft.start, draft.end), dtype=torch.int64)
            # The target may have ids that the draft lacks; fed another one it guesses worse, no more.
            return ids.clamp(max=self._shards[draft.replica].vocab_size - 1)
        return mailbox.take(Kind.DRAFT_ACTIVATION, draft.start, draft.end, draft.replica)

    def run(self, draft: Draft, inputs: torch.Tensor) -> torch.Tensor:
        """One pass; returns logits [1, vocab] if it samples, else hidden states, kept for the next shard."""
        output = self._shards[draft.replica].run(inputs, draft.start, num_logits=int(draft.samples))
        if not draft.samples:
            self.hidden[draft.replica] = output
        return output

    def draw(self, draft: Draft, logits: torch.Tensor, context: Sequence[int]) -> int:
        """Draws the token at position `draft.end` given all ids before it; keeps q where the verifier needs it."""
        scores = self._pipeline.scores(logits, context, ())
        token_id, probs = self._rule.draft(scores[0], draft.end)
        if probs is not None:
            self.probs[draft.end] = probs
        return token_id

    def take_probs(self, start: int, end: int) -> torch.Tensor:
        """q of positions [start, end) drawn on this rank, float32 [end - start, vocab]."""
        return torch.stack([self.probs.pop(position) for position in range(start, end)])

    def restart(self) -> None:
        self.hidden.clear()
        self.probs.clear()
