"""A schedule as the text picture of DESIGN section 4, for people and golden files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pearl_pp.schedule.instructions import Draft, ForwardTarget
from pearl_pp.schedule.plan import SlotPlan

WIDTH = 4


def draw(plans: Sequence[SlotPlan], num_ranks: int) -> str:
    """One column a slot, one row a rank: T a target pass, D with the number of draft passes that start there."""
    numbers = "".join(f"{plan.slot_in_window:>{WIDTH}}" for plan in plans)
    rows = ["slot".ljust(8) + numbers]
    for rank in range(num_ranks):
        cells = "".join(f"{_cell(plan, rank):>{WIDTH}}" for plan in plans)
        rows.append(f"rank {rank}".ljust(8) + cells)
    return "\n".join(rows) + "\n"


def _cell(plan: SlotPlan, rank: int) -> str:
    mine = [i for i in plan.instructions if isinstance(i, ForwardTarget | Draft) and i.rank == rank]
    drafts = [i for i in mine if isinstance(i, Draft)]
    target = "T" if len(drafts) < len(mine) else ""
    if not drafts:
        return target or "."
    return f"{target}D{len(drafts) if len(drafts) > 1 else ''}"


def describe(plans: Iterable[SlotPlan]) -> str:
    """Every instruction on a line of its own, in the global order."""
    lines = []
    for plan in plans:
        lines.append(f"slot {plan.slot}")
        for instruction in plan.instructions:
            fields = " ".join(
                f"{name}={getattr(value, 'name', value)}" for name, value in instruction._asdict().items()
            )
            lines.append(f"  {type(instruction).__name__} {fields}")
    return "\n".join(lines) + "\n"
