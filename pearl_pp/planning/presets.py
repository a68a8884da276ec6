"""Named placements (DESIGN section 6): each is a function from the number of ranks to a place for the draft."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from pearl_pp.config import RunConfig, read_placement_file
from pearl_pp.config.strategies import STRATEGIES
from pearl_pp.errors import UserError
from pearl_pp.planning.coverage import tokens_per_window
from pearl_pp.planning.partition import checked_split, split_layers
from pearl_pp.planning.replica_sets import replica_sets
from pearl_pp.schedule.placement import Placement, Replica, Shard

# Before anything is measured; near the best gamma of the paper's pairs (its Table 6 and scripts: 3 to 5).
FIRST_GAMMA = 4


class _Draft(NamedTuple):
    """Where a preset puts the draft: how many ranks are stages, and the replicas."""

    num_stages: int
    replicas: tuple[Replica, ...]


def _whole(rank: int, num_layers: int) -> Replica:
    return (Shard(rank, 0, num_layers),)


def _no_draft(num_ranks: int, num_layers: int, interval: int | None) -> _Draft:
    return _Draft(num_ranks, ())


def _first_rank(num_ranks: int, num_layers: int, interval: int | None) -> _Draft:
    """`sd`: draft and target take turns, so any rank would do."""
    return _Draft(num_ranks, (_whole(0, num_layers),))


def _dedicated(num_ranks: int, num_layers: int, interval: int | None) -> _Draft:
    if num_ranks < 2:
        raise UserError("--placement", "dedicated", "needs 2 ranks at least, one of them for the draft alone")
    return _Draft(num_ranks - 1, (_whole(num_ranks - 1, num_layers),))


def _single(num_ranks: int, num_layers: int, interval: int | None) -> _Draft:
    return _Draft(num_ranks, (_whole(num_ranks - 1, num_layers),))


def _hop(num_ranks: int, num_layers: int, interval: int | None) -> _Draft:
    ranks = dict.fromkeys((num_ranks - 1, 0))  # one rank alone needs one copy
    return _Draft(num_ranks, tuple(_whole(rank, num_layers) for rank in ranks))


def _pipelined(num_ranks: int, num_layers: int, interval: int | None) -> _Draft:
    """Two replicas on ranks that are busy in different slots: rank r is busy in the slots congruent to r modulo p."""
    interval = interval or default_interval(num_ranks)
    last = num_ranks - 1
    others = [rank for rank in range(last) if rank % interval != last % interval]
    replicas = [_whole(last, num_layers), *(_whole(rank, num_layers) for rank in others[:1])]
    return _Draft(num_ranks, tuple(replicas))


def _sharded(num_ranks: int, num_layers: int, interval: int | None) -> _Draft:
    """One replica cut over as many ranks as it has layers for, in the order that loses the fewest slots."""
    num_shards = min(num_ranks, num_layers)
    if num_shards < 2:
        reason = f"needs 2 ranks and 2 draft layers at least, here {num_ranks} and {num_layers}"
        raise UserError("--placement", "sharded", reason)
    bounds = [num_layers * i // num_shards for i in range(num_shards + 1)]
    candidates = []
    for first in range(num_ranks):
        for step in (-1, 1):
            ranks = [(first + step * i) % num_ranks for i in range(num_shards)]
            shards = [Shard(rank, a, b) for rank, (a, b) in zip(ranks, pairwise(bounds), strict=True)]
            candidates.append(tuple(shards))
    best = max(candidates, key=lambda replica: tokens_per_window(num_ranks, (replica,), interval or num_ranks))
    return _Draft(num_ranks, (best,))


def _auto(num_ranks: int, num_layers: int, interval: int | None) -> _Draft:
    """All that any way of decoding may use, where memory allows."""
    return _Draft(num_ranks, next(replica_sets(num_ranks, num_layers)))


_Preset = Callable[[int, int, int | None], _Draft]

_PRESETS: dict[str, _Preset] = {
    "auto": _auto,
    "dedicated": _dedicated,
    "single": _single,
    "hop": _hop,
    "pipelined": _pipelined,
    "sharded": _sharded,
}
# Where there is no placement to choose: the name it then has, and the place.
_WITHOUT_PLACEMENT = {"ar": _no_draft, "sd": _first_rank}


def default_interval(num_stages: int) -> int:
    """p of `pipelined` where the user names none: a chunk every other slot, and each rank is free in between."""
    return min(2, num_stages)


def default_fill(num_stages: int) -> int:
    """F of `pipelined` where the user names none: the pipeline is filled, but for three stages, where it costs more
    draft time than it gains at the usual acceptance (simulated, c = 8).
    """
    return {1: 1, 2: 2, 3: 1}.get(num_stages, num_stages - 1)


def resolve_placement(config: RunConfig, num_ranks: int, target_layers: int, draft_layers: int) -> Placement:
    """The placement that `config` asks for on `num_ranks` ranks.

    Args:
        target_layers, draft_layers: layers of the two models; draft_layers is 0 without a draft.

    Raises:
        UserError: what was asked for does not fit the models or the ranks.
    """
    if config.names_placement_file:
        return _from_file(config, num_ranks, target_layers, draft_layers)
    name, preset = _named(config)
    wanted = None if config.verify_interval == "auto" else config.verify_interval
    draft = preset(num_ranks, draft_layers, wanted)
    num_stages = draft.num_stages
    if config.layer_split is None:
        loaded = {shard.rank for replica in draft.replicas for shard in replica}
        target = split_layers(target_layers, num_stages, loaded)
    else:
        target = checked_split(config.layer_split, target_layers, num_stages, "--layer-split")
    interval = wanted or (default_interval(num_stages) if name == "pipelined" else num_stages)
    default = default_fill(num_stages) if name == "pipelined" else 1
    fill = default if config.fill == "auto" else config.fill
    _check_range("--verify-interval", interval, num_stages)
    _check_range("--fill", fill, num_stages)
    return Placement(name, target, draft.replicas, fill, interval, _gamma(config.gamma), _handoff(config.handoff))


def _named(config: RunConfig) -> tuple[str, _Preset]:
    """The name of the placement that runs, and its preset."""
    is_free = config.placement == "auto"
    if config.strategy in _WITHOUT_PLACEMENT and (is_free or not STRATEGIES[config.strategy].drafts):
        return config.strategy, _WITHOUT_PLACEMENT[config.strategy]
    name = "hop" if is_free and not config.adapts else config.placement
    return name, _PRESETS[name]


def _from_file(config: RunConfig, num_ranks: int, target_layers: int, draft_layers: int) -> Placement:
    path = config.placement
    content = read_placement_file(path)
    num_stages = len(content.target)
    target = config.layer_split or content.target
    blamed = "--layer-split" if config.layer_split else f"--placement {path} target"
    target = checked_split(target, target_layers, num_stages, blamed)
    drafts = STRATEGIES[config.strategy].drafts
    replicas = tuple(
        tuple(Shard(entry.rank, *entry.layers) for entry in replica) for replica in (content.replicas if drafts else ())
    )
    if drafts and not replicas:
        raise UserError("--placement", path, f"replicas: none, but --strategy {config.strategy} needs a draft")
    for number, replica in enumerate(replicas):
        if replica[-1].end != draft_layers:
            reason = f"replicas[{number}]: has {replica[-1].end} layers, the draft has {draft_layers}"
            raise UserError("--placement", path, reason)
    interval = _first_set(config.verify_interval, content.verify_interval, num_stages)
    fill = _first_set(config.fill, content.fill, 1)
    _check_range(f"--placement {path} verify_interval", interval, num_stages)
    _check_range(f"--placement {path} fill", fill, num_stages)
    gamma = _gamma(config.gamma) or _gamma(content.gamma)
    handoff = _handoff(content.handoff if config.handoff == "auto" else config.handoff)
    placement = Placement(path, target, replicas, fill, interval, gamma, handoff)
    if placement.world_size != num_ranks:
        reason = f"is for {placement.world_size} ranks, this run has {num_ranks}"
        raise UserError("--placement", path, reason)
    return placement


def _first_set(*values: int | str) -> int:
    return next(value for value in values if isinstance(value, int))


def _check_range(option: str, value: int, num_stages: int) -> None:
    if not 1 <= value <= num_stages:
        raise UserError(option, value, f"must be between 1 and the number of stages, {num_stages}")


def _gamma(value: int | str) -> int | None:
    return value if isinstance(value, int) else None


def _handoff(value: str) -> str:
    """`auto`: the tokens are fed again. A pass over a few tokens costs little more than one over a single token, and
    on two cores the two messages fewer of a window are worth more (`pearl-pp bench overhead --handoff`).
    """
    return "catchup" if value == "auto" else value
