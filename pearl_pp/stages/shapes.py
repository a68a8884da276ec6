"""The shape of a synthetic pair (DESIGN section 10): what its YAML file holds. No torch in here.

Read by `config.read_shape`; the models are made by `stages.synthetic`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

PositiveInt = Annotated[int, Field(ge=1, strict=True)]

DEFAULT_EPS = 0.05


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DraftShape(_Entry):
    """The draft is the target's first layers, with the target's embedding, norm and head."""

    num_layers: PositiveInt


class PairShape(_Entry):
    """A random Llama and its draft, both told by one file.

    Args:
        num_layers: of the target.
        seed: all weights are a pure function of it.
        eps: scales what the target's layers beyond the draft's add; 0 makes the two models agree everywhere.
        agreement: the share of tokens on which both models' likeliest id is the same, measured with this eps
            (`pearl-pp make-pair`); None where nobody has measured it.
    """

    name: str
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_layers: PositiveInt
    num_heads: PositiveInt
    num_kv_heads: PositiveInt
    vocab_size: Annotated[int, Field(ge=2, strict=True)]
    max_positions: PositiveInt
    seed: Annotated[int, Field(ge=0, strict=True)] = 0
    eps: Annotated[float, Field(ge=0, le=1, strict=True)] = DEFAULT_EPS
    agreement: Annotated[float, Field(ge=0, le=1, strict=True)] | None = None
    draft: DraftShape

    @model_validator(mode="after")
    def _sizes_fit(self) -> PairShape:
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(f"num_heads {self.num_heads}: does not cut hidden_size {self.hidden_size} into even parts")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads {self.num_kv_heads}: does not divide num_heads {self.num_heads}")
        if self.draft.num_layers > self.num_layers:
            raise ValueError(f"draft.num_layers {self.draft.num_layers}: is more than the target's {self.num_layers}")
        return self
