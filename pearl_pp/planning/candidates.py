"""What the planner compares: placements with an entry pattern and a pace, plain decoding and `sd` among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from pearl_pp.planning.closed_form import (
    durations_of,
    plain_tokens_per_s,
    turns_tokens_per_s,
    window_tokens_per_s,
)
from pearl_pp.planning.layouts import Fit, Layout, fits_of, sharded_layouts, whole_layouts
from pearl_pp.planning.prediction import exact_pass_ticks
from pearl_pp.planning.question import Question, Wanted
from pearl_pp.schedule.placement import Placement
from pearl_pp.schedule.schedule import TICKS, Schedule, plain, speculative
from pearl_pp.simulation.costs import ProfileCosts
from pearl_pp.simulation.simulator import CostModel

_MAX_TURN = 16  # tokens a round of `sd`, as many as a slot's ticks divide exactly


class Strategy(NamedTuple):
    """How a placement is run, by the names of `--strategy`.

    Args:
        schedule: of a placement on a machine. screened: its tokens per second by the closed form.
    """

    name: str
    schedule: Callable[[Placement, CostModel], Schedule]
    screened: Callable[[Placement, CostModel, float], float]


def _plain_schedule(placement: Placement, costs: CostModel) -> Schedule:
    return plain(placement.num_stages)


def _plain_screened(placement: Placement, costs: CostModel, acceptance: float) -> float:
    return plain_tokens_per_s(durations_of(placement, costs, 1))


def _turns_schedule(placement: Placement, costs: CostModel) -> Schedule:
    return speculative(placement, placement.gamma or 1, pre_verify=False, post_verify=False)


def _turns_screened(placement: Placement, costs: CostModel, acceptance: float) -> float:
    gamma = placement.gamma or 1
    return turns_tokens_per_s(durations_of(placement, costs, gamma + 1), gamma, acceptance)


def _window_schedule(placement: Placement, costs: CostModel) -> Schedule:
    if placement.gamma is not None:
        return speculative(placement, placement.gamma)
    return speculative(placement, 1).with_pass_ticks(exact_pass_ticks(placement, costs))


def _window_screened(placement: Placement, costs: CostModel, acceptance: float) -> float:
    schedule = _window_schedule(placement, costs)
    per_interval = max(1, round(placement.verify_interval * TICKS / schedule.pass_ticks))
    return window_tokens_per_s(schedule, durations_of(placement, costs, per_interval), acceptance)


PLAIN = Strategy("ar", _plain_schedule, _plain_screened)
TURNS = Strategy("sd", _turns_schedule, _turns_screened)
WINDOWS = Strategy("pearl", _window_schedule, _window_screened)
STRATEGIES = {strategy.name: strategy for strategy in (PLAIN, TURNS, WINDOWS)}


@dataclass(frozen=True)
class Candidate:
    """A way to run the two models.

    Args:
        placement: gamma None is the exact pace, passes as long as they take.
        screened: tokens per second by the closed form.
    """

    strategy: Strategy
    fit: Fit
    placement: Placement
    costs: ProfileCosts
    screened: float

    @property
    def layout(self) -> Layout:
        return self.fit.layout

    @property
    def kind(self) -> tuple[object, ...]:
        """Candidates of one kind differ in numbers; the best of each is worth a simulation."""
        in_flight = self.placement.fill > 1 or self.placement.verify_interval < self.placement.num_stages
        return self.strategy.name, self.layout.is_alone, len(self.layout.replicas), self.layout.is_sharded, in_flight

    def schedule(self) -> Schedule:
        return self.strategy.schedule(self.placement, self.costs)

    def with_gamma(self, gamma: int, acceptance: float) -> Candidate:
        placement = replace(self.placement, gamma=gamma)
        screened = self.strategy.screened(placement, self.costs, acceptance)
        return replace(self, placement=placement, screened=screened)


def candidates_of(question: Question) -> list[Candidate]:
    """Everything worth a look, screened; what does not fit too.

    Empty where the target has too few layers, or the user's options contradict one another.
    """
    if question.num_layers < question.num_ranks - 1:
        return []
    found = list(_plain_candidates(question))
    if question.draft is None:
        return found
    num_ranks, draft_layers = question.num_ranks, len(question.draft.layers)
    whole = [fit for layout in whole_layouts(num_ranks, draft_layers) for fit in fits_of(question, layout)]
    found += _drafting_candidates(question, whole)
    num_shards = 2
    shared = [fit for fit in whole if not fit.layout.is_alone]
    while not any(fit.fits for fit in shared) and num_shards <= min(num_ranks, draft_layers):
        cuts = dict.fromkeys(sharded_layouts(num_ranks, draft_layers, num_shards))
        shared = [fit for layout in cuts for fit in fits_of(question, layout)]
        found += _drafting_candidates(question, shared)
        num_shards += 1
    return found


def plain_reference(question: Question) -> Candidate:
    """Plain decoding on all ranks, as fast as memory allows, whatever the user's options say."""
    free = replace(question, wanted=Wanted())
    stages = Layout(min(question.num_ranks, question.num_layers), ())
    plain = [_plain_candidate(free, fit) for fit in fits_of(free, stages)]
    return max(plain, key=lambda candidate: candidate.screened)


def _plain_candidates(question: Question) -> Iterator[Candidate]:
    if PLAIN.name in question.wanted.strategies:
        for fit in fits_of(question, Layout(question.num_ranks, ())):
            yield _plain_candidate(question, fit)


def _plain_candidate(question: Question, fit: Fit) -> Candidate:
    return _candidate(question, PLAIN, fit, fit.layout.with_split(fit.split))


def _drafting_candidates(question: Question, fits: list[Fit]) -> Iterator[Candidate]:
    if WINDOWS.name in question.wanted.strategies and question.num_ranks > 1:
        yield from _window_candidates(question, fits)
    if TURNS.name in question.wanted.strategies:
        for fit in fits:
            if len(fit.layout.replicas) == 1:
                yield from _turn_candidates(question, fit)


# With more splits and places for the draft than this, all F and p are tried on the best of them alone.
_MANY_FITS = 60


def _window_candidates(question: Question, fits: list[Fit]) -> Iterator[Candidate]:
    if len(fits) > _MANY_FITS:
        first_look = [c for fit in fits for c in _patterns_of(question, fit, coarse_patterns)]
        yield from first_look
        ordered = sorted(first_look, key=lambda candidate: (not candidate.fit.fits, -candidate.screened))
        fits = list(dict.fromkeys(candidate.fit for candidate in ordered))[:_MANY_FITS]
    for fit in fits:
        yield from _patterns_of(question, fit, entry_patterns)


_Patterns = Callable[[Question, Layout], Iterable[tuple[int, int]]]


def _patterns_of(question: Question, fit: Fit, patterns: _Patterns) -> Iterator[Candidate]:
    whole = fit.layout.with_split(fit.split)
    costs = ProfileCosts(question.profile, whole)
    for fill, interval in patterns(question, fit.layout):
        placement = replace(whole, fill=fill, verify_interval=interval, gamma=question.wanted.gamma)
        placement = replace(placement, handoff=_handoff(question, placement, costs))
        yield _candidate(question, WINDOWS, fit, placement, costs)


def _turn_candidates(question: Question, fit: Fit) -> Iterator[Candidate]:
    whole = fit.layout.with_split(fit.split)
    costs = ProfileCosts(question.profile, whole)
    gammas = range(1, _MAX_TURN + 1) if question.wanted.gamma is None else (question.wanted.gamma,)
    turns = [_candidate(question, TURNS, fit, replace(whole, gamma=gamma), costs) for gamma in gammas]
    yield max(turns, key=lambda candidate: candidate.screened)


def _candidate(
    question: Question, strategy: Strategy, fit: Fit, placement: Placement, costs: ProfileCosts | None = None
) -> Candidate:
    costs = costs or ProfileCosts(question.profile, placement)
    return Candidate(strategy, fit, placement, costs, strategy.screened(placement, costs, question.acceptance))


def entry_patterns(question: Question, layout: Layout) -> Iterator[tuple[int, int]]:
    """(F, p) that differ in something, of those the user leaves open.

    In steady state rank r is busy in the slots congruent to r modulo p: replicas on ranks that are all congruent are
    no better than one. With p = 1 a chunk enters in every slot, and F changes nothing.
    """
    num_stages, wanted = layout.num_stages, question.wanted
    fills = _steps(num_stages) if wanted.fill is None else [wanted.fill]
    intervals = _steps(num_stages) if wanted.verify_interval is None else [wanted.verify_interval]
    if max(*fills, *intervals) > num_stages:
        return
    firsts = [replica[0].rank for replica in layout.replicas]
    for interval, fill in product(intervals, fills):
        if interval == 1 and fill != fills[0]:
            continue
        if len(firsts) > 1 and not layout.is_sharded and len({rank % interval for rank in firsts}) == 1:
            continue
        yield fill, interval


def coarse_patterns(question: Question, layout: Layout) -> list[tuple[int, int]]:
    """A few of `entry_patterns`, by which places for the draft are compared first."""
    found, last = list(entry_patterns(question, layout)), layout.num_stages
    few = [(fill, interval) for fill, interval in found if fill in (1, last - 1) and interval in (1, 2, last)]
    return few or found


_FEW_STAGES = 8


def _steps(num_stages: int) -> list[int]:
    """Values of F and p: all of them, or the small and the large ones of many."""
    if num_stages <= _FEW_STAGES:
        return list(range(1, num_stages + 1))
    return sorted({1, 2, 3, 4, num_stages // 2, num_stages - 1, num_stages})


def _handoff(question: Question, placement: Placement, costs: ProfileCosts) -> str:
    """The cheaper of shipping the entries of a stay and feeding its tokens again (DESIGN section 5)."""
    if question.wanted.handoff != "auto":
        return question.wanted.handoff
    if len(placement.replicas) < 2:
        return "catchup"
    ticks = _window_schedule(placement, costs).pass_ticks
    num_missing = max(1, placement.verify_interval * TICKS // ticks // len(placement.replicas))
    profile = question.profile
    num_bytes = num_missing * profile.draft.kv_bytes_per_token
    pairs = [(a[-1].rank, b[0].rank) for a, b in product(placement.replicas, repeat=2) if a is not b]
    ship = max(profile.link_s(src, dst, num_bytes) for src, dst in pairs)
    again = max(
        profile.draft_pass_s(b, profile.draft.num_layers, 1 + num_missing)
        - profile.draft_pass_s(b, profile.draft.num_layers, 1)
        for _, b in pairs
    )
    return "ship" if ship < again else "catchup"
