"""The planner: a closed form screens the candidates, the simulator ranks the best (DESIGN section 6). Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pearl_pp.planning import wording
from pearl_pp.planning.candidates import WINDOWS, Candidate, candidates_of, plain_reference
from pearl_pp.planning.memory import RankBytes
from pearl_pp.planning.prediction import expected_tokens_per_s
from pearl_pp.planning.question import Question
from pearl_pp.schedule.placement import Placement
from pearl_pp.schedule.schedule import TICKS, Schedule
from pearl_pp.simulation.costs import ProfileCosts

# Of the first look, whose pace is varied for the second one.
_NUM_PACED = 60
# Simulated too, where they would be faster than what fits: they say what more memory would buy.
_NUM_SHORT = 3
# Speeds closer than this are alike: the plan that holds less is better.
_ALIKE = 0.005


@dataclass(frozen=True)
class Entry:
    """A candidate with its prediction.

    Args:
        strategy: as `--strategy` says it.
        placement: gamma None: passes are as long as they take.
        schedule: what was simulated. costs: on what.
        tokens_per_s: simulated, in the long run. speedup: over plain decoding on the same ranks.
        memory: planned bytes of each rank. short: bytes that are missing on each rank.
    """

    strategy: str
    placement: Placement
    schedule: Schedule
    costs: ProfileCosts
    tokens_per_s: float
    speedup: float
    memory: tuple[RankBytes, ...]
    short: tuple[int, ...]

    @property
    def fits(self) -> bool:
        return not any(self.short)

    @property
    def pass_slots(self) -> float | None:
        """Length of a draft pass in slots."""
        return self.schedule.pass_ticks / TICKS if self.schedule.replicas else None

    @property
    def what(self) -> str:
        """In a few words."""
        return wording.what(self.strategy, self.placement)

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "what": self.what,
            "strategy": self.strategy,
            "placement": self.placement.record(),
            "pass_slots": self.pass_slots,
            "fits": self.fits,
            "short_bytes": list(self.short),
            "simulated_tokens_per_s": self.tokens_per_s,
            "simulated_speedup": self.speedup,
            "planned_bytes": [rank.record() for rank in self.memory],
        }


@dataclass(frozen=True)
class Ranking:
    """The answer.

    Args:
        entries: those that fit, fastest first, then those that do not; never empty.
        reason: why the first is first, one line.
        num_candidates: how many were looked at.
    """

    entries: tuple[Entry, ...]
    reason: str
    num_candidates: int

    @property
    def first(self) -> Entry:
        return self.entries[0]


def choose(question: Question) -> Ranking:
    """Ranks what can be done with the machine.

    Raises:
        UserError: a layer split of the user's that does not cover the target.
        ValueError: nothing can be placed: too few layers, or options that leave no candidate.
    """
    candidates = candidates_of(question)
    if not candidates:
        raise ValueError(f"nothing to place: {question.num_layers} layers on {question.num_ranks} ranks")
    reference = plain_reference(question)
    plain = expected_tokens_per_s(reference.schedule(), reference.costs, question.acceptance)
    screened = _screened(candidates, question)
    ranked = _ranked([_simulated(candidate, question, plain) for candidate in screened])
    reason = wording.reason(ranked, len(candidates), question.acceptance)
    return Ranking(tuple(ranked), reason, len(candidates))


def _screened(candidates: list[Candidate], question: Question) -> list[Candidate]:
    """The best of each kind, then the best of all; of those that do not fit a few that would be faster."""
    fitting = [c for c in candidates if c.fit.fits]
    others = [c for c in candidates if not c.fit.fits]
    if not fitting:
        # Nothing fits: what lacks least is the best answer there is.
        return sorted(others, key=lambda c: (sum(c.fit.short), -c.screened))[: question.num_simulated]
    first_look = _best(fitting, _NUM_PACED, lambda c: (c.kind, c.placement.verify_interval, c.fit.split))
    second_look = _best([*first_look, *_paced(first_look, question)], question.num_simulated, lambda c: c.kind)
    limit = second_look[0].screened
    faster = _best([c for c in others if c.screened > limit], 0, lambda c: c.kind)
    return [*second_look, *faster[:_NUM_SHORT]]


def _best(candidates: Iterable[Candidate], number: int, group: Callable[[Candidate], object]) -> list[Candidate]:
    """The first of each group and the first `number` of all, fastest first."""
    ordered = sorted(candidates, key=lambda c: -c.screened)
    first_of_group = {group(c): c for c in reversed(ordered)}.values()
    wanted = {id(c) for c in (*first_of_group, *ordered[:number])}
    return [c for c in ordered if id(c) in wanted]


def _paced(candidates: Iterable[Candidate], question: Question) -> Iterator[Candidate]:
    """The same with whole numbers of tokens an interval, near the exact pace: where stages are uneven, or a slot holds
    a pass and a half, another pace than the exact one can be better.
    """
    for candidate in candidates:
        if candidate.strategy is WINDOWS and candidate.placement.gamma is None:
            exact = candidate.placement.verify_interval * TICKS / candidate.schedule().pass_ticks
            for gamma in range(max(1, math.floor(exact) - 1), math.ceil(exact) + 2):
                if gamma != exact:
                    yield candidate.with_gamma(gamma, question.acceptance)


def _simulated(candidate: Candidate, question: Question, plain: float) -> Entry:
    schedule = candidate.schedule()
    speed = expected_tokens_per_s(schedule, candidate.costs, question.acceptance)
    return Entry(
        candidate.strategy.name,
        candidate.placement,
        schedule,
        candidate.costs,
        speed,
        speed / plain,
        candidate.fit.memory,
        candidate.fit.short,
    )


def _ranked(entries: list[Entry]) -> list[Entry]:
    fitting = sorted((e for e in entries if e.fits), key=lambda e: -e.tokens_per_s)
    short = sorted((e for e in entries if not e.fits), key=lambda e: (sum(e.short), -e.tokens_per_s))
    if fitting:
        alike = [e for e in fitting if e.tokens_per_s >= (1 - _ALIKE) * fitting[0].tokens_per_s]
        first = min(alike, key=lambda e: (sum(r.total for r in e.memory), e.placement.gamma is not None))
        fitting.remove(first)
        fitting.insert(0, first)
        short.sort(key=lambda e: -e.tokens_per_s)
    return [*fitting, *short]
