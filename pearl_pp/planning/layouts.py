"""Where the draft can live beside how many stages, and the target layers that then fit on each rank."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise

from pearl_pp.planning.memory import RankBytes, planned_bytes
from pearl_pp.planning.partition import (
    Card,
    Layer,
    checked_split,
    least_bottleneck,
    least_shortage,
    least_total,
    split_layers,
)
from pearl_pp.planning.question import Question
from pearl_pp.schedule.placement import Placement, Replica, Shard

# All pairs and triples of so many ranks are tried; of more ranks those with the last one or rank 0, which are free for
# longest after a restart and before the next chunk.
_FEW_RANKS = 6


@dataclass(frozen=True)
class Layout:
    """Replicas of the draft beside `num_stages` stages; none of them for plain decoding."""

    num_stages: int
    replicas: tuple[Replica, ...]

    @property
    def is_alone(self) -> bool:
        """Whether the draft has a rank of its own."""
        return any(shard.rank >= self.num_stages for replica in self.replicas for shard in replica)

    @property
    def is_sharded(self) -> bool:
        return any(len(replica) > 1 for replica in self.replicas)

    @property
    def ranks(self) -> frozenset[int]:
        return frozenset(shard.rank for replica in self.replicas for shard in replica)

    def with_split(self, split: tuple[int, ...]) -> Placement:
        """Without an entry pattern yet."""
        return Placement("planned", split, self.replicas, 1, self.num_stages, None, "catchup")


@dataclass(frozen=True)
class Fit:
    """Target layers of a layout's stages, and what each rank then holds.

    Args:
        short: bytes that are missing on each rank; all 0 where it fits.
    """

    layout: Layout
    split: tuple[int, ...]
    memory: tuple[RankBytes, ...]
    short: tuple[int, ...]

    @property
    def fits(self) -> bool:
        return not any(self.short)


def whole_layouts(num_ranks: int, draft_layers: int) -> Iterator[Layout]:
    """The draft alone on the last rank, and one to three complete replicas beside the target."""
    whole = [(Shard(rank, 0, draft_layers),) for rank in range(num_ranks)]
    if num_ranks > 1:
        yield Layout(num_ranks - 1, (whole[-1],))
    for size in (1, 2, 3):
        for ranks in combinations(range(num_ranks - 1, -1, -1), size):
            if num_ranks <= _FEW_RANKS or len(set(ranks) & {0, num_ranks - 1}) >= size - 1:
                yield Layout(num_ranks, tuple(whole[rank] for rank in ranks))


def sharded_layouts(num_ranks: int, draft_layers: int, num_shards: int) -> Iterator[Layout]:
    """One replica or two, cut over `num_shards` ranks, in both directions around the ranks."""
    bounds = [draft_layers * i // num_shards for i in range(num_shards + 1)]
    for step in (-1, 1):
        cut: list[Replica] = []
        for first in range(num_ranks - 1, -1, -1):
            ring = [(first + step * i) % num_ranks for i in range(num_shards)]
            cut.append(tuple(Shard(rank, a, b) for rank, (a, b) in zip(ring, pairwise(bounds), strict=True)))
        yield from (Layout(num_ranks, (replica,)) for replica in cut)
        # A second replica that starts half a round later is free where the first one waits.
        half = num_ranks // 2
        yield from (Layout(num_ranks, pair) for pair in zip(cut, [*cut[half:], *cut[:half]], strict=True))


def fits_of(question: Question, layout: Layout) -> list[Fit]:
    """The splits worth comparing: least time of a pass, shortest slowest stage, even; or the one that lacks least.

    Empty where there are fewer layers than stages, or the user's split is for another number of stages.

    Raises:
        UserError: a split of the user's that does not cover the target.
    """
    wanted = question.wanted.layer_split
    if layout.num_stages > question.num_layers:
        return []
    if wanted is not None:
        if len(wanted) != layout.num_stages:
            return []
        split = checked_split(wanted, question.num_layers, layout.num_stages, "--layer-split")
        return [fit_of(question, layout, split)]
    even = fit_of(question, layout, split_layers(question.num_layers, layout.num_stages, layout.ranks))
    cut = [_shrunk(question, layout, solve, even) for solve in (least_total, least_bottleneck)]
    cut += [_shrunk(question, layout, partial(least_total, slowest_s=limit), even) for limit in _between(question, cut)]
    found = {fit.split: fit for fit in (*cut, even) if fit is not None and fit.fits}
    return list(found.values()) or [_closest(question, layout, even)]


_NUM_BETWEEN = 4


def _between(question: Question, cut: Sequence[Fit | None]) -> list[float]:
    """Times of the slowest stage between those of the two best splits: where drafts and chunks share the ranks, the
    best of all is neither.
    """
    longest, shortest = (fit and _slowest_s(question, fit) for fit in cut)
    if longest is None or shortest is None or longest <= shortest:
        return []
    step = (longest - shortest) / (_NUM_BETWEEN + 1)
    return [shortest + step * number for number in range(1, _NUM_BETWEEN + 1)]


def _slowest_s(question: Question, fit: Fit) -> float:
    """Seconds of the slowest stage."""
    times = enumerate(fit.split)
    return max(question.profile.target_pass_s(rank, num_layers, 1) for rank, num_layers in times)


def fit_of(question: Question, layout: Layout, split: tuple[int, ...]) -> Fit:
    """Counts a split."""
    placement = layout.with_split(split)
    memory = planned_bytes(placement, question.target, question.draft, question.max_len, question.fixed)
    short = [max(0, round(held.total - there)) for held, there in zip(memory, question.memory, strict=False)]
    return Fit(layout, split, tuple(memory), tuple(short))


_ROUNDS = 8
_Solver = Callable[[Sequence[Layer], Sequence[Card], Collection[int]], tuple[int, ...] | None]


def _shrunk(question: Question, layout: Layout, solve: _Solver, reference: Fit) -> Fit | None:
    """The best split by `solve`. What a rank holds beside layers depends a little on the layers (work space): it is
    taken to grow evenly from the reference on, and a rank that comes out too full gets less room.
    """
    layers = _layers(question, reference)
    rooms = _rooms(question, reference)
    for _ in range(_ROUNDS):
        split = solve(layers, _cards(question, rooms), layout.ranks)
        if split is None:
            return None
        fit = fit_of(question, layout, split)
        if fit.fits:
            return fit
        rooms = [room - short for room, short in zip(rooms, fit.short, strict=False)]
    return None


def _closest(question: Question, layout: Layout, reference: Fit) -> Fit:
    split = least_shortage(_layers(question, reference), _cards(question, _rooms(question, reference)))
    return reference if split is None else fit_of(question, layout, split)


def _rooms(question: Question, reference: Fit) -> list[float]:
    """Bytes left for layers and their KV entries on each rank that has a stage."""
    placement, layers = reference.layout.with_split(reference.split), _layers(question, reference)
    rooms = []
    for rank in range(placement.num_stages):
        start, end = placement.stage_range(rank) or (0, 0)
        beside = reference.memory[rank].total - sum(layer.num_bytes for layer in layers[start:end])
        rooms.append(question.memory[rank] - beside)
    return rooms


def _cards(question: Question, rooms: Iterable[float]) -> list[Card]:
    speeds: Sequence[float] = question.profile.ranks.speed
    return [Card(room, speeds[rank]) for rank, room in enumerate(rooms)]


def _layers(question: Question, reference: Fit) -> list[Layer]:
    seconds = question.profile.target.pass_s(1, question.profile.prefill_tokens_per_s) / question.num_layers
    kv = question.target.kv_of(0, 1, question.max_len) + _growth(question, reference)
    return [Layer(weights + kv, seconds) for weights in question.target.layers]


def _growth(question: Question, reference: Fit) -> int:
    """Work space that a further layer brings along: a cache that grows is copied whole."""
    split = list(reference.split)
    giver = max(range(len(split)), key=split.__getitem__)
    taker = next((rank for rank in range(len(split)) if rank != giver), giver)
    if split[giver] < 2 or taker == giver:
        return 0
    split[giver], split[taker] = split[giver] - 1, split[taker] + 1
    moved = fit_of(question, reference.layout, tuple(split))
    return max(0, moved.memory[taker].work_space - reference.memory[taker].work_space)
