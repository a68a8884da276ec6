"""What each rank's memory must hold, counted by kind before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from pearl_pp.errors import UserError
from pearl_pp.planning.model_bytes import ModelBytes, count_bytes
from pearl_pp.schedule.placement import Placement
from pearl_pp.stages.kv_cache import FIRST_CAPACITY
from pearl_pp.stages.stage import FIRST_POSITIONS, LONGEST_PASS

__all__ = ["GB", "FixedBytes", "ModelBytes", "RankBytes", "Share", "check_fits", "count_bytes", "planned_bytes"]

GB = 10**9
MIB = 2**20

MAX_MEMORY_GB = 100_000.0  # no rank has a hundred terabytes: bytes were given, or megabytes

# Rows of logits that a verdict looks at: a window. What is longer is a piece of a prompt, which has one row at most.
LARGEST_WINDOW = 32
# Copies of them in float32: scores before and after temperature and cuts, p, q, what is left of p - q.
_COPIES_OF_LOGITS = 4

# The rule of runtime.pacing.prefill_piece: pieces of this many tokens at least, so many for each stage at most.
MIN_PIECE = 128
_PIECES_PER_STAGE = 3


@dataclass(frozen=True)
class FixedBytes:
    """What a rank needs on a kind of device whatever it holds.

    Args:
        context: what the driver, the libraries and Python keep.
        communicator: buffers of one NCCL communicator; 0 where messages go through host memory.
        reserve: the allocator's roundings and gaps.
        keeps_sent: whether the hidden states of a prompt's pieces stay until later messages push them out (gloo).
    """

    context: int = 0
    communicator: int = 0
    reserve: int = 0
    keeps_sent: bool = False


# Activations, hand-off, q: a communicator for each (transport.nccl).
_NUM_COMMUNICATORS = 3

FIXED: dict[str, FixedBytes] = {
    # Measured on ranks of the synthetic CPU-sized pair: 3.5 to 5 MB for the modules' Python objects, and for what MKL
    # keeps of the matrices that it packs.
    "cpu": FixedBytes(context=4 * MIB, keeps_sent=True),
    # Assumed, not measured: a CUDA context with cuBLAS's work space is 0.4 to 0.6 GB on recent cards; NCCL takes
    # 4 MiB (NCCL_BUFFSIZE) for each of a few channels and peers; the allocator cuts its memory in blocks of 2 and
    # 20 MiB, some of which are never full.
    "cuda": FixedBytes(context=500 * MIB, communicator=64 * MIB, reserve=256 * MIB),
}
"""By type of device."""


@dataclass(frozen=True)
class RankBytes:
    """Planned bytes of one rank by kind.

    Args:
        target_weights, draft_weights: without `tied_copy`.
        tied_copy: the head of a model whose embedding, the same matrix, is on another rank.
        target_kv, draft_kv: entries of the longest sequence.
        work_space: what a pass, a verdict or the loading needs beside them at the worst moment.
        context: the CUDA context; on a CPU what the libraries and Python keep for a loaded model.
        buffers: NCCL's.
        reserve: roundings and gaps.
    """

    target_weights: int = 0
    draft_weights: int = 0
    tied_copy: int = 0
    target_kv: int = 0
    draft_kv: int = 0
    work_space: int = 0
    context: int = 0
    buffers: int = 0
    reserve: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))

    def record(self) -> dict[str, int]:
        """As JSON: every kind, and their sum."""
        return asdict(self) | {"total": self.total}


def planned_bytes(
    placement: Placement,
    target: ModelBytes,
    draft: ModelBytes | None,
    max_len: int,
    fixed: FixedBytes,
    piece: int | None = None,
) -> list[RankBytes]:
    """Bytes of every rank, for sequences of up to `max_len` positions.

    Args:
        placement: its target layers and its draft shards say what lives where.
        draft: may be None where the placement has no replicas.
        fixed: of the kind of device, `FIXED[device.type]`.
        piece: most tokens of a piece of a prompt; None: what `--prefill-piece auto` makes of the longest one.
    """
    piece = largest_piece(max_len, placement.num_stages) if piece is None else min(piece, max_len)
    return [_rank_bytes(placement, rank, target, draft, max_len, fixed, piece) for rank in range(placement.world_size)]


def largest_piece(max_len: int, num_stages: int, min_piece: int = MIN_PIECE, wanted: int | str = "auto") -> int:
    """Tokens of the largest piece in which a prompt of up to `max_len` tokens may come; `wanted`: --prefill-piece."""
    if isinstance(wanted, int):
        return min(wanted, max_len)
    whole = min(max_len, 2 * min_piece - 1)  # the longest prompt that stays whole
    return max_len if num_stages == 1 else max(whole, -(-max_len // (_PIECES_PER_STAGE * num_stages)))


@dataclass(frozen=True)
class _Part:
    """Layers [start, end) of a model on a rank; `longest` is the most positions that come in one instruction."""

    model: ModelBytes
    start: int
    end: int
    longest: int

    @property
    def tied_copy(self) -> int:
        return self.model.tied_copy_of(self.start, self.end)

    @property
    def weights(self) -> int:
        return self.model.weights_of(self.start, self.end) - self.tied_copy

    def kv(self, max_len: int) -> int:
        return self.model.kv_of(self.start, self.end, max_len)

    def grown_kv(self, max_len: int) -> int:
        """The cache that a full-length one takes the place of."""
        steps = max(0, math.ceil(math.log2(max_len / FIRST_CAPACITY)) - 1)  # capacity doubles
        return self.kv(FIRST_CAPACITY << steps) if max_len > FIRST_CAPACITY else 0

    def tables(self, max_len: int) -> int:
        return self.model.of_pass.tables * min(max_len, FIRST_POSITIONS)

    def of_pass(self, max_len: int) -> int:
        """The most that one pass and what follows it hold: a part of the prompt, or a window with its logits."""
        window = min(LARGEST_WINDOW, max_len)
        logits = 0
        if self.end == len(self.model.layers):
            logits = window * self.model.vocab_size * 4 * _COPIES_OF_LOGITS
        pass_of_window = self.model.of_pass.of(window, max_len)
        return max(self.model.of_pass.of(min(self.longest, LONGEST_PASS), max_len), pass_of_window, logits)


def _rank_bytes(
    placement: Placement,
    rank: int,
    target: ModelBytes,
    draft: ModelBytes | None,
    max_len: int,
    fixed: FixedBytes,
    piece: int,
) -> RankBytes:
    layers = placement.stage_range(rank)
    stages = [_Part(target, *layers, piece)] if layers else []
    shards = []
    for shard in placement.shards_on(rank).values():
        assert draft is not None
        shards.append(_Part(draft, shard.start, shard.end, max_len))  # a draft reads the prompt at once
    target_kv, draft_kv = (sum(part.kv(max_len) for part in parts) for parts in (stages, shards))
    return RankBytes(
        target_weights=sum(part.weights for part in stages),
        draft_weights=sum(part.weights for part in shards),
        tied_copy=sum(part.tied_copy for part in (*stages, *shards)),
        target_kv=target_kv,
        draft_kv=draft_kv,
        work_space=_work_space([*stages, *shards], target_kv + draft_kv, max_len, fixed),
        context=fixed.context,
        buffers=fixed.communicator * _NUM_COMMUNICATORS if placement.world_size > 1 else 0,
        reserve=fixed.reserve,
    )


def _work_space(parts: Sequence[_Part], kv: int, max_len: int, fixed: FixedBytes) -> int:
    """The worst moment: a pass (they follow one another), a cache that grows, or loading, when no entries are there."""
    passes = max((part.of_pass(max_len) for part in parts), default=0)
    if fixed.keeps_sent:
        passes += sum(max_len * part.model.hidden_row for part in parts if part.end < len(part.model.layers))
    growth = max((part.grown_kv(max_len) for part in parts), default=0)
    loading = max((part.model.loading for part in parts), default=0)
    return max(max(passes, growth) + sum(part.tables(max_len) for part in parts), loading - kv)


@dataclass(frozen=True)
class Share:
    """Memory that `ranks` have together, in bytes."""

    ranks: tuple[int, ...]
    num_bytes: float


def shares_of(memory_gb: Sequence[float], num_ranks: int) -> list[Share]:
    """`--memory-gb`: one number for every rank, or one for each.

    Raises:
        UserError: another length, or a number that is no card's.
    """
    if len(memory_gb) not in (1, num_ranks):
        reason = f"has {len(memory_gb)} numbers, this run has {num_ranks} ranks; give one for all or one for each"
        raise UserError("--memory-gb", shown(memory_gb), reason)
    if odd := [number for number in memory_gb if not 0 < number <= MAX_MEMORY_GB]:
        reason = f"{odd[0]:g} GB: must be more than 0 and at most {MAX_MEMORY_GB:,.0f}; the unit is 10^9 bytes"
        raise UserError("--memory-gb", shown(memory_gb), reason)
    each = memory_gb if len(memory_gb) == num_ranks else [*memory_gb] * num_ranks
    return [Share((rank,), number * GB) for rank, number in enumerate(each)]


def check_fits(planned: Sequence[RankBytes], shares: Sequence[Share], max_len: int, option: str, value: object) -> None:
    """Raises UserError, which blames `option`, for the first share that is too small."""
    for share in shares:
        needed = sum(planned[rank].total for rank in share.ranks)
        if needed > share.num_bytes:
            ranks = ", ".join(map(str, share.ranks))
            who = f"rank {ranks} needs" if len(share.ranks) == 1 else f"ranks {ranks}, on one card, need"
            reason = (
                f"{who} {needed / GB:.3g} GB for weights, KV entries of {max_len} positions and work space, "
                f"{share.num_bytes / GB:.3g} GB are there: {(needed - share.num_bytes) / GB:.3g} GB short"
            )
            raise UserError(option, value, reason)


def shown(memory_gb: Sequence[float]) -> str:
    """As on the command line."""
    return ",".join(f"{number:g}" for number in memory_gb)
