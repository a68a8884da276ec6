"""Pass times of models that nobody has measured: bytes over bandwidth, or scaled from a pair that is known."""

from __future__ import annotations

from dataclasses import dataclass

from pearl_pp.planning.memory import GB, ModelBytes
from pearl_pp.simulation.profile import ModelProfile, TargetProfile

# What the profiles that come along assume, too.
EFFICIENCY = 0.65
"""Share of a card's bandwidth at which a pass at batch 1 reads the weights."""
LAUNCH_MS = 0.3
"""Least time of a layer, bound by kernel launches, without CUDA graphs."""
FLOPS_PER_BYTE = 38.0
"""Usable arithmetic beside usable bandwidth in a prompt: 71 TFLOPS x 50 % over 936 GB/s, an RTX 3090."""


@dataclass(frozen=True)
class ModelSizes:
    """A model as its config describes it.

    Args:
        read_bytes: weights that one pass over one token reads.
        flops_per_token: of a long prompt.
    """

    sizes: ModelBytes
    hidden_size: int
    vocab_size: int
    read_bytes: float
    flops_per_token: float

    @property
    def total(self) -> int:
        """Bytes of all weights on one rank."""
        return self.sizes.weights_of(0, len(self.sizes.layers))

    def profile(self, one_token_ms: float, like: ModelProfile | None = None) -> TargetProfile:
        """As a profile's entry; further tokens of a pass cost as many times more as in `like`."""
        stretch = one_token_ms / like.one_token_ms if like else 1.0
        return TargetProfile(
            pass_ms=tuple(ms * stretch for ms in like.times_ms) if like else one_token_ms,
            extra_token_ms=like.further_token_ms * stretch if like else 0.0,
            num_layers=len(self.sizes.layers),
            hidden_size=self.hidden_size,
            vocab_size=self.vocab_size,
            kv_bytes_per_token=max(1, self.sizes.kv_of(0, len(self.sizes.layers), 1)),
            weights_gb=self.total / GB,
        )


def pass_ms(model: ModelSizes, bandwidth_gb_s: float) -> float:
    """One token through all layers of `model` on cards of that bandwidth (10^9 bytes a second, as published)."""
    reading = model.read_bytes / (bandwidth_gb_s * GB * EFFICIENCY) * 1e3
    return max(reading, LAUNCH_MS * len(model.sizes.layers))


def prefill_tokens_per_s(model: ModelSizes, bandwidth_gb_s: float) -> float:
    return bandwidth_gb_s * GB * FLOPS_PER_BYTE / model.flops_per_token


def scaled_pass_ms(model: ModelSizes, draft: ModelProfile, target: ModelProfile) -> float:
    """One token of another model on the same cards: on the line through the two models that are known.

    A line, because a part of a pass (launches) does not grow with the weights.

    Args:
        draft, target: both with `weights_gb`, the target's being more.
    """
    assert draft.weights_gb is not None and target.weights_gb is not None
    slope = (target.one_token_ms - draft.one_token_ms) / (target.weights_gb - draft.weights_gb)
    start = draft.one_token_ms - slope * draft.weights_gb
    if slope <= 0 or start < 0:
        return target.one_token_ms * model.read_bytes / GB / target.weights_gb
    return start + slope * model.read_bytes / GB
