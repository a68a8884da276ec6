"""The simulator with the verdicts of a run that was made."""

from __future__ import annotations

from pearl_pp.runtime.pair import ModelPair
from pearl_pp.runtime.request import RequestOutput
from pearl_pp.schedule.schedule import Schedule
from pearl_pp.simulation.simulator import CostModel, Simulator
from pearl_pp.simulation.verdicts import replayed


def replayed_speed(
    pair: ModelPair, schedule: Schedule, costs: CostModel, max_new_tokens: int, output: RequestOutput
) -> float | None:
    """Decoding tokens/s of the same request with the same verdicts, if things took what `costs` says and no more."""
    prompt_len, num_ids = len(output.prompt_token_ids), len(output.token_ids)
    if num_ids < 2:
        return None
    total_len = min(prompt_len + max_new_tokens, pair.max_len)
    draft_end = pair.draft.max_positions + 1 if pair.draft else None
    judge = replayed(output.metrics["accepted_runs"], prompt_len + num_ids)
    return Simulator(schedule, costs, judge).run(prompt_len, total_len, draft_end).decode_tokens_per_s
