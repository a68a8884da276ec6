"""What lives on one rank: a stage of the target, and shards of draft replicas."""

from collections.abc import Mapping

from torch import nn

from pearl_pp.stages.stage import Stage


class RankModule(nn.Module):
    """The target's stage (None where the draft has the rank alone) and the draft's shards, by replica."""

    def __init__(self, target: Stage | None, shards: Mapping[int, Stage]) -> None:
        super().__init__()
        self.target = target
        self.shards = dict(shards)
        self._registered = nn.ModuleList(self.shards.values())

    @property
    def weight_bytes(self) -> int:
        return sum(stage.weight_bytes for stage in self.stages)

    @property
    def stages(self) -> list[Stage]:
        """Every stage on this rank, the target's first."""
        return [*([self.target] if self.target is not None else []), *self.shards.values()]
