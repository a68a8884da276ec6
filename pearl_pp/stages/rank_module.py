"""What lives on one rank: a stage of the target, and shards of draft replicas."""

from collections.abc import Mapping

from torch import nn

from pearl_pp.stages.sleeping import SleepingStage
from pearl_pp.stages.stage import Stage

AnyStage = Stage | SleepingStage


class RankModule(nn.Module):
    """The target's stage (None where the draft has the rank alone) and the draft's shards, by replica."""

    def __init__(self, target: AnyStage | None, shards: Mapping[int, AnyStage]) -> None:
        super().__init__()
        self.target = target
        self.shards = dict(shards)
        self._registered = nn.ModuleList(self.shards.values())

    @property
    def weight_bytes(self) -> int:
        return sum(stage.weight_bytes for stage in self.stages)

    @property
    def held_bytes(self) -> int:
        """Weights and KV entries as they are now."""
        return sum(stage.held_bytes for stage in self.stages)

    @property
    def stages(self) -> list[AnyStage]:
        """Every stage on this rank, the target's first."""
        return [*([self.target] if self.target is not None else []), *self.shards.values()]
