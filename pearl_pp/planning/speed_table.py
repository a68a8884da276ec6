"""How fast each way of decoding is predicted to be, by acceptance: simulated once, read off while a run goes on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pearl_pp.planning.modes import Family, Mode
from pearl_pp.schedule.schedule import Schedule
from pearl_pp.simulation.expectation import simulated_cycle
from pearl_pp.simulation.simulator import CostModel

GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98)
"""Acceptance rates for which speeds are predicted; between them the time of a token is interpolated."""

# Of a simulated cycle: at acceptance .95 one in 27 is longer, and goes on as it did at its end.
_MAX_TOKENS = 64


@dataclass(frozen=True)
class SpeedTable:
    """Predicted seconds a token of every mode, by acceptance.

    Args:
        seconds: a row for each mode, an entry for each acceptance of `GRID`.
    """

    modes: tuple[Mode, ...]
    seconds: tuple[tuple[float, ...], ...]

    def seconds_per_token(self, number: int, acceptance: float) -> float:
        """Of mode `number`; between two acceptance rates on the straight line."""
        row = self.seconds[number]
        left = max(0, min(bisect_right(GRID, acceptance), len(GRID) - 1) - 1)
        share = (acceptance - GRID[left]) / (GRID[left + 1] - GRID[left])
        return row[left] + (row[left + 1] - row[left]) * min(1.0, max(0.0, share))

    def best(self, acceptance: float, factors: Mapping[Family, float], families: Iterable[Family] = Family) -> int:
        """Number of the mode with the least seconds a token, of those in `families`.

        Args:
            factors: measured over predicted time of each family.
        """
        wanted = [*families]
        numbers = [number for number, mode in enumerate(self.modes) if mode.family in wanted]
        first = min(numbers, key=lambda number: self.expected(number, acceptance, factors))
        return self._plain if self._plain in numbers and self.is_refuted(first, acceptance, factors) else first

    def expected(self, number: int, acceptance: float, factors: Mapping[Family, float]) -> float:
        """Seconds a token of mode `number`, corrected by what was measured, and never below what is possible."""
        return max(self._corrected(number, acceptance, factors), self._least(acceptance, factors))

    def is_refuted(self, number: int, acceptance: float, factors: Mapping[Family, float]) -> bool:
        """Whether mode `number` seems to be faster than can be: then some measurement was disturbed.

        Only decoding plainly tells what that really takes.
        """
        return self._corrected(number, acceptance, factors) < self._least(acceptance, factors)

    def _corrected(self, number: int, acceptance: float, factors: Mapping[Family, float]) -> float:
        return self.seconds_per_token(number, acceptance) * factors[self.modes[number].family]

    def _least(self, acceptance: float, factors: Mapping[Family, float]) -> float:
        """Speculation gives at most 1/(1 - acceptance) tokens in the time of a target pass."""
        if self._plain is None:
            return 0.0
        return self._corrected(self._plain, acceptance, factors) * (1.0 - acceptance)

    @cached_property
    def _plain(self) -> int | None:
        """Number of plain decoding, where it is one of the modes."""
        return next((number for number, mode in enumerate(self.modes) if mode.family is Family.PLAIN), None)

    def number_of(self, schedule: Schedule) -> int:
        """The mode that decodes as `schedule` does; ValueError where there is none."""
        return [mode.schedule.as_change() for mode in self.modes].index(schedule.as_change())


def speed_table(candidates: Sequence[Mode], costs: CostModel) -> SpeedTable:
    """Simulates every candidate once."""
    cycles = [simulated_cycle(mode.schedule, costs, _MAX_TOKENS) for mode in candidates]
    return SpeedTable(tuple(candidates), tuple(tuple(1.0 / cycle.tokens_per_s(a) for a in GRID) for cycle in cycles))
