"""Questions for the planner, small enough to check by hand."""

from __future__ import annotations

from typing import Any

from pearl_pp.planning.memory import FixedBytes
from pearl_pp.planning.question import Question, Wanted, bytes_of_profile
from tests.unit.simulation.machines import profile

GB = 10**9
NOTHING = FixedBytes()


def question(num_ranks: int = 4, **changes: Any) -> Question:
    """T = 40 ms over 8 layers of 1 GB each, t = 5 ms over 4 layers of 0.25 GB, equal cards of 8 GB, free links.

    `memory`, `acceptance`, `max_len`, `fixed`, `wanted` are the question's; others, as `ranks__speed`, the profile's.
    """
    own = {
        name: changes.pop(name) for name in ("memory", "acceptance", "max_len", "fixed", "wanted") if name in changes
    }
    machine = profile(**{"target__weights_gb": 8.0, "draft__weights_gb": 1.0} | changes)
    memory = own.get("memory", (8.0,) * num_ranks)
    return Question(
        machine,
        bytes_of_profile(machine.target, machine.target.vocab_size),
        bytes_of_profile(machine.draft, machine.target.vocab_size),
        tuple(number * GB for number in memory),
        own.get("max_len", 128),
        own.get("acceptance", machine.acceptance),
        own.get("fixed", NOTHING),
        own.get("wanted", Wanted()),
        num_simulated=8,
    )
