"""`--gamma auto`: how long a draft pass is in slots, from pass times measured in the first windows."""

from __future__ import annotations

from collections.abc import Sequence

from pearl_pp.schedule.placement import Replica
from pearl_pp.schedule.schedule import TICKS


def measured_pass_ticks(
    target_ns: Sequence[int], draft_ns: Sequence[int], replicas: Sequence[Replica], num_stages: int
) -> int:
    """t * N / T slots, in ticks; 0 where something was not measured.

    Args:
        target_ns, draft_ns: median pass time per rank, 0 where the rank made no such pass.
        replicas: the slowest measured replica sets t, so that no pass overruns into a target pass.
        num_stages: N; T is the sum over the stages.
    """
    target_times = target_ns[:num_stages]
    if not all(target_times):
        return 0
    measured = [sum(draft_ns[s.rank] for s in r) for r in replicas if all(draft_ns[s.rank] for s in r)]
    if not measured:
        return 0
    return max(1, max(measured) * num_stages * TICKS // sum(target_times))
