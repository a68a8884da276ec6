"""How fast things enter: the length of a draft pass in slots (`--gamma auto`), and the pieces of a long prompt."""

from __future__ import annotations

from collections.abc import Sequence

from pearl_pp.schedule.placement import Replica
from pearl_pp.schedule.schedule import TICKS, fitted_pass_ticks


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
    ticks = max(1, max(measured) * num_stages * TICKS // sum(target_times))
    return fitted_pass_ticks(ticks, tuple(replicas), num_stages)


_PIECES_PER_STAGE = 3


def prefill_piece(prompt_len: int, num_stages: int, min_piece: int, wanted: int | str = "auto") -> int:
    """Tokens of a piece of the prompt; 0 leaves it whole.

    Args:
        wanted: tokens; a prompt that has no more is one piece. With "auto" long prompts are cut so that all
            stages work at once.

    A pass over fewer than `min_piece` tokens costs no less: reading the weights dominates.

    P pieces take P + N - 1 slots of 1/P of the prompt's time in a stage: with P = 3N a third of the whole
    prompt's time, and more pieces gain little.
    """
    if isinstance(wanted, int):
        return wanted if wanted < prompt_len else 0
    num_pieces = min(_PIECES_PER_STAGE * num_stages, prompt_len // min_piece)
    return 0 if num_stages == 1 or num_pieces < 2 else -(-prompt_len // num_pieces)
