"""What `auto` loads of the draft: as much as any way of decoding may use, or less where memory is tight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from pearl_pp.planning.partition import split_layers
from pearl_pp.schedule.placement import Placement, Replica, Shard


def replica_sets(num_ranks: int, num_layers: int) -> Iterator[tuple[Replica, ...]]:
    """Sets of replicas, the most useful first, the last without a draft.

    The last rank is free for longest after a restart, rank 0 before a chunk enters. Where both are busy in the same
    slots at p = 2, which is so for an odd number of ranks, a third copy on the rank before the last one draws level.
    """
    last = num_ranks - 1
    whole = {rank: ((Shard(rank, 0, num_layers),),) for rank in range(num_ranks)}
    between = whole[last - 1] if num_ranks > 2 and num_ranks % 2 else ()
    first = whole[0] if last else ()
    yield from dict.fromkeys((whole[last] + first + between, whole[last] + first))
    yield from (whole[rank] for rank in dict.fromkeys((last, 0, *range(num_ranks))))
    num_shards = min(num_ranks, num_layers)
    if num_shards > 1:  # one copy cut over the last ranks, which a chunk reaches last
        bounds = [num_layers * i // num_shards for i in range(num_shards + 1)]
        yield (tuple(Shard(last - i, a, b) for i, (a, b) in enumerate(pairwise(bounds))),)
    yield ()


def lighter(placement: Placement, split: tuple[int, ...] | None) -> Iterator[Placement]:
    """`placement`, then what holds less of the draft.

    Args:
        split: target layers that the user wants on each rank; None spreads them anew each time.
    """
    num_layers = placement.replicas[0][-1].end
    for replicas in dict.fromkeys((placement.replicas, *replica_sets(placement.world_size, num_layers))):
        loaded = {shard.rank for replica in replicas for shard in replica}
        target = split or split_layers(sum(placement.target), placement.num_stages, loaded)
        yield replace(placement, target=target, replicas=replicas)
