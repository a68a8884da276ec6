"""From options to what lives on this rank: model folders, vocabulary, placement, stages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from pearl_pp import builtin
from pearl_pp.config import RunConfig, find_shape, read_shape
from pearl_pp.config.shape_file import PREFIX
from pearl_pp.config.strategies import STRATEGIES, strategy_on
from pearl_pp.errors import UserError
from pearl_pp.planning.presets import resolve_placement
from pearl_pp.runtime.emulation import open_emulated_pair
from pearl_pp.runtime.pair import ModelPair, Source
from pearl_pp.runtime.vocabulary import load_vocabulary
from pearl_pp.stages.deepspeed_pipeline import pipeline_module
from pearl_pp.stages.rank_module import AnyStage, RankModule
from pearl_pp.stages.source import ModelSource, open_model
from pearl_pp.stages.stage import Stage
from pearl_pp.stages.stage_store import StageStore
from pearl_pp.stages.synthetic import SyntheticSource, open_synthetic
from pearl_pp.transport.base import Transport

OnProgress = Callable[[str, int, int], None]

# How long a rank waits for others that still read their weights: a large stage from a slow disk takes long.
_LOADING_S = 3600.0


def open_pair(config: RunConfig, num_ranks: int, device: torch.device) -> ModelPair:
    """Checks everything that can be checked before weights are loaded.

    Raises:
        UserError: a folder, a tokenizer or a placement that does not fit.
    """
    strategy = strategy_on(config.strategy, num_ranks)
    if config.emulate is not None:
        return open_emulated_pair(config, strategy, num_ranks)
    target = _open("--target", config.target or str(builtin.TARGET_DIR), config.trust_remote_code)
    draft = None
    if STRATEGIES[strategy].drafts:
        draft = _open("--draft", config.draft or str(builtin.DRAFT_DIR), config.trust_remote_code)
        if isinstance(draft, SyntheticSource) and not draft.is_draft_of(target):
            raise draft.error(f"is the first layers of its own target: give --target {config.draft}")
    wanted = config.model_copy(update={"strategy": strategy})
    placement = resolve_placement(wanted, num_ranks, target.num_layers, draft.num_layers if draft else 0)
    max_len = target.max_positions
    if config.max_model_len is not None:
        if config.max_model_len > max_len:
            reason = f"is more than the target's {max_len} positions"
            reason += f" ({target.context_note})" if target.context_note else ""
            raise UserError("--max-model-len", config.max_model_len, reason)
        max_len = config.max_model_len
    vocabulary = load_vocabulary(target, draft)
    for source in (target, draft):
        if source is not None:
            source.check()
    dtype = pick_dtype(config.dtype, target.dtype, device)
    return ModelPair(target, draft, vocabulary, placement, strategy, dtype, max_len)


def _open(option: str, path: str, trust_remote_code: bool) -> ModelSource:
    """A model folder, or one model of a synthetic pair."""
    if not path.startswith(PREFIX):
        return open_model(path, option, trust_remote_code)
    file = find_shape(path, option)
    return open_synthetic(read_shape(file, option), file, option, is_draft=option == "--draft")


def pick_dtype(option: str, checkpoint: torch.dtype, device: torch.device) -> torch.dtype:
    """`auto`: float32 on a CPU, on a GPU the checkpoint's (float16 for bfloat16 where the card lacks it)."""
    if option != "auto":
        return getattr(torch, option)
    if device.type == "cpu":
        return torch.float32
    if checkpoint is torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    return checkpoint


def settle_dtype(transport: Transport, pair: ModelPair, option: str) -> tuple[ModelPair, str]:
    """Collective: `--dtype auto` becomes one dtype for all ranks, float16 where a card lacks bfloat16.

    Returns the pair in that dtype, and the reason for it (empty where nothing is computed).
    """
    picked = _on_every_rank(transport, str(pair.dtype))
    if not isinstance(pair.target, ModelSource):
        return pair, ""
    if option != "auto":
        return pair, "as given"
    if transport.device.type == "cpu":
        return pair, "auto on a CPU"
    checkpoint = pair.target.dtype
    lacking = [str(rank) for rank, dtype in enumerate(picked) if dtype == str(torch.float16)]
    if checkpoint is not torch.bfloat16 or not lacking:
        return pair, "auto: the checkpoint's"
    ranks = f"rank {lacking[0]}" if len(lacking) == 1 else f"ranks {', '.join(lacking)}"
    return replace(pair, dtype=torch.float16), f"auto: the checkpoint is bfloat16, which {ranks} cannot compute in"


def _on_every_rank(transport: Transport, mine: Any, timeout_s: float | None = None) -> list[Any]:
    """Collective: what each rank gives, in JSON's terms, on every rank."""
    gathered = transport.gather_bytes(json.dumps(mine).encode(), dst=0, timeout_s=timeout_s)
    everyone = None if gathered is None else json.dumps([json.loads(payload) for payload in gathered]).encode()
    return json.loads(transport.broadcast_bytes(everyone, src=0, timeout_s=timeout_s))


def agree(transport: Transport, pair: ModelPair) -> None:
    """Collective: every rank must have opened the same models in the same way.

    Raises:
        UserError: on every rank, where one differs; says which and in what.
    """
    headers = _on_every_rank(transport, pair.header())
    for rank, header in enumerate(headers):
        for key, value in headers[0].items():
            if header.get(key) != value:
                raise UserError(f"rank {rank}", None, f"has {key} {header.get(key)}, rank 0 has {value}")


def load_rank(
    pair: ModelPair,
    transport: Transport,
    on_progress: OnProgress | None,
    watched: Callable[[], AbstractContextManager[None]] = nullcontext,
    stages: StageStore | None = None,
) -> RankModule:
    """Collective: builds what the placement puts on this rank and nothing else.

    Args:
        watched: entered around the building alone.
        stages: of earlier engines on this rank; what is there is not built again.

    Raises:
        UserError: on every rank, where one of them cannot build its part.
    """
    faults: list[UserError] = []

    def build(rank: int) -> RankModule:
        try:
            with watched():
                return build_rank(pair, rank, transport.device, on_progress, stages)
        except UserError as error:
            faults.append(error)
            return RankModule(None, {})

    if stages is None:
        module = pipeline_module(transport.world_size, transport.rank, build)
    else:
        module = _load_beside(stages, pair, transport, build)
    _agree_on_faults(transport, faults)
    return module


def _load_beside(
    stages: StageStore, pair: ModelPair, transport: Transport, build: Callable[[int], RankModule]
) -> RankModule:
    """Collective: stages that are not wanted now go where they leave no room on any rank.

    The pipeline is made once: on four ranks every other one would cost each of them 29 descriptors and 15 threads.
    """
    if isinstance(pair.target, ModelSource):
        kept = StageStore.names(_stages_of(pair, transport.rank), pair.dtype, transport.device)
        needed = pair.planned_bytes(transport.device.type)[transport.rank].total
        if not all(_on_every_rank(transport, stages.has_room(kept, needed))):
            stages.drop_others(kept)
    if stages.has_pipeline:
        return build(transport.rank)
    module = pipeline_module(transport.world_size, transport.rank, build)
    stages.has_pipeline = True
    return module


def _agree_on_faults(transport: Transport, faults: Sequence[UserError]) -> None:
    """Collective: raises the first rank's UserError on every rank, if there is one."""
    mine = [[fault.option, fault.value and str(fault.value), fault.reason] for fault in faults]
    for found in _on_every_rank(transport, mine, _LOADING_S):
        for option, value, reason in found:
            raise UserError(option, value, reason)


def gather_notes(transport: Transport, module: RankModule) -> list[str]:
    """Collective: what every rank's stages have to say of themselves, on every rank."""
    slow = _on_every_rank(transport, any(isinstance(stage, Stage) and not stage.is_lean for stage in module.stages))
    return [f"rank {rank}: layers are run by the model's own forward" for rank, is_slow in enumerate(slow) if is_slow]


def build_rank(
    pair: ModelPair,
    rank: int,
    device: torch.device,
    on_progress: OnProgress | None = None,
    stages: StageStore | None = None,
) -> RankModule:
    """The target stage and the draft shards of one rank."""
    build_stage = pair.stage_builder(rank, device, stages)

    def build(source: Source, start: int, end: int, what: str) -> AnyStage:
        def progress(done: int, total: int) -> None:
            if on_progress is not None:
                on_progress(f"{what} layers {start}-{end - 1}", done, total)

        return build_stage(source, start, end, progress)

    layers = pair.placement.stage_range(rank)
    target = build(pair.target, *layers, "target") if layers else None
    shards = {}
    for number, shard in pair.placement.shards_on(rank).items():
        assert pair.draft is not None
        shards[number] = build(pair.draft, shard.start, shard.end, "draft")
    return RankModule(target, shards)


def _stages_of(pair: ModelPair, rank: int) -> Iterator[tuple[ModelSource, int, int]]:
    """What `build_rank` asks for, in its order."""
    if layers := pair.placement.stage_range(rank):
        assert isinstance(pair.target, ModelSource)
        yield pair.target, *layers
    for shard in pair.placement.shards_on(rank).values():
        assert isinstance(pair.draft, ModelSource)
        yield pair.draft, shard.start, shard.end
