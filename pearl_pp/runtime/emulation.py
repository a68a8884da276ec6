"""Emulated runs (DESIGN section 10): every process, message and verdict is real, the models sleep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pearl_pp import builtin
from pearl_pp.config import RunConfig, read_profile
from pearl_pp.config.strategies import STRATEGIES
from pearl_pp.decoding.emulated import EmulatedRule
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.decoding.verification import VerificationRule, make_rule
from pearl_pp.errors import UserError
from pearl_pp.planning.memory import FIXED, GB, ModelBytes, RankBytes, shares_of
from pearl_pp.planning.presets import resolve_placement
from pearl_pp.planning.question import Question, Wanted, bytes_of_profile
from pearl_pp.planning.splitting import best_split
from pearl_pp.runtime.devices import Device, Machine
from pearl_pp.runtime.pair import BuildStage, ModelPair, OnBytes, Source
from pearl_pp.runtime.vocabulary import Vocabulary, load_tokenizer
from pearl_pp.schedule.placement import Placement
from pearl_pp.simulation.costs import ProfileCosts
from pearl_pp.simulation.profile import ModelProfile, Profile
from pearl_pp.simulation.simulator import CostModel
from pearl_pp.stages.rank_module import RankModule
from pearl_pp.stages.sleeping import Sleeper, SleepingSource, SleepingStage
from pearl_pp.stages.source import open_model
from pearl_pp.stages.stage_store import StageStore
from pearl_pp.transport.base import Transport
from pearl_pp.transport.delayed import DelayedTransport

DEFAULT_MAX_LEN = 32_768
DEFAULT_SEED = 0
_FILLER = "."


@dataclass(frozen=True)
class EmulatedPair(ModelPair):
    """A profile in the place of two model folders.

    Args:
        profile: times, sizes and acceptance.
        right_id: the id that the target chooses everywhere; it shows as a dot.
    """

    profile: Profile
    right_id: int

    @property
    def min_prefill_piece(self) -> int:
        profile = self.profile
        return max(1, math.ceil(profile.prefill_tokens_per_s * profile.target.one_token_ms * 1e-3))

    def notes(self) -> list[str]:
        return [f"{self.profile.name}: passes sleep for the profile's time, acceptance {self.profile.acceptance:g}"]

    def model_bytes(self, source: Source) -> ModelBytes:
        return bytes_of_profile(self._profile_of(source), self.vocabulary.size)

    def planned_bytes(self, device_type: str = "cuda", prefill_piece: int | str = "auto") -> list[RankBytes]:
        """What each of the profile's cards would hold, wherever this process runs."""
        return super().planned_bytes("cuda", prefill_piece)

    @property
    def memory_gb(self) -> tuple[float, ...] | None:
        """Of the profile's ranks, where it says too what has to fit."""
        sources = (self.target, self.draft)
        if any(source and self._profile_of(source).weights_gb is None for source in sources):
            return None
        return self.profile.ranks.memory_gb

    def known_costs(self) -> tuple[CostModel, float]:
        return ProfileCosts(self.profile, self.placement), self.profile.acceptance

    def speeds(self, devices: Sequence[Device]) -> tuple[float, ...]:
        return self.profile.ranks.speed[: len(devices)]

    @property
    def speeds_are_known(self) -> bool:
        return True

    def question(self, config: RunConfig, machine: Machine) -> Question:
        num_ranks = len(machine.speed)
        draft = None if self.draft is None else self.model_bytes(self.draft)
        return Question(
            self.profile,
            self.model_bytes(self.target),
            draft,
            machine.memory or tuple(number * GB for number in self.profile.ranks.memory_gb[:num_ranks]),
            self.max_len,
            self.profile.acceptance,
            FIXED["cuda"],
            Wanted.of(config, self.strategy),
        )

    def _profile_of(self, source: Source) -> ModelProfile:
        return self.profile.target if source is self.target else self.profile.draft

    def linked(self, transport: Transport) -> Transport:
        return DelayedTransport(transport, self.profile.link_s)

    def stage_builder(self, rank: int, device: torch.device, stages: StageStore | None = None) -> BuildStage:
        """Sleeping stages cost nothing: there is none to be shared."""
        sleeper = Sleeper()

        def build(source: Source, start: int, end: int, progress: OnBytes) -> SleepingStage:
            assert isinstance(source, SleepingSource)
            is_target = source is self.target
            model = self._profile_of(source)
            pass_s = self.profile.target_pass_s if is_target else self.profile.draft_pass_s
            num_layers = end - start
            return SleepingStage(
                source,
                start,
                end,
                duration=lambda num_tokens: pass_s(rank, num_layers, num_tokens),
                sleeper=sleeper,
                weight_bytes=int((model.weights_gb or 0.0) * GB * num_layers / model.num_layers),
                kv_bytes_per_layer=model.kv_bytes_per_layer,
            )

        return build

    def draw_seed(self) -> int:
        return DEFAULT_SEED

    def make_rule(self, verify: str, params: SamplingParams, seed: int) -> VerificationRule:
        needs_probs = make_rule(verify, params, seed).needs_probs
        wrong_id = (self.right_id + 1) % self.vocabulary.size
        return EmulatedRule(self.profile.acceptance, seed, self.right_id, wrong_id, needs_probs)

    def processing(self, params: SamplingParams) -> SamplingParams:
        return SamplingParams(max_new_tokens=params.max_new_tokens)

    def measured(self, module: RankModule, peak_bytes: int) -> dict[str, float]:
        """Not this process's memory, but by how much its sleeps overran, in seconds."""
        return {"sleep_overrun_s": sum(s.overrun_s for s in module.stages if isinstance(s, SleepingStage))}


def open_emulated_pair(config: RunConfig, strategy: str, num_ranks: int) -> EmulatedPair:
    """The pair that `--emulate` describes, on `num_ranks` ranks.

    Prompts are tokenised with the embedded pair's tokenizer: only their lengths matter.

    Raises:
        UserError: a profile, or a placement, that does not fit.
    """
    assert config.emulate is not None
    profile = read_profile(config.emulate)
    if num_ranks > profile.num_ranks:
        reason = f"ranks: describes {profile.num_ranks} ranks, this run has {num_ranks}"
        raise UserError("--emulate", config.emulate, reason)
    tokenizer = load_tokenizer(open_model(builtin.TARGET_DIR, "--target"))
    assert tokenizer is not None, "the embedded pair has a tokenizer"
    vocab_size = max(profile.target.vocab_size, len(tokenizer))
    fingerprint = profile.model_dump_json()

    def source(model: ModelProfile) -> SleepingSource:
        path = Path(config.emulate or "")
        sizes = (model.num_layers, model.hidden_size, vocab_size, config.max_model_len or DEFAULT_MAX_LEN)
        return SleepingSource(path, "--emulate", *sizes, fingerprint)

    drafts = STRATEGIES[strategy].drafts
    draft_layers = profile.draft.num_layers if drafts else 0
    wanted = config.model_copy(update={"strategy": strategy})
    placement = resolve_placement(wanted, num_ranks, profile.target.num_layers, draft_layers)
    pair = EmulatedPair(
        target=source(profile.target),
        draft=source(profile.draft) if drafts else None,
        vocabulary=Vocabulary(tokenizer, vocab_size),
        placement=placement,
        strategy=strategy,
        dtype=torch.bfloat16,
        max_len=config.max_model_len or DEFAULT_MAX_LEN,
        profile=profile,
        right_id=tokenizer.convert_tokens_to_ids(_FILLER),
    )
    return replace(pair, placement=_cut(config, pair, num_ranks))


def question_of(config: RunConfig, num_ranks: int) -> Question:
    """What the planner is asked about the pair that `config` emulates; raises UserError as `open_emulated_pair`."""
    pair = open_emulated_pair(config, config.strategy, num_ranks)
    return pair.question(config, machine_of(config, pair, num_ranks))


def machine_of(config: RunConfig, pair: EmulatedPair, num_ranks: int) -> Machine:
    """The cards that are emulated."""
    ranks = pair.profile.ranks
    given = [share.num_bytes for share in shares_of(config.memory_gb or ranks.memory_gb[:num_ranks], num_ranks)]
    return Machine(tuple(given), ranks.speed[:num_ranks])


def _cut(config: RunConfig, pair: EmulatedPair, num_ranks: int) -> Placement:
    """The placement with its layers as they would be cut for these cards: evenly where they are alike."""
    machine = machine_of(config, pair, num_ranks)
    if not (config.leaves_layers_free and machine.is_uneven):
        return pair.placement
    return best_split(pair.question(config, machine), pair.placement) or pair.placement
