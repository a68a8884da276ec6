"""What a run does before its first request: every kind of pass and message once, measured, and what is chosen."""

from __future__ import annotations

from dataclasses import replace

from pearl_pp import builtin
from pearl_pp.config import RunConfig
from pearl_pp.config.strategies import STRATEGIES
from pearl_pp.errors import UserError
from pearl_pp.planning.modes import Family, Limits
from pearl_pp.planning.prediction import exact_pass_ticks
from pearl_pp.planning.presets import FIRST_GAMMA
from pearl_pp.runtime.intake import make_request
from pearl_pp.runtime.pair import ModelPair
from pearl_pp.runtime.rank_engine import RankEngine
from pearl_pp.runtime.request import Prompt, Request
from pearl_pp.runtime.tuning import TRIAL_TOKENS, Tuned, Tuner
from pearl_pp.schedule.schedule import Schedule, plain, speculative
from pearl_pp.simulation.simulator import CostModel
from pearl_pp.telemetry import Recorder
from pearl_pp.transport.base import Transport

# Without a choice: enough verdicts for medians of t and T with both models at work.
_TOKENS = 24
_REPORTS = (2, 6)

_PROMPT_TOKENS = 32

_FAMILIES = {
    "pearl": frozenset(Family),
    "sd": frozenset({Family.TURNS}),
    "ar": frozenset({Family.PLAIN}),
}
"""What each strategy may change to while it runs; the named baselines stay what they are."""


def make_schedule(config: RunConfig, pair: ModelPair) -> Schedule:
    """The generator's parameters for the strategy and the placement of `pair`, before anything is measured."""
    placement, strategy = pair.placement, STRATEGIES[pair.strategy]
    if not placement.replicas:
        return plain(placement.num_stages)
    schedule = speculative(
        placement,
        placement.gamma or FIRST_GAMMA,
        pre_verify=strategy.pre_verify and not config.no_pre_verify,
        post_verify=strategy.post_verify and not config.no_post_verify,
    )
    return replace(schedule, active=schedule.in_use[:2]) if config.adapts else schedule


def limits_of(config: RunConfig, pair: ModelPair) -> Limits:
    """What the user has fixed."""
    fill, interval = _given(config.fill), _given(config.verify_interval)
    families = _FAMILIES[config.strategy]
    if fill or interval:  # said of windows
        families -= {Family.TURNS}
    return Limits(pair.placement.gamma, fill, interval, families)


def _given(value: int | str) -> int | None:
    return value if isinstance(value, int) else None


def warm_up(
    transport: Transport,
    rank_engine: RankEngine,
    recorder: Recorder,
    config: RunConfig,
    pair: ModelPair,
    schedule: Schedule,
    exact_pace: bool = False,
) -> Tuned:
    """Collective: the schedule that requests start with, and who may change it.

    exact_pace: where times are known, and only the length of a draft pass would be measured, nothing is run.
    """
    limits = limits_of(config, pair)
    is_fixed = limits.families == {Family.TURNS} and limits.gamma is not None
    if config.adapts and schedule.replicas and not is_fixed:
        request = _trial_request(config, pair)
        if request is not None:
            return Tuner(transport, rank_engine, recorder, pair, schedule, limits, request).run()
    known = pair.known_costs() if exact_pace else None
    paced = _measured_pace(rank_engine, pair, schedule) if known is None else with_exact_pace(schedule, pair, known[0])
    takes_turns = schedule.drafts and not STRATEGIES[pair.strategy].pre_verify and pair.placement.gamma is None
    notes = (f"gamma is {FIRST_GAMMA} where none is given: with sd it is not measured",) if takes_turns else ()
    return Tuned(paced, None, notes)


def with_exact_pace(schedule: Schedule, pair: ModelPair, costs: CostModel) -> Schedule:
    """Where gamma is to be measured, draft passes are exactly as long as `costs` say."""
    return schedule.with_pass_ticks(exact_pass_ticks(pair.placement, costs)) if _measures(schedule, pair) else schedule


def _measures(schedule: Schedule, pair: ModelPair) -> bool:
    """Whether the length of a draft pass is to be found."""
    return schedule.drafts and pair.placement.gamma is None and STRATEGIES[pair.strategy].pre_verify


def _measured_pace(rank_engine: RankEngine, pair: ModelPair, schedule: Schedule) -> Schedule:
    """A short run; where gamma is free the last stage sets the length of a draft pass from what the ranks report."""
    measures = _measures(schedule, pair)
    request = _request(pair, (0, 1), _TOKENS)
    if request is None:
        return schedule
    request = replace(request, report_at=_REPORTS if measures else ())
    pass_ticks = rank_engine.run(request, schedule).generator.schedule.pass_ticks
    return schedule.with_pass_ticks(pass_ticks) if measures else schedule


def _trial_request(config: RunConfig, pair: ModelPair) -> Request | None:
    """Ordinary text, with the run's own sampling options: acceptance depends on both."""
    tokenizer = pair.vocabulary.tokenizer
    ids = (0, 1) if tokenizer is None else tuple(tokenizer(builtin.prompts()[0])["input_ids"])
    room = min(pair.max_len, pair.draft.max_positions if pair.draft else pair.max_len)
    ids = ids[: max(1, min(_PROMPT_TOKENS, room // 2))]
    return _request(pair, ids, min(TRIAL_TOKENS, room - len(ids)), config)


def _request(
    pair: ModelPair, token_ids: tuple[int, ...], num_tokens: int, config: RunConfig | None = None
) -> Request | None:
    """None where the context has no room for it."""
    changed = {"max_new_tokens": num_tokens, "min_new_tokens": 0, "ignore_eos": True, "stop": (), "logprobs": False}
    params = (config or RunConfig()).sampling_params().model_copy(update=changed | {"seed": 0})
    try:
        request = make_request(Prompt(token_ids=token_ids, params=params), pair)
    except UserError:
        return None
    return request if request.total_len > len(request.token_ids) else None
