"""How many target layers each stage gets."""

from __future__ import annotations

from collections.abc import Collection

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
