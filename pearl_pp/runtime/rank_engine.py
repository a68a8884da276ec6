"""One rank's part in answering a request: models, rule, logits pipeline and worker put together."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from pearl_pp.decoding.detokenizer import Detokenizer
from pearl_pp.decoding.sampling import LogitsPipeline
from pearl_pp.decoding.stopping import StopChecker
from pearl_pp.runtime.drafter import Drafter
from pearl_pp.runtime.pacing import prefill_piece
from pearl_pp.runtime.pair import ModelPair
from pearl_pp.runtime.request import Request
from pearl_pp.runtime.verifier import Verifier
from pearl_pp.runtime.worker import Decide, OnVerdict, Progress, Worker
from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.schedule.schedule import Schedule
from pearl_pp.stages.rank_module import RankModule
from pearl_pp.telemetry import Recorder
from pearl_pp.transport.base import Transport


class RankResult(NamedTuple):
    """A finished request as this rank saw it; logprobs only on the last stage, where asked for."""

    generator: SlotGenerator
    progress: Progress
    logprobs: list[float] | None


class RankEngine:
    """Runs requests with what lives on this rank.

    Args:
        pair: the two models; the same on all ranks.
        module: stage and shards of this rank.
        verify: verification rule of sampled requests.
        prefill_piece: tokens of a piece of the prompt, or "auto".
    """

    def __init__(
        self,
        transport: Transport,
        pair: ModelPair,
        module: RankModule,
        recorder: Recorder,
        verify: str,
        prefill_piece: int | str = "auto",
    ) -> None:
        self._pair = pair
        self._module = module
        self._verify = verify
        self._prefill_piece = prefill_piece
        self._verifies_on = pair.placement.num_stages - 1
        self._transport = transport
        self._recorder = recorder

    def run(
        self,
        request: Request,
        schedule: Schedule,
        on_verdict: OnVerdict | None = None,
        decide: Decide | None = None,
    ) -> RankResult:
        """Collective: one request under `schedule` (the same on all ranks).

        Args:
            decide: changes the schedule on the way; only the last stage's counts.
        """
        rule = self._pair.make_rule(self._verify, request.params, request.seed)
        eos = frozenset() if request.params.ignore_eos else self._pair.target.eos_token_ids
        processing = self._pair.processing(request.params)
        pipeline = LogitsPipeline(processing, self._pair.vocabulary.size, eos, len(request.token_ids))
        verifier = None
        if self._transport.rank == self._verifies_on:
            verifier = Verifier(rule, pipeline, self.stop_checker(request), request.params.logprobs)
        schedule = replace(
            schedule,
            sends_probs=rule.needs_probs,
            report_at=frozenset(request.report_at),
            prefill_piece=prefill_piece(
                len(request.token_ids), schedule.num_stages, self._pair.min_prefill_piece, self._prefill_piece
            ),
        )
        drafter = Drafter(self._module.shards, rule, pipeline)
        worker = Worker(
            self._transport,
            self._module,
            self._pair.wiring,
            self._recorder,
            request,
            schedule,
            drafter,
            verifier,
            None if verifier is None else decide,
        )
        generator, progress = worker.run(on_verdict)
        return RankResult(generator, progress, None if verifier is None else verifier.logprobs)

    def stop_checker(self, request: Request) -> StopChecker:
        """Where the request's text ends, from verified ids alone: the last stage decides, rank 0 shows the text."""
        tokenizer = self._pair.vocabulary.tokenizer
        detokenizer = None if tokenizer is None else Detokenizer(tokenizer)
        eos = self._pair.target.eos_token_ids
        return StopChecker(request.params, eos, request.total_len, request.token_ids, detokenizer)
