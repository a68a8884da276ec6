"""The layers of a placement whose use is decided: cut so that it is fastest, on cards that differ."""

from __future__ import annotations

from dataclasses import replace

from pearl_pp.planning.candidates import STRATEGIES
from pearl_pp.planning.layouts import Layout, fits_of
from pearl_pp.planning.prediction import expected_tokens_per_s
from pearl_pp.planning.question import Question
from pearl_pp.schedule.placement import Placement
from pearl_pp.simulation.costs import ProfileCosts


def best_split(question: Question, placement: Placement) -> Placement | None:
    """`placement` with the split that is predicted to be fastest, of those worth comparing; None where none fits.

    Neither the least time of a pass nor the shortest slowest stage decides: the draft works in slots, and slots last
    as long as the stages do.
    """
    (strategy,) = question.wanted.strategies if placement.replicas else ("ar",)

    def speed(cut: Placement) -> float:
        costs = ProfileCosts(question.profile, cut)
        return expected_tokens_per_s(STRATEGIES[strategy].schedule(cut, costs), costs, question.acceptance)

    fits = [fit for fit in fits_of(question, Layout(placement.num_stages, placement.replicas)) if fit.fits]
    cuts = [replace(placement, target=fit.split) for fit in fits]
    return max(cuts, key=speed) if cuts else None
