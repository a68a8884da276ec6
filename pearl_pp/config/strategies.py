"""What the names of `--strategy` mean, in one table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Strategy:
    """How the target's output is made.

    Args:
        drafts: with a draft model.
        pre_verify: a chunk enters at once after a restart. post_verify: the draft goes on during verification.
        alone: the strategy that it is on one rank, where nothing is idle.
    """

    drafts: bool
    pre_verify: bool
    post_verify: bool
    alone: str


STRATEGIES = {
    "pearl": Strategy(drafts=True, pre_verify=True, post_verify=True, alone="sd"),
    "sd": Strategy(drafts=True, pre_verify=False, post_verify=False, alone="sd"),
    "ar": Strategy(drafts=False, pre_verify=False, post_verify=False, alone="ar"),
}


def strategy_on(name: str, num_ranks: int) -> str:
    """The strategy that `name` is on so many ranks."""
    return STRATEGIES[name].alone if num_ranks == 1 else name
