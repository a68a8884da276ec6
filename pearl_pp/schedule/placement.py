"""Where the layers of target and draft live. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Shard:
    """Draft layers [start, end) of one replica on one rank."""

    rank: int
    start: int
    end: int

    @property
    def num_layers(self) -> int:
        return self.end - self.start


Replica = tuple[Shard, ...]


@dataclass(frozen=True)
class Placement:
    """Target layers per rank, draft replicas, entry pattern (DESIGN section 6).

    Args:
        name: the preset or file it came from.
        target: number of target layers per stage; stage s is on rank s.
        replicas: complete copies of the draft, each one shard or several in layer order; empty without a draft.
        fill: F, how many chunks may enter in the first slots after a restart.
        verify_interval: p, slots between two entries after the fill.
        gamma: tokens drafted in p slots; None lets the engine measure it.
        handoff: "ship" or "catchup".
    """

    name: str
    target: tuple[int, ...]
    replicas: tuple[Replica, ...]
    fill: int
    verify_interval: int
    gamma: int | None
    handoff: str

    @property
    def num_stages(self) -> int:
        return len(self.target)

    @property
    def world_size(self) -> int:
        return max([self.num_stages, *(s.rank + 1 for replica in self.replicas for s in replica)])

    def stage_range(self, rank: int) -> tuple[int, int] | None:
        """Target layers [start, end) on `rank`; None on a rank that holds no stage."""
        if rank >= self.num_stages:
            return None
        bounds = [0, *accumulate(self.target)]
        return bounds[rank], bounds[rank + 1]

    def shards_on(self, rank: int) -> dict[int, Shard]:
        """Replica number -> its shard on `rank`."""
        return {i: shard for i, replica in enumerate(self.replicas) for shard in replica if shard.rank == rank}

    @staticmethod
    def from_record(record: dict) -> Placement:
        """What `record` says."""
        replicas = tuple(tuple(Shard(s["rank"], *s["layers"]) for s in replica) for replica in record["replicas"])
        rest = {name: record[name] for name in ("name", "fill", "verify_interval", "gamma", "handoff")}
        return Placement(target=tuple(record["target"]), replicas=replicas, **rest)

    def record(self) -> dict:
        """The same keys as a placement file."""
        return {
            "name": self.name,
            "target": list(self.target),
            "replicas": [[{"rank": s.rank, "layers": [s.start, s.end]} for s in r] for r in self.replicas],
            "fill": self.fill,
            "verify_interval": self.verify_interval,
            "gamma": self.gamma,
            "handoff": self.handoff,
        }
