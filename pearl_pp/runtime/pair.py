"""Two models and what follows from them for every rank alike."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import transformers

from pearl_pp.config import RunConfig
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.decoding.verification import VerificationRule, make_rule
from pearl_pp.planning.machine import ASSUMED_ACCEPTANCE, assumed_profile, model_sizes
from pearl_pp.planning.memory import FIXED, ModelBytes, RankBytes, count_bytes, largest_piece, planned_bytes
from pearl_pp.planning.question import Question, Wanted
from pearl_pp.runtime.devices import Device, Machine, bandwidths
from pearl_pp.runtime.vocabulary import Vocabulary
from pearl_pp.runtime.wiring import Wiring
from pearl_pp.schedule.placement import Placement
from pearl_pp.simulation.simulator import CostModel
from pearl_pp.stages.rank_module import AnyStage, RankModule
from pearl_pp.stages.sleeping import SleepingSource
from pearl_pp.stages.source import ModelSource
from pearl_pp.stages.stage import Stage, build_stage
from pearl_pp.stages.stage_store import StageStore
from pearl_pp.stages.synthetic import SyntheticSource
from pearl_pp.transport.base import Transport

OnBytes = Callable[[int, int], None]
Source = ModelSource | SleepingSource
BuildStage = Callable[[Source, int, int, OnBytes], AnyStage]

_SEED_BITS = 32

# A weight of 2 bytes is read once a pass and takes 2 FLOP a token, so a card's FLOP over its bytes a second are tokens:
# published peaks give 312e12 / 2.04e12 = 153 (A100 80G), 165e12 / 1.008e12 = 164 (RTX 4090). Arithmetic stays further
# below its peak than reading does, so a little less.
MIN_PREFILL_PIECE = 128


@dataclass(frozen=True)
class ModelPair:
    """Two checked model folders and how they run. `EmulatedPair` overrides what a run without models does otherwise.

    Args:
        draft: None without speculation.
        max_len: most positions a sequence may have.
        dtype: of weights and activations of both models.
    """

    target: Source
    draft: Source | None
    vocabulary: Vocabulary
    placement: Placement
    strategy: str
    dtype: torch.dtype
    max_len: int

    @property
    def min_prefill_piece(self) -> int:
        """Tokens from which on arithmetic, not reading the weights, sets the time of a pass."""
        return MIN_PREFILL_PIECE

    @property
    def wiring(self) -> Wiring:
        draft = self.draft or self.target
        return Wiring(self.target.hidden_size, self.dtype, draft.hidden_size, self.dtype, self.vocabulary.size)

    def header(self) -> dict[str, object]:
        """What must be equal on all ranks for their messages to fit."""
        return {
            "target": self.target.fingerprint,
            "draft": self.draft and self.draft.fingerprint,
            "dtype": str(self.dtype),
            "vocabulary": self.vocabulary.size,
            "placement": self.placement.record(),
            "strategy": self.strategy,
            "max_len": self.max_len,
            "transformers": transformers.__version__,
        }

    def notes(self) -> list[str]:
        """What a user should know of these models, one line each."""
        notes = [self.target.note if isinstance(self.target, SyntheticSource) else None]
        notes += [source.context_note for source in (self.target, self.draft) if isinstance(source, ModelSource)]
        return [note for note in dict.fromkeys(notes) if note is not None]

    def planned_bytes(self, device_type: str = "cpu", prefill_piece: int | str = "auto") -> list[RankBytes]:
        """What each rank will hold at the longest sequence, before anything is loaded."""
        draft = None if self.draft is None else self.model_bytes(self.draft)
        piece = largest_piece(self.max_len, self.placement.num_stages, self.min_prefill_piece, prefill_piece)
        fixed = FIXED[device_type]
        return planned_bytes(self.placement, self.model_bytes(self.target), draft, self.max_len, fixed, piece)

    def model_bytes(self, source: Source) -> ModelBytes:
        """Sizes of the parts of the target or the draft."""
        assert isinstance(source, ModelSource)
        return count_bytes(source, self.dtype)

    @property
    def memory_gb(self) -> tuple[float, ...] | None:
        """Memory of each rank in 10^9 bytes, where the pair's description says it."""
        return None

    def known_costs(self) -> tuple[CostModel, float] | None:
        """Times of passes and messages, and the acceptance, where they are known before anything has run."""
        return None

    def speeds(self, devices: Sequence[Device]) -> tuple[float, ...]:
        """Of each rank, relative to each other."""
        return bandwidths(devices)

    @property
    def speeds_are_known(self) -> bool:
        """Whether the planner knows how fast the models are before anything has run."""
        return False

    def question(self, config: RunConfig, machine: Machine) -> Question | None:
        """What the planner is asked; None where it does not know what the ranks have."""
        if machine.memory is None:
            return None
        assert isinstance(self.target, ModelSource)
        target = model_sizes(self.target, self.dtype)
        draft = model_sizes(self.draft, self.dtype) if isinstance(self.draft, ModelSource) else None
        return Question(
            assumed_profile(target, draft, machine.speed),
            target.sizes,
            draft and draft.sizes,
            machine.memory,
            self.max_len,
            ASSUMED_ACCEPTANCE,
            FIXED[machine.device_type],
            Wanted.of(config, self.strategy),
        )

    def linked(self, transport: Transport) -> Transport:
        """The transport that messages of this run travel on."""
        return transport

    def stage_builder(self, rank: int, device: torch.device, stages: StageStore | None = None) -> BuildStage:
        """Builds layers [start, end) of a source on `rank`, or takes them out of `stages`."""

        def load(source: ModelSource, start: int, end: int, progress: OnBytes) -> Stage:
            return build_stage(
                source, start, end, dtype=self.dtype, device=device, max_len=self.max_len, progress=progress
            )

        take = load if stages is None else stages.lend(load, self.dtype, device)

        def build(source: Source, start: int, end: int, progress: OnBytes) -> AnyStage:
            assert isinstance(source, ModelSource)
            return take(source, start, end, progress)

        return build

    def draw_seed(self) -> int:
        """Of a request that names none."""
        return secrets.randbits(_SEED_BITS)

    def make_rule(self, verify: str, params: SamplingParams, seed: int) -> VerificationRule:
        return make_rule(verify, params, seed)

    def processing(self, params: SamplingParams) -> SamplingParams:
        """The options by which logits become scores."""
        return params

    def measured(self, module: RankModule, peak_bytes: int) -> dict[str, float]:
        """What a rank reports of a request besides its times."""
        return {"peak_bytes": peak_bytes}
