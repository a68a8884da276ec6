"""What a run is about to do, for people and for the JSON record."""

from __future__ import annotations

from dataclasses import dataclass, field

from pearl_pp.runtime.pair import ModelPair
from pearl_pp.schedule.placement import Placement
from pearl_pp.schedule.schedule import TICKS, Schedule

_GIB = 2**30


@dataclass
class Plan:
    """Placement, pace and planned memory.

    Args:
        notes: decisions a user should know of, one line each.
        bytes_per_rank: weights and KV caches at full length.
    """

    pair: ModelPair
    device: str
    schedule: Schedule
    bytes_per_rank: list[int]
    notes: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        placement = self.pair.placement
        target = self.pair.target
        dtype = str(self.pair.dtype).removeprefix("torch.")
        lines = [
            f"target    {target.model_type}, {target.num_layers} layers, hidden {target.hidden_size}: "
            f"{_stages(placement)} ({dtype}, {self.device})",
            *([f"draft     {self._draft_line(placement)}"] if placement.replicas else []),
            f"strategy  {self._strategy_line(placement)}",
            f"memory    {', '.join(f'{size / _GIB:.3g}' for size in self.bytes_per_rank)} GiB planned per rank",
        ]
        return lines + [f"note      {note}" for note in self.notes]

    def record(self) -> dict:
        """As JSON: under `placement` what a placement file holds, beside it the pace and the planned bytes."""
        return {
            "placement": self.pair.placement.record(),
            "strategy": self.pair.strategy,
            "dtype": str(self.pair.dtype).removeprefix("torch."),
            "device": self.device,
            "max_model_len": self.pair.max_len,
            "pass_slots": self.schedule.pass_ticks / TICKS if self.schedule.replicas else None,
            "tokens_per_interval": self._tokens_per_interval(),
            "planned_bytes": self.bytes_per_rank,
            "notes": self.notes,
        }

    def _tokens_per_interval(self) -> float | None:
        if not self.schedule.replicas:
            return None
        return round(self.schedule.verify_interval * TICKS / self.schedule.pass_ticks, 2)

    def _draft_line(self, placement: Placement) -> str:
        draft = self.pair.draft
        assert draft is not None
        places = "; ".join(
            " + ".join(f"rank {s.rank} layers {s.start}-{s.end - 1}" for s in replica) for replica in placement.replicas
        )
        return f"{draft.model_type}, {draft.num_layers} layers, hidden {draft.hidden_size}: {places}"

    def _strategy_line(self, placement: Placement) -> str:
        strategy, schedule = self.pair.strategy, self.schedule
        if not schedule.replicas:
            return f"{strategy}, {placement.num_stages} stages"
        gamma = schedule.draft_limit or schedule.first_window
        how = "measured" if placement.gamma is None else "given"
        pace = f"gamma {gamma}" if gamma else f"gamma {self._tokens_per_interval():g} ({how})"
        pattern = f"F = {schedule.fill}, p = {schedule.verify_interval}"
        handoff = f", hand-off {placement.handoff}" if len(placement.replicas) > 1 else ""
        return f"{strategy}, placement {placement.name}, {pattern}, {pace}{handoff}"


def _stages(placement: Placement) -> str:
    return "+".join(map(str, placement.target)) + " layers"
