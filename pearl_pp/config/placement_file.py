"""A placement written by hand: the YAML file, read and checked (DESIGN section 6)."""

from collections.abc import Collection
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pearl_pp.config.reading import Place, fault_in_file, read_yaml
from pearl_pp.config.run_config import AutoOrCount, AutoOrGamma, Handoff, PositiveInt
from pearl_pp.errors import UserError

Layer = Annotated[int, Field(ge=0)]


class ShardEntry(BaseModel):
    """Draft layers [layers[0], layers[1]) on one rank."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    rank: int = Field(ge=0)
    layers: tuple[Layer, Layer] = Field(strict=False)


Replicas = tuple[tuple[ShardEntry, ...], ...]


class PlacementFile(BaseModel):
    """What a placement file says; whether it fits the models and the ranks is for planning to check.

    `plan.placement` in a run's record has the same keys: it can be copied into a file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = None
    target: tuple[PositiveInt, ...] = Field(min_length=1)
    replicas: Replicas = ()
    fill: AutoOrCount = "auto"
    verify_interval: AutoOrCount = "auto"
    gamma: AutoOrGamma = "auto"
    handoff: Handoff = "auto"

    @field_validator("gamma", mode="before")
    @classmethod
    def _unset_is_auto(cls, value: object) -> object:
        return "auto" if value is None else value

    @field_validator("replicas")
    @classmethod
    def _whole_replicas(cls, replicas: Replicas) -> Replicas:
        """Shards in layer order; every replica whole and of the same length."""
        ordered = tuple(tuple(sorted(replica, key=lambda shard: shard.layers)) for replica in replicas)
        ends = [_end_of_replica(f"replicas[{number}]", replica) for number, replica in enumerate(ordered)]
        for number, end in enumerate(ends):
            if end != ends[0]:
                raise ValueError(f"replicas[{number}]: has {end} layers, replicas[0] has {ends[0]}")
        return ordered


def _end_of_replica(key: str, replica: tuple[ShardEntry, ...]) -> int:
    """Layers in a replica whose shards stand in order; ValueError for a gap, an overlap, a rank twice."""
    if not replica:
        raise ValueError(f"{key}: has no shard")
    end, ranks = 0, set()
    for shard in replica:
        start, stop = shard.layers
        if stop <= start:
            raise ValueError(f"{key}: layers [{start}, {stop}] on rank {shard.rank} hold no layer")
        if start > end:
            raise ValueError(f"{key}: a gap, layers {end} to {start - 1} are on no rank")
        if start < end:
            raise ValueError(f"{key}: an overlap, layer {start} is on two ranks")
        if shard.rank in ranks:
            raise ValueError(f"{key}: rank {shard.rank} holds two shards of one replica")
        ranks.add(shard.rank)
        end = stop
    return end


def read_placement_file(path: str) -> PlacementFile:
    """Read and check a placement file; raises UserError naming the file, the key and the reason."""
    content = read_yaml("--placement", path)
    try:
        return PlacementFile.model_validate(content)
    except ValidationError as error:
        raise UserError("--placement", path, fault_in_file(error, _known, _is_branch)) from None


def _known(place: Place) -> Collection[str]:
    return PlacementFile.model_fields if len(place) == 1 else ShardEntry.model_fields


def _is_branch(place: Place) -> bool:
    """Of a value that is a word or a number, which of them was tried."""
    return len(place) > 1 and place[-2] in ("fill", "verify_interval", "gamma")
