"""Shapes, dtypes and channels of messages: agreed once at start, so that a receive can be posted before its send."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pearl_pp.schedule.instructions import Kind, Transfer
from pearl_pp.transport.base import Channel

_CHANNELS = {
    Kind.ACTIVATION: Channel.ACTIVATIONS,
    Kind.DRAFT_ACTIVATION: Channel.ACTIVATIONS,
    Kind.TOKENS: Channel.CONTROL,
    Kind.REPORT: Channel.CONTROL,
    Kind.PROBS: Channel.PROBS,
    Kind.KV: Channel.HANDOFF,
}


@dataclass(frozen=True)
class Wiring:
    """Message shapes of a model pair.

    Args:
        target_hidden, draft_hidden: hidden sizes.
        target_dtype, draft_dtype: dtypes of hidden states.
        vocab_size: ids that can be drawn; width of a row of q.
    """

    target_hidden: int
    target_dtype: torch.dtype
    draft_hidden: int
    draft_dtype: torch.dtype
    vocab_size: int

    def channel(self, kind: Kind) -> Channel:
        return _CHANNELS[kind]

    def shape_and_dtype(self, transfer: Transfer) -> tuple[tuple[int, ...], torch.dtype]:
        """Of every kind but KV: entries have the shape that the receiving cache says."""
        count = transfer.end - transfer.start
        match transfer.kind:
            case Kind.ACTIVATION:
                return (count, self.target_hidden), self.target_dtype
            case Kind.DRAFT_ACTIVATION:
                return (count, self.draft_hidden), self.draft_dtype
            case Kind.PROBS:
                return (count, self.vocab_size), torch.float32
            case _:
                return (count,), torch.int64
