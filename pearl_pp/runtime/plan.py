"""What a run is about to do, for people and for the JSON record."""

from __future__ import annotations

from dataclasses import dataclass

from pearl_pp.planning.memory import GB, RankBytes
from pearl_pp.planning.modes import describe, tokens_per_interval
from pearl_pp.runtime.pair import ModelPair
from pearl_pp.schedule.placement import Placement
from pearl_pp.schedule.schedule import TICKS, Schedule


@dataclass(frozen=True)
class Plan:
    """Placement, pace and planned memory.

    Args:
        schedule: that the first request starts with.
        notes: decisions a user should know of, one line each.
        bytes_per_rank: planned memory by kind, at full length.
        dtype_reason: why the models run in their dtype.
        adapts: the run has chosen how to decode, and may change it on the way.
    """

    pair: ModelPair
    device: str
    schedule: Schedule
    bytes_per_rank: list[RankBytes]
    notes: tuple[str, ...] = ()
    dtype_reason: str = ""
    adapts: bool = False

    @property
    def lines(self) -> list[str]:
        """All of it."""
        return self.layout_lines + self.decision_lines

    @property
    def layout_lines(self) -> list[str]:
        """What will be where: known before anything is loaded."""
        placement = self.pair.placement
        target = self.pair.target
        dtype = str(self.pair.dtype).removeprefix("torch.")
        return [
            f"target    {target.model_type}, {target.num_layers} layers, hidden {target.hidden_size}: "
            f"{_stages(placement)} ({dtype}, {self.device})",
            *([f"dtype     {dtype}, {self.dtype_reason}"] if self.dtype_reason else []),
            *([f"draft     {self._draft_line(placement)}"] if placement.replicas else []),
            f"memory    {', '.join(f'{size.total / GB:.3g}' for size in self.bytes_per_rank)} GB planned per rank",
        ]

    @property
    def decision_lines(self) -> list[str]:
        """How it decodes, and what a user should know of it."""
        notes = [f"note      {note}" for note in self.notes]
        return [f"strategy  {self._strategy_line(self.pair.placement)}", *notes]

    def record(self) -> dict:
        """As JSON: under `placement` what a placement file holds, beside it the pace and the planned bytes."""
        return {
            "placement": self.pair.placement.record(),
            "strategy": self.pair.strategy,
            "dtype": str(self.pair.dtype).removeprefix("torch."),
            "dtype_reason": self.dtype_reason,
            "device": self.device,
            "max_model_len": self.pair.max_len,
            "adapts": self.adapts,
            "starts_with": describe(self.schedule),
            "pass_slots": self.schedule.pass_ticks / TICKS if self.schedule.drafts else None,
            "tokens_per_interval": tokens_per_interval(self.schedule) if self.schedule.drafts else None,
            "planned_bytes": [size.record() for size in self.bytes_per_rank],
            "notes": list(self.notes),
        }

    def _draft_line(self, placement: Placement) -> str:
        draft = self.pair.draft
        assert draft is not None
        places = "; ".join(
            " + ".join(f"rank {s.rank} layers {s.start}-{s.end - 1}" for s in replica) for replica in placement.replicas
        )
        return f"{draft.model_type}, {draft.num_layers} layers, hidden {draft.hidden_size}: {places}"

    def _strategy_line(self, placement: Placement) -> str:
        strategy, schedule = self.pair.strategy, self.schedule
        handoff = f", hand-off {placement.handoff}" if len(placement.replicas) > 1 else ""
        if self.adapts:
            return f"{strategy}, placement {placement.name}: {describe(schedule)}{handoff}"
        if not schedule.replicas:
            return f"{strategy}, {placement.num_stages} stages"
        gamma = schedule.draft_limit or schedule.first_window
        how = "measured" if placement.gamma is None else "given"
        pace = f"gamma {gamma}" if gamma else f"gamma {tokens_per_interval(schedule):g} ({how})"
        pattern = f"F = {schedule.fill}, p = {schedule.verify_interval}"
        return f"{strategy}, placement {placement.name}, {pattern}, {pace}{handoff}"


def _stages(placement: Placement) -> str:
    return "+".join(map(str, placement.target)) + " layers"
