"""How many target layers each stage gets: evenly, by hand, or where memory and speed allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import NamedTuple

from pearl_pp.errors import UserError


def split_layers(num_layers: int, num_stages: int, loaded_ranks: Collection[int] = ()) -> tuple[int, ...]:
    """An even split; what is left over goes first to ranks that carry nothing else (no replica, not the head).

    Raises:
        UserError: a stage would be empty.
    """
    if num_layers < num_stages:
        reason = f"the target has {num_layers} layers, too few for {num_stages} pipeline stages; start fewer ranks"
        raise UserError("--nproc-per-node", num_stages, reason)
    base, extra = divmod(num_layers, num_stages)
    last = num_stages - 1
    order = sorted(range(num_stages), key=lambda rank: (rank in loaded_ranks, rank == last, rank))
    larger = set(order[:extra])
    return tuple(base + (rank in larger) for rank in range(num_stages))


def checked_split(split: tuple[int, ...], num_layers: int, num_stages: int, option: str) -> tuple[int, ...]:
    """A split given by the user; raises UserError if it does not cover the target exactly."""
    shown = ",".join(map(str, split))
    if len(split) != num_stages:
        raise UserError(option, shown, f"has {len(split)} stages, this run has {num_stages}")
    if sum(split) != num_layers:
        raise UserError(option, shown, f"has {sum(split)} layers, the target has {num_layers}")
    return split


class Layer(NamedTuple):
    """A target layer: bytes of its weights and KV entries; seconds of its part of a pass at speed 1."""

    num_bytes: int
    seconds: float


class Card(NamedTuple):
    """A rank that gets a stage: bytes left for layers, and how fast it is."""

    num_bytes: float
    speed: float


def least_total(
    layers: Sequence[Layer],
    cards: Sequence[Card],
    loaded_ranks: Collection[int] = (),
    slowest_s: float = math.inf,
) -> tuple[int, ...] | None:
    """The split with the least time of a whole pass; of several, the one with the shortest slowest stage.

    Best where one chunk is in flight. Exact. Of ranks that are alike, `loaded_ranks` get the smaller stages.

    Args:
        slowest_s: no stage may take longer, in seconds.

    Returns:
        layers of each rank, at least one; None where no split fits.
    """
    limit = slowest_s if math.isinf(slowest_s) else math.ceil(slowest_s * _PER_SECOND)
    return _within_memory(partial(_least_total, limit=limit), tuple(layers), tuple(cards), loaded_ranks)


def least_bottleneck(
    layers: Sequence[Layer], cards: Sequence[Card], loaded_ranks: Collection[int] = ()
) -> tuple[int, ...] | None:
    """The split whose slowest stage is fastest; of several, the one with the least time of a whole pass.

    Best where several chunks are in flight. Otherwise as `least_total`.
    """
    return _within_memory(_least_bottleneck, tuple(layers), tuple(cards), loaded_ranks)


def least_shortage(layers: Sequence[Layer], cards: Sequence[Card]) -> tuple[int, ...] | None:
    """The split that lacks the fewest bytes in all; of several, the one with the shortest slowest stage.

    Returns:
        None where there are fewer layers than ranks.
    """
    costs = _Costs(tuple(layers), tuple(cards))

    def lacking(rank: int, start: int, end: int) -> _Value | None:
        missing = max(0.0, costs.bytes(start, end) - cards[rank].num_bytes)
        return math.ceil(missing), costs.time(rank, start, end)

    return _search(costs, lacking)


_Solver = Callable[[tuple[Layer, ...], tuple[Card, ...]], tuple[int, ...] | None]


def _within_memory(
    solve: _Solver, layers: tuple[Layer, ...], cards: tuple[Card, ...], loaded_ranks: Collection[int]
) -> tuple[int, ...] | None:
    """What is best without limits and keeps them is best; that is known for most sets of cards already."""
    if sum(max(0.0, card.num_bytes) for card in cards) < sum(layer.num_bytes for layer in layers):
        return None
    unlimited = solve(layers, tuple(card._replace(num_bytes=math.inf) for card in cards))
    for split in (unlimited and _relieve(unlimited, layers, cards, loaded_ranks), unlimited):
        if split is not None and _fits(split, layers, cards):
            return split
    limited = solve(layers, cards)
    if limited is None:
        return None
    relieved = _relieve(limited, layers, cards, loaded_ranks)
    return relieved if _fits(relieved, layers, cards) else limited


def _fits(split: tuple[int, ...], layers: tuple[Layer, ...], cards: tuple[Card, ...]) -> bool:
    bounds = [0, *accumulate(split)]
    return all(
        sum(layer.num_bytes for layer in layers[a:b]) <= card.num_bytes
        for (a, b), card in zip(pairwise(bounds), cards, strict=True)
    )


def _relieve(
    split: tuple[int, ...], layers: tuple[Layer, ...], cards: tuple[Card, ...], loaded_ranks: Collection[int]
) -> tuple[int, ...]:
    """Among equally fast ranks the larger stages go to those that carry nothing else (no replica, not the head)."""
    if len(set(layers)) > 1:
        return split
    last = len(split) - 1
    relieved = list(split)
    for speed in {card.speed for card in cards}:
        alike = [rank for rank, card in enumerate(cards) if card.speed == speed]
        sizes = sorted((split[rank] for rank in alike), reverse=True)
        for rank, size in zip(sorted(alike, key=lambda r: (r in loaded_ranks, r == last, r)), sizes, strict=True):
            relieved[rank] = size
    return tuple(relieved)


@lru_cache(maxsize=1024)
def _least_total(layers: tuple[Layer, ...], cards: tuple[Card, ...], limit: float) -> tuple[int, ...] | None:
    costs = _Costs(layers, cards)

    def value(rank: int, start: int, end: int) -> _Value | None:
        seconds = costs.time(rank, start, end)
        return (seconds, seconds) if seconds <= limit and costs.fits(rank, start, end) else None

    return _search(costs, value)


@lru_cache(maxsize=1024)
def _least_bottleneck(layers: tuple[Layer, ...], cards: tuple[Card, ...]) -> tuple[int, ...] | None:
    costs = _Costs(layers, cards)

    def slowest(rank: int, start: int, end: int) -> _Value | None:
        return (0, costs.time(rank, start, end)) if costs.fits(rank, start, end) else None

    split = _search(costs, slowest)
    if split is None:
        return None
    bounds = [0, *accumulate(split)]
    limit = max(costs.time(rank, a, b) for rank, (a, b) in enumerate(pairwise(bounds)))
    return _least_total(layers, cards, limit)


_Value = tuple[int, int]
_PER_SECOND = 10**12  # whole picoseconds: sums of equal times are equal


class _Costs:
    """Bytes and time of layers [start, end) on a rank."""

    def __init__(self, layers: tuple[Layer, ...], cards: tuple[Card, ...]) -> None:
        self.num_layers = len(layers)
        self.num_ranks = len(cards)
        self._rooms = [card.num_bytes for card in cards]
        self._bytes = [0, *accumulate(layer.num_bytes for layer in layers)]
        self._times = [
            [0, *accumulate(round(layer.seconds / card.speed * _PER_SECOND) for layer in layers)] for card in cards
        ]

    def bytes(self, start: int, end: int) -> int:
        return self._bytes[end] - self._bytes[start]

    def time(self, rank: int, start: int, end: int) -> int:
        return self._times[rank][end] - self._times[rank][start]

    def fits(self, rank: int, start: int, end: int) -> bool:
        return self._bytes[end] - self._bytes[start] <= self._rooms[rank]


def _search(costs: _Costs, value: Callable[[int, int, int], _Value | None]) -> tuple[int, ...] | None:
    """Dynamic programming over (rank, layers given so far): least (sum of the firsts, largest of the seconds).

    `value(rank, start, end)` is that of one stage, None where it is not allowed; then no longer one is either.
    """
    best: dict[int, tuple[int, int, tuple[int, ...]]] = {0: (0, 0, ())}
    for rank in range(costs.num_ranks):
        found: dict[int, tuple[int, int, tuple[int, ...]]] = {}
        for end in range(rank + 1, costs.num_layers - (costs.num_ranks - rank - 1) + 1):
            for start in range(end - 1, rank - 1, -1):
                stage = value(rank, start, end)
                if stage is None:
                    break
                if start not in best:
                    continue
                total, largest, split = best[start]
                key = (total + stage[0], max(largest, stage[1]))
                if end not in found or key < found[end][:2]:
                    found[end] = (*key, (*split, end - start))
        best = found
    return best[costs.num_layers][2] if costs.num_layers in best else None
