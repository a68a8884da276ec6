"""Plans in words: what a placement is, what is short, why the first is first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pearl_pp.planning.memory import GB
from pearl_pp.schedule.placement import Placement, Replica

if TYPE_CHECKING:
    from pearl_pp.planning.choice import Entry


def what(strategy: str, placement: Placement) -> str:
    """A way to run in a few words."""
    return _WORDS[strategy](placement)


def _plain(placement: Placement) -> str:
    return "plain decoding"


def _turns(placement: Placement) -> str:
    return f"{where(placement)}, taking turns (sd)"


def _windows(placement: Placement) -> str:
    interval, fill = placement.verify_interval, placement.fill
    if fill == 1 and interval == placement.num_stages:
        return f"{where(placement)}, one chunk in flight"
    every = f"{interval} slots" if interval > 1 else "slot"
    filled = f" after the first {fill}" if fill > 1 else ""
    return f"{where(placement)}, a chunk every {every}{filled}"


_WORDS: dict[str, Callable[[Placement], str]] = {"ar": _plain, "sd": _turns, "pearl": _windows}


def is_alone(placement: Placement) -> bool:
    """Whether the draft has a rank of its own."""
    return any(shard.rank >= placement.num_stages for replica in placement.replicas for shard in replica)


def where(placement: Placement) -> str:
    """Where the draft is."""
    if is_alone(placement):
        return f"draft alone on rank {placement.world_size - 1}"
    places = [_ranks_of(replica) for replica in placement.replicas]
    return f"draft on {'ranks' if len(places) > 1 or '+' in places[0] else 'rank'} {' and '.join(places)}"


def _ranks_of(replica: Replica) -> str:
    return "+".join(str(shard.rank) for shard in replica)


def shortage(short: Sequence[int]) -> str:
    """`rank 2 is 1.3 GB short`; empty where nothing is."""
    return ", ".join(f"rank {rank} is {missing / GB:.2g} GB short" for rank, missing in enumerate(short) if missing)


_NUM_COMPARED = 3


def reason(entries: Sequence[Entry], num_candidates: int, acceptance: float) -> str:
    """One line. `entries` are ranked, those that fit first."""
    first = entries[0]
    if not first.fits:
        return f"nothing fits; closest is {first.what}, where {shortage(first.short)}"
    fitting, short = [e for e in entries if e.fits], [e for e in entries if not e.fits]
    rivals = {_kind(e): e for e in reversed(fitting) if _kind(e) != _kind(first)}
    ranked = sorted(rivals.values(), key=lambda e: -e.tokens_per_s)
    if not first.placement.replicas:
        return _why_plain(first, ranked, acceptance) + _missed(first, short)
    gains = [_compared(first, e) for e in ranked if e.placement.replicas][:_NUM_COMPARED]
    line = f"best of {num_candidates} at acceptance {acceptance:g}: {first.speedup:.2f}x plain decoding"
    return ", ".join([line, *gains]) + _missed(first, short)


def _kind(entry: Entry) -> tuple[object, ...]:
    """What a reader would call the same idea."""
    placement = entry.placement
    several = placement.fill > 1 or placement.verify_interval < placement.num_stages
    is_sharded = any(len(replica) > 1 for replica in placement.replicas)
    return entry.strategy, is_alone(placement), len(placement.replicas) > 1, is_sharded, several


def _why_plain(first: Entry, rivals: Sequence[Entry], acceptance: float) -> str:
    if not rivals:
        return "no placement of a draft fits"
    return f"drafting does not pay at acceptance {acceptance:g}: {_compared(first, rivals[0])}"


def _compared(first: Entry, other: Entry) -> str:
    gain = 100 * (first.tokens_per_s / other.tokens_per_s - 1)
    return f"{gain:.0f} % faster than {other.what}" if gain >= 0.5 else f"as fast as {other.what}"


def _missed(first: Entry, short: Sequence[Entry]) -> str:
    """What more memory would buy."""
    faster = [e for e in short if e.tokens_per_s > 1.005 * first.tokens_per_s]
    if not faster:
        return ""
    gain = 100 * (faster[0].tokens_per_s / first.tokens_per_s - 1)
    return f"; {faster[0].what} would be {gain:.0f} % faster, but {shortage(faster[0].short)}"
