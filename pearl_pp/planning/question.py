"""What the planner is asked: a machine, two models, and what the user has already decided."""

from __future__ import annotations

from dataclasses import dataclass, field

from pearl_pp.config import RunConfig
from pearl_pp.planning.memory import FIXED, GB, FixedBytes, ModelBytes
from pearl_pp.simulation.profile import ModelProfile, Profile
from pearl_pp.stages.pass_bytes import PassBytes


@dataclass(frozen=True)
class Wanted:
    """Options that the user has set; None and "auto" leave them to the planner.

    Args:
        strategies: of them alone candidates are made.
    """

    layer_split: tuple[int, ...] | None = None
    fill: int | None = None
    verify_interval: int | None = None
    gamma: int | None = None
    handoff: str = "auto"
    strategies: frozenset[str] = frozenset({"ar", "sd", "pearl"})

    @classmethod
    def of(cls, config: RunConfig, strategy: str) -> Wanted:
        """What the options of a run leave to the planner."""
        fill, interval, gamma = (
            value if isinstance(value, int) else None for value in (config.fill, config.verify_interval, config.gamma)
        )
        return cls(config.layer_split, fill, interval, gamma, config.handoff, frozenset({strategy}))


@dataclass(frozen=True)
class Question:
    """Plain data.

    Args:
        profile: pass times at speed 1, speeds, links; its first ranks are meant where it has more.
        target, draft: sizes; without a draft only plain decoding is considered.
        memory: bytes that each rank may use; as many as there are ranks.
        max_len: positions that KV entries are kept for.
        acceptance: probability that a drafted token is the target's.
        fixed: what a rank needs whatever it holds.
        num_simulated: candidates that pass the screen.
    """

    profile: Profile
    target: ModelBytes
    draft: ModelBytes | None
    memory: tuple[float, ...]
    max_len: int
    acceptance: float
    fixed: FixedBytes = FIXED["cuda"]
    wanted: Wanted = field(default_factory=Wanted)
    num_simulated: int = 20

    def __post_init__(self) -> None:
        if not 1 <= self.num_ranks <= self.profile.num_ranks:
            raise ValueError(f"memory of {self.num_ranks} ranks, the profile has {self.profile.num_ranks}")

    @property
    def num_ranks(self) -> int:
        return len(self.memory)

    @property
    def num_layers(self) -> int:
        return len(self.target.layers)


# Hidden states' worth of activations alive at once in a layer: three of the MLP's width, which is about 3.5 times the
# hidden size in models of today, and two beside them. A profile does not say.
_ACTIVATIONS = 12


def bytes_of_profile(model: ModelProfile, vocab_size: int) -> ModelBytes:
    """Sizes as far as a profile tells them; the weights of the ends count with the layers, 0 where it has none."""
    weights = int((model.weights_gb or 0.0) * GB / model.num_layers)
    return ModelBytes(
        layers=(weights,) * model.num_layers,
        ends={(is_first, is_last): 0 for is_first in (False, True) for is_last in (False, True)},
        kv_per_layer=model.kv_bytes_per_layer,
        hidden_row=model.activation_bytes,
        vocab_size=vocab_size,
        of_pass=PassBytes(row=_ACTIVATIONS * model.activation_bytes),
    )
