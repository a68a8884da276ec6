"""The one decider: the last stage judges drafted tokens and stops the request (DESIGN section 3)."""

from __future__ import annotations

import torch

from pearl_pp.decoding.sampling import LogitsPipeline, token_logprobs
from pearl_pp.decoding.stopping import StopChecker, StopReason
from pearl_pp.decoding.verification import Judgement, NoDistribution, VerificationRule
from pearl_pp.messages import Outcome, Verdict
from pearl_pp.schedule.instructions import Verify


class Verifier:
    """Makes verdicts from the last stage's logits. Lives on the last stage's rank only.

    Args:
        rule: the verification rule of the run.
        pipeline: from logits to the scores that are judged.
        stop_checker: end-of-sequence ids, stop strings and the length limit.
        wants_logprobs: keep the log-probability of every returned token.
    """

    def __init__(
        self, rule: VerificationRule, pipeline: LogitsPipeline, stop_checker: StopChecker, wants_logprobs: bool
    ) -> None:
        self._rule = rule
        self._pipeline = pipeline
        self._stop_checker = stop_checker
        self.logprobs: list[float] | None = [] if wants_logprobs else None

    def judge(
        self,
        slot: int,
        verify: Verify,
        logits: torch.Tensor,
        context: list[int],
        drafted: list[int],
        probs: torch.Tensor | None,
    ) -> Verdict:
        """Judges `drafted` at positions `verify.first` on.

        Args:
            logits: [num_drafted + bonus, vocab], a row for each judged position.
            context: all ids before `verify.first`.
            probs: q of the drafted tokens, float32 [num_drafted, vocab], where the rule needs it.
        """
        scores = self._pipeline.scores(logits, context, drafted)
        judgement, failure = self._judge_tokens(scores, drafted, probs, verify.first)
        kept, reason = self._stop_checker.feed(judgement.token_ids, failure)
        token_ids = judgement.token_ids[:kept]
        if self.logprobs is not None:
            self.logprobs.extend(token_logprobs(logits[:kept], token_ids, self._pipeline.vocab_size))
        whole = kept == len(judgement.token_ids)
        outcome = Outcome.ACCEPTED
        if judgement.rejected and whole:
            outcome = Outcome.REJECTED
        elif verify.bonus and len(judgement.token_ids) > len(drafted) and whole:
            outcome = Outcome.BONUS
        return Verdict(slot, token_ids, min(judgement.num_accepted, kept), outcome, int(reason))

    def _judge_tokens(
        self, scores: torch.Tensor, drafted: list[int], probs: torch.Tensor | None, first: int
    ) -> tuple[Judgement, StopReason]:
        """What the rule says; before a position whose logits say nothing it ends, with NO_DISTRIBUTION."""
        try:
            return self._rule.judge(scores, drafted, probs, first), StopReason.NONE
        except NoDistribution as failure:
            num_accepted = failure.position - first
            return Judgement(tuple(drafted[:num_accepted]), num_accepted, False), StopReason.NO_DISTRIBUTION
