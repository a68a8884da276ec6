"""Figures of one emulated run, from what its ranks answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pearl_pp.schedule.placement import Placement
from pearl_pp.simulation.profile import Profile


@dataclass(frozen=True)
class EmulatedRun:
    """What rank 0 measured of a request, in seconds.

    Args:
        first_token_s: from the start of the request to the first verdict.
        decode_s: from the first verdict to the last.
        pass_overhead_s: median of what a draft pass (a target pass without a draft) takes beyond the profile's
            time, the largest of all ranks.
        sleep_overrun_s: by how much all sleeps of a rank overran, the largest of all ranks.
    """

    num_tokens: int
    first_token_s: float
    decode_s: float
    pass_overhead_s: float
    sleep_overrun_s: float

    @property
    def tokens_per_s(self) -> float:
        """(tokens - 1) / time after the first."""
        return (self.num_tokens - 1) / self.decode_s

    @property
    def total_s(self) -> float:
        """From the start of the request to the last verdict."""
        return self.first_token_s + self.decode_s

    @staticmethod
    def of(answer: Mapping[str, Any], profile: Profile) -> EmulatedRun:
        """The figures of what `Groups.run` answered."""
        metrics = answer["metrics"]
        placement = Placement.from_record(answer["plan"]["placement"])
        ranks = list(enumerate(metrics["per_rank"]))
        return EmulatedRun(
            num_tokens=metrics["num_output_tokens"],
            first_token_s=metrics["ttft_s"],
            decode_s=metrics["decode_s"],
            pass_overhead_s=max(_pass_overhead(rank, told, placement, profile) for rank, told in ranks),
            sleep_overrun_s=max(told["sleep_overrun_s"] for _, told in ranks),
        )


def _pass_overhead(rank: int, told: Mapping[str, float], placement: Placement, profile: Profile) -> float:
    """What a pass of this rank took beyond the profile's time for one token; 0 where it made none."""
    shard = next(iter(placement.shards_on(rank).values()), None)
    if shard is not None and told["draft_pass_ms"]:
        return max(0.0, told["draft_pass_ms"] * 1e-3 - profile.draft_pass_s(rank, shard.end - shard.start, 1))
    layers = placement.stage_range(rank)
    if layers is not None and told["target_pass_ms"]:
        return max(0.0, told["target_pass_ms"] * 1e-3 - profile.target_pass_s(rank, layers[1] - layers[0], 1))
    return 0.0
