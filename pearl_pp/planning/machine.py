"""Pass times of models that nobody has measured: bytes over bandwidth, or scaled from a pair that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pearl_pp.planning.memory import GB, ModelBytes, count_bytes
from pearl_pp.simulation.profile import Link, ModelProfile, Profile, RanksProfile, TargetProfile
from pearl_pp.stages.source import ModelSource

# What the profiles that come along assume, too.
EFFICIENCY = 0.65
"""Share of a card's bandwidth at which a pass at batch 1 reads the weights."""
LAUNCH_MS = 0.3
"""Least time of a layer, bound by kernel launches, without CUDA graphs."""
FLOPS_PER_BYTE = 38.0
"""Usable arithmetic beside usable bandwidth in a prompt: 71 TFLOPS x 50 % over 936 GB/s, an RTX 3090."""
ASSUMED_BANDWIDTH_GB_S = 936.0  # published: RTX 3090
ASSUMED_LINK = Link(latency_us=30, bandwidth_gb_s=6)  # through the host's memory, half of PCIe 3.0 x16 or 4.0 x8
ASSUMED_ACCEPTANCE = 0.7


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


def model_sizes(source: ModelSource, dtype: torch.dtype) -> ModelSizes:
    """Of a model in `dtype`; its folder may hold a config.json alone."""
    read = _numbers_read(source)
    sizes = count_bytes(source, dtype)
    return ModelSizes(sizes, source.hidden_size, source.vocab_size, read * dtype.itemsize, 2.0 * read)


def _numbers_read(source: ModelSource) -> float:
    """Weights that a pass over one token reads: of a mixture of experts the ones it is sent to; no embedding, which
    is looked up, unless it is the head as well.
    """
    config = source.config
    num_experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None) or 1
    share = (getattr(config, "num_experts_per_tok", None) or num_experts) / num_experts
    embedding = source.meta_model.get_input_embeddings()
    looked_up = 0 if source.tied else sum(weight.numel() for weight in embedding.parameters())
    numbers = (
        weight.numel() * (share if "experts" in name.split(".") else 1.0)
        for name, weight in source.meta_model.named_parameters()
    )
    return sum(numbers) - looked_up


def assumed_profile(
    target: ModelSizes, draft: ModelSizes | None, bandwidth: Sequence[float], link: Link = ASSUMED_LINK
) -> Profile:
    """A machine that nobody has measured: bytes over bandwidth.

    Args:
        bandwidth: of each rank, GB/s (10^9 bytes) as published, or as a copy takes it.
    """
    fastest = max(bandwidth)
    entries = [model.profile(pass_ms(model, fastest)) for model in (target, draft or target)]
    return Profile(
        name="assumed",
        target=entries[0],
        draft=as_draft(entries[1]),
        ranks=RanksProfile(memory_gb=(1.0,) * len(bandwidth), speed=tuple(number / fastest for number in bandwidth)),
        prefill_tokens_per_s=prefill_tokens_per_s(target, fastest),
        link=link,
        acceptance=ASSUMED_ACCEPTANCE,
    )


def as_draft(entry: TargetProfile) -> ModelProfile:
    return ModelProfile.model_validate(entry.model_dump(exclude={"vocab_size"}))


def pass_ms(model: ModelSizes, bandwidth_gb_s: float) -> float:
    """One token through all layers of `model` on cards of that bandwidth (10^9 bytes a second, as published)."""
    reading = model.read_bytes / (bandwidth_gb_s * GB * EFFICIENCY) * 1e3
    return max(reading, LAUNCH_MS * len(model.sizes.layers))


def prefill_tokens_per_s(model: ModelSizes, bandwidth_gb_s: float) -> float:
    return bandwidth_gb_s * GB * FLOPS_PER_BYTE / model.flops_per_token


def scaled_pass_ms(model: ModelSizes, draft: ModelProfile, target: ModelProfile) -> float:
    """One token of another model on the same cards: on the line through the two models that are known.

    A line, because a part of a pass (launches) does not grow with the weights. Where the two make no line that can be
    (one size, or the larger is the faster), as much longer than the target's as it is larger.

    Args:
        draft, target: both with `weights_gb`.
    """
    assert draft.weights_gb is not None and target.weights_gb is not None
    more_gb = target.weights_gb - draft.weights_gb
    slope = (target.one_token_ms - draft.one_token_ms) / more_gb if more_gb else 0.0
    start = draft.one_token_ms - slope * draft.weights_gb
    if slope <= 0 or start < 0:
        return target.one_token_ms * model.read_bytes / GB / target.weights_gb
    return start + slope * model.read_bytes / GB
