"""The watch over a running request: where another way of decoding is faster, the next verdict changes to it.

Lives on the last stage's rank and decides alone (DESIGN section 3). It compares what the simulator predicted once,
before the first request, for the acceptance seen of late, corrected by the times measured since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pearl_pp.messages import Change, Outcome, Reason, Verdict
from pearl_pp.planning.modes import Family, describe
from pearl_pp.planning.speed_table import SpeedTable
from pearl_pp.schedule.instructions import Verify
from pearl_pp.schedule.schedule import Schedule

MARGIN = 1.04
"""Another way must be predicted to be so many times as fast: a change drops what has been drafted."""

FIRST_HOLD = 64
"""Tokens decoded plainly before speculation is tried again; doubled each time it has lost again."""

LONGEST_HOLD = 4096

RETRY_VERDICTS = 3
"""A retry costs some tenths of a target pass for each of these: of 64 tokens not more than 2 %."""

_HALF_LIFE = 64.0  # judged tokens after which what was seen before counts half
_FIRST_WEIGHT = 8.0  # judged tokens that the warm-up's acceptance counts for
_MIN_JUDGED = 12  # judged tokens between two changes
_LOOK_EVERY = 8  # judged tokens: a comparison of all modes takes some ten microseconds of the verdict's way
_PATIENCE = 6  # verdicts that accept all before a change drops drafted tokens; at a restart there is nothing to drop
_SETTLING = 2  # verdicts after a change whose times still hold what it cost
_STRETCH_TOKENS = 32  # of one measurement of the speed
_OWN_STRETCHES = 4  # after so many a family's own error is known; what changes later, changes for all of them
_STEP = 0.35  # of a newly measured factor that is believed


class AcceptanceRate:
    """accepted / judged, of late.

    Args:
        rate: what is believed before anything has been judged.
        weight: judged tokens that `rate` counts for.
    """

    def __init__(self, rate: float, weight: float = _FIRST_WEIGHT) -> None:
        self._judged = weight
        self._accepted = rate * self._judged

    @property
    def value(self) -> float:
        return self._accepted / self._judged

    def add(self, accepted: int, judged: int) -> None:
        keep = 0.5 ** (judged / _HALF_LIFE)
        self._accepted = self._accepted * keep + accepted
        self._judged = self._judged * keep + judged

    def forget(self) -> None:
        """What comes next is to count: the past is one token's worth."""
        self._accepted, self._judged = self.value, 1.0


@dataclass
class _Stretch:
    """A measurement under way, since the verdict at `start`."""

    start: float
    num_tokens: int = 0
    accepted: int = 0
    judged: int = 0


class Watcher:
    """Watches all requests of a run and changes the schedule with a verdict.

    Args:
        table: predicted speeds of all ways of decoding.
        factors: measured over predicted time of each family, from the trials.
        current: number of the mode that the next request starts with.
        acceptance: of the trials.
        clock: seconds.
    """

    def __init__(
        self,
        table: SpeedTable,
        factors: Mapping[Family, float],
        current: int,
        acceptance: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.current = current
        self.factors = dict(factors)
        self.acceptance = AcceptanceRate(acceptance)
        self._table = table
        self._clock = clock
        self._num_stretches = dict.fromkeys(Family, 0)
        self._speculative = tuple({mode.family for mode in table.modes} - {Family.PLAIN})
        self._hold = FIRST_HOLD
        self._num_plain_tokens = 0
        self._retries_left = 0
        self._begin_mode()

    def begin_request(self) -> None:
        """The time since the last verdict was not spent on decoding."""
        self._num_verdicts = 0
        self._stretch: _Stretch | None = None

    def decide(self, verify: Verify, verdict: Verdict) -> Verdict:
        """Called with each verdict that goes on; the same verdict, with a change where there is to be one."""
        self._observe(verdict, self._clock())
        change = self._retry(len(verdict.token_ids)) if self._is_plain else self._choice(verdict)
        return verdict if change is None else replace(verdict, change=change)

    @property
    def _family(self) -> Family:
        return self._table.modes[self.current].family

    @property
    def _is_plain(self) -> bool:
        return self._family is Family.PLAIN

    def _begin_mode(self) -> None:
        self._judged_since_change = self._judged_since_look = 0
        self._num_accepting = 0
        self._num_plain_tokens = 0
        self.begin_request()

    # -- what is seen

    def _observe(self, verdict: Verdict, now: float) -> None:
        judged = verdict.num_accepted + (verdict.outcome is Outcome.REJECTED)
        self.acceptance.add(verdict.num_accepted, judged)
        self._judged_since_change += judged
        self._judged_since_look += judged
        self._num_accepting = 0 if verdict.restarts else self._num_accepting + 1
        self._num_verdicts += 1
        if self._num_verdicts <= _SETTLING:
            self._stretch = _Stretch(now)
        if self._stretch is None or self._num_verdicts <= _SETTLING:
            return
        self._stretch.num_tokens += len(verdict.token_ids)
        self._stretch.accepted += verdict.num_accepted
        self._stretch.judged += judged
        if self._stretch.num_tokens >= _STRETCH_TOKENS:
            self._correct(self._stretch, now)
            self._stretch = _Stretch(now)

    def _correct(self, stretch: _Stretch, now: float) -> None:
        """Moves the factors towards what has just been measured."""
        family = self._family
        if not self._is_plain and stretch.judged == 0:  # the draft is at its end: this was plain decoding
            return
        acceptance = stretch.accepted / stretch.judged if stretch.judged else 0.0
        expected = self._table.seconds_per_token(self.current, acceptance) * self.factors[family]
        error = (now - stretch.start) / stretch.num_tokens / expected
        step = min(2.0, max(0.5, error)) ** _STEP
        self._num_stretches[family] += 1
        is_its_own = self._num_stretches[family] <= _OWN_STRETCHES
        for each in (family,) if is_its_own else self.factors:
            self.factors[each] *= step

    # -- what is decided

    def _retry(self, num_tokens: int) -> Change | None:
        """From plain decoding back to speculation, for a few verdicts at first."""
        self._num_plain_tokens += num_tokens
        if not self._speculative or self._num_plain_tokens < self._hold:
            return None
        hopeful = (1.0 + self.acceptance.value) / 2
        self.acceptance.forget()
        self._retries_left = RETRY_VERDICTS
        return self._to(self._table.best(hopeful, self.factors, self._speculative), Reason.RETRY)

    def _choice(self, verdict: Verdict) -> Change | None:
        """Another mode where it is faster by a margin, if enough has been seen of this one."""
        retried = self._retries_left > 0
        if retried:
            self._retries_left -= 1
            if self._retries_left > 0:
                return None
        elif not self._is_time_to_look(verdict):
            return None
        self._judged_since_look = 0
        acceptance = self.acceptance.value
        best = self._table.best(acceptance, self.factors)
        is_faster = self._expected(best) * (1.0 if retried else MARGIN) < self._expected(self.current)
        if is_faster or (best != self.current and self._table.is_refuted(self.current, acceptance, self.factors)):
            if self._table.modes[best].family is not Family.PLAIN:
                return self._to(best, Reason.FASTER)
            self._hold = min(2 * self._hold, LONGEST_HOLD) if retried else FIRST_HOLD
            return self._to(best, Reason.LOSES, self._hold)
        return None

    def _is_time_to_look(self, verdict: Verdict) -> bool:
        is_enough = self._judged_since_change >= _MIN_JUDGED and self._judged_since_look >= _LOOK_EVERY
        return is_enough and (verdict.restarts or self._num_accepting >= _PATIENCE)

    def _expected(self, number: int) -> float:
        """Seconds a token."""
        return self._table.expected(number, self.acceptance.value, self.factors)

    def _to(self, number: int, reason: Reason, hold: int = 0) -> Change:
        self.current = number
        self._begin_mode()
        change = self._table.modes[number].schedule.as_change()
        return replace(change, reason=reason, acceptance=round(1000 * self.acceptance.value), hold=hold)


def explain(change: Change, schedule: Schedule) -> str:
    """A change in one line, for people. `schedule`: as it is from now on."""
    acceptance = f"acceptance {change.acceptance / 1000:.2f}"
    match change.reason:
        case Reason.LOSES:
            return f"speculation loses here ({acceptance}): decoding goes plain for {change.hold} tokens"
        case Reason.RETRY:
            return f"speculation is tried again: {describe(schedule)}"
        case Reason.FASTER:
            return f"{acceptance}: {describe(schedule)} is faster here"
        case Reason.PACE:
            return f"passes have been measured: {describe(schedule)}"
