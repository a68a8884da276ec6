"""The engine: loads what belongs on this rank and answers prompts. Every rank runs the same calls."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from pearl_pp.config import RunConfig, run_config
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.decoding.stopping import StopReason, finish_reason
from pearl_pp.decoding.verification import no_distribution
from pearl_pp.errors import UserError
from pearl_pp.messages import Verdict
from pearl_pp.runtime import intake
from pearl_pp.runtime.fitting import fit_placement
from pearl_pp.runtime.host_memory import give_back_large_blocks
from pearl_pp.runtime.loading import OnProgress, agree, gather_notes, load_rank, open_pair, settle_dtype
from pearl_pp.runtime.machine import package_versions
from pearl_pp.runtime.memory_meter import Meter
from pearl_pp.runtime.metrics import empty_metrics, request_metrics
from pearl_pp.runtime.pair import ModelPair
from pearl_pp.runtime.plan import Plan
from pearl_pp.runtime.rank_engine import RankEngine
from pearl_pp.runtime.rank_records import gather_ranks, traffic
from pearl_pp.runtime.request import Prompt, Request, RequestOutput, as_prompts
from pearl_pp.runtime.tracing import Trace, Tracer
from pearl_pp.runtime.warm_up import make_schedule, warm_up
from pearl_pp.runtime.watching import explain
from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.schedule.schedule import Schedule
from pearl_pp.stages.rank_module import RankModule
from pearl_pp.stages.stage_store import StageStore
from pearl_pp.telemetry import Event, Recorder, write_chrome_trace
from pearl_pp.transport.base import Transport
from pearl_pp.transport.torch_distributed import connect

logger = logging.getLogger("pearl_pp")

OnText = Callable[[int, str], None]
OnPlan = Callable[[list[str]], None]

IDLE_S = 24 * 3600.0
"""How long a rank waits for what rank 0 does next, which may depend on a person."""


class PearlPP:
    """PEARL over pipeline stages, on all ranks of a torchrun job (or on one process alone).

    Args:
        config: all options; or give them by name (`PearlPP(target=..., placement="hop")`).
        transport: ranks that are connected already, and stay so after `close`; None joins the torchrun job.
        on_plan: called on rank 0 with the lines that say what will be where, before anything is loaded.
        on_progress: called with (what, done bytes, total bytes) while weights are read.
        keeps_events: for `take_events`; a trace keeps them too.
        stages: of earlier engines with the same `transport`; what is there is not loaded again.
        exact_pace: an emulated draft pass is scheduled as long as the profile says, and not measured before.

    Raises:
        UserError: an option, a model folder or a placement that does not fit.
    """

    def __init__(
        self,
        config: RunConfig | None = None,
        *,
        transport: Transport | None = None,
        on_progress: OnProgress | None = None,
        on_plan: OnPlan | None = None,
        keeps_events: bool = False,
        stages: StageStore | None = None,
        exact_pace: bool = False,
        **options: object,
    ) -> None:
        if config is not None and options:
            raise TypeError("give a RunConfig or options by name, not both")
        self.config = config or run_config(options)
        self._owns_transport = transport is None
        self._is_closed = False
        self._stages = stages
        wires = transport or connect(self.config.run_device, self.config.timeout)
        try:
            self._set_up(wires, on_progress, on_plan, keeps_events, exact_pace)
        except BaseException as error:
            if self._owns_transport:
                wires.abort(repr(error))  # the other ranks need not wait for this one until their time is up
            raise

    def _set_up(
        self,
        wires: Transport,
        on_progress: OnProgress | None,
        on_plan: OnPlan | None,
        keeps_events: bool,
        exact_pace: bool,
    ) -> None:
        pair = open_pair(self.config, wires.world_size, wires.device)
        self._transport = pair.linked(wires)
        pair, dtype_reason = settle_dtype(self._transport, pair, self.config.dtype)
        agree(self._transport, pair)
        self._warned: set[str] = set()
        if extra := pair.vocabulary.num_unshared:
            self._warn(f"{extra} tokens are in one tokenizer only; they are never accepted from the draft")
        pair, planned, notes = fit_placement(self._transport, self.config, pair)
        schedule = make_schedule(self.config, pair)
        self.plan = Plan(pair, str(self._transport.device), schedule, planned, (), dtype_reason, self.config.adapts)
        if self.rank == 0 and on_plan is not None:
            on_plan(self.plan.layout_lines)
        if self._transport.device.type == "cpu":
            give_back_large_blocks()
        self._memory = Meter(self._transport.device)
        module = load_rank(pair, self._transport, on_progress, self._memory.loading, self._stages)
        synchronize = _synchronize if self._transport.device.type == "cuda" else None
        self._recorder = Recorder(keeps_events or self.config.trace is not None, synchronize)
        self._rank_engine = RankEngine(
            self._transport, pair, module, self._recorder, self.config.verify, self.config.prefill_piece
        )
        self._tracer = Tracer(self._transport, self._recorder, pair.placement.num_stages - 1)
        self._pair, self._module = pair, module
        notes = [*notes, *_notes(self.config, pair), *gather_notes(self._transport, module)]
        tuned = warm_up(self._transport, self._rank_engine, self._recorder, self.config, pair, schedule, exact_pace)
        self.schedule, self._watcher = tuned.schedule, tuned.watcher
        self.plan = replace(self.plan, schedule=tuned.schedule, notes=(*notes, *tuned.notes))

    @property
    def rank(self) -> int:
        return self._transport.rank

    @property
    def world_size(self) -> int:
        return self._transport.world_size

    def use(self, schedule: Schedule) -> None:
        """Every later request is run so, without changes on the way; the same on all ranks."""
        self.schedule, self._watcher = schedule, None

    @property
    def module(self) -> RankModule:
        """The target stage and the draft shards on this rank."""
        return self._module

    @property
    def tokenizer(self) -> object | None:
        return self._pair.vocabulary.tokenizer

    @property
    def versions(self) -> dict[str, str]:
        return package_versions()

    def generate(
        self, prompts: Sequence[str | Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Answers `prompts` in order; every rank returns the same texts, rank 0 with all metrics."""
        return list(self.iterate(as_prompts(prompts, self.config.sampling_params() if params is None else params)))

    def iterate(self, prompts: Sequence[Prompt], on_text: OnText | None = None) -> Iterator[RequestOutput]:
        """Answers prompts one by one. Collective: every rank must iterate; rank 0's prompts count.

        Rank 0 may leave the loop early. A rank that leaves it before rank 0 works on until rank 0 is done.

        Args:
            on_text: called on rank 0 with (prompt number, new text) as text is verified.
        """
        try:
            yield from self._answers(prompts, on_text) if self.rank == 0 else iter(self._follow, None)
        except GeneratorExit:
            while self.rank != 0 and not self._is_closed and self._follow() is not None:
                pass
            if self.rank == 0 and not self._is_closed:
                self._announce({})
            raise
        if self.rank == 0:
            self._announce({})

    def _answers(self, prompts: Sequence[Prompt], on_text: OnText | None) -> Iterator[RequestOutput]:
        for index, prompt in enumerate(prompts):
            shown = intake.prompt_text(prompt)
            try:
                request = intake.make_request(prompt, self._pair)
                message = {"prompt": shown, "request": request.to_bytes().decode()}
            # Whatever a prompt of the wrong kind raises is its own fault: the other ranks wait to hear of it.
            except (UserError, TypeError, ValueError) as error:
                reason = str(error) if isinstance(error, UserError) else f"prompt: cannot be used: {error}"
                self._announce({"prompt": shown, "error": reason})
                yield RequestOutput(shown, [], [], "", None, error=reason)
                continue
            self._announce(message)
            yield self._run(shown, request, None if on_text is None else lambda text, i=index: on_text(i, text))

    def take_events(self) -> list[list[Event]] | None:
        """Collective: on rank 0 the events of every rank in requests since the last call, if kept; None elsewhere."""
        trace = self._tracer.take()
        return None if trace is None else trace.events

    def traced(self, prompt: Prompt) -> tuple[RequestOutput, Trace | None]:
        """Collective: the answer to a prompt, and on rank 0 its trace, whatever is kept of other requests."""
        kept, self._recorder.keeps_events = self._recorder.keeps_events, True
        try:
            return self.generate([prompt])[0], self._tracer.take()
        finally:
            self._recorder.keeps_events = kept

    def close(self) -> None:
        """Collective: writes the trace and disconnects; UserError on rank 0 where it cannot be written."""
        try:
            if self.config.trace is not None and (trace := self._tracer.take()) is not None:
                write_chrome_trace(self.config.trace, trace.events, trace.requests, self.config.mode)
        finally:
            self._is_closed = True
            if self._owns_transport:
                self._transport.close()

    def _warn(self, warning: str) -> None:
        """Rank 0 speaks for all ranks, and says everything once."""
        if self.rank == 0 and warning not in self._warned:
            self._warned.add(warning)
            logger.warning(warning)

    # -- one request

    def _announce(self, message: dict) -> None:
        self._transport.broadcast_bytes(json.dumps(message).encode(), src=0)

    def _follow(self) -> RequestOutput | None:
        """The next request that rank 0 announces; None when there are no more."""
        message = json.loads(self._transport.broadcast_bytes(None, src=0, timeout_s=IDLE_S))
        if "error" in message:
            return RequestOutput(message["prompt"], [], [], "", None, error=message["error"])
        if "request" in message:
            return self._run(message["prompt"], Request.from_bytes(message["request"].encode()), None)
        return None

    def _run(self, prompt: str, request: Request, on_text: Callable[[str], None] | None) -> RequestOutput:
        stop_checker = self._rank_engine.stop_checker(request)
        prompt_ids = list(request.token_ids)
        if request.total_len == len(prompt_ids):
            return RequestOutput(prompt, prompt_ids, [], "", "length", metrics=empty_metrics())
        if request.draft_end < request.total_len and self._pair.draft is not None:
            end = self._pair.draft.max_positions
            self._warn(f"the draft's context ends at position {end}: from there on the target decodes alone")
        if self._stages is not None:  # other engines have loaded and freed since the last request
            self._memory.restart(self._module.held_bytes)
        self._recorder.reset()
        self._transport.reset_counters()
        self._tracer.start(prompt, len(prompt_ids))
        output_ids: list[int] = []
        changes: list[str] = []
        times = [time.perf_counter()]

        def on_verdict(generator: SlotGenerator, verdict: Verdict) -> None:
            times.append(time.perf_counter())
            output_ids.extend(verdict.token_ids)
            self._tracer.add(verdict)
            if verdict.change is not None:
                changes.append(explain(verdict.change, generator.schedule))
                logger.info(changes[-1])
            stop_checker.feed(verdict.token_ids, verdict.stop)
            if on_text is not None and (piece := stop_checker.new_text()):
                on_text(piece)

        if self._watcher is not None:
            self._watcher.begin_request()
        decide = None if self._watcher is None else self._watcher.decide
        result = self._rank_engine.run(request, self.schedule, on_verdict, decide)
        self.schedule = self.schedule.changed(result.generator.schedule.as_change())
        if stop_checker.reason is StopReason.NO_DISTRIBUTION:
            error = no_distribution(len(prompt_ids) + len(output_ids))
            return RequestOutput(prompt, prompt_ids, output_ids, stop_checker.text(), None, error=error)
        reason = finish_reason(stop_checker.reason)
        output = RequestOutput(prompt, prompt_ids, output_ids, stop_checker.text(), reason)
        output.notes = changes
        clock = (times[0], times[1], times[-1])
        output.metrics = request_metrics(result.generator, result.progress, clock, len(output_ids))
        self._gather(output, result.logprobs)
        return output

    def _gather(self, output: RequestOutput, logprobs: list[float] | None) -> None:
        """Collective: what only single ranks know reaches rank 0."""
        mine = self._recorder.summary() | traffic(self._transport)
        mine["planned_bytes"] = self.plan.bytes_per_rank[self.rank].total
        mine |= self._pair.measured(self._module, self._memory.peak_bytes())
        gather_ranks(self._transport, mine, logprobs, output)


def _synchronize() -> None:
    """Waits for the passes that are being timed, not for messages on other streams."""
    torch.cuda.current_stream().synchronize()


def _notes(config: RunConfig, pair: ModelPair) -> Iterator[str]:
    yield from pair.notes()
    if pair.strategy != config.strategy:
        yield f"on one rank nothing is idle: {config.strategy} runs as {pair.strategy}"
