"""The verification rule of emulated runs: no model decides, a drafted token is right with a chosen probability."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pearl_pp.decoding.noise import is_right
from pearl_pp.decoding.verification import Judgement


class EmulatedRule:
    """Drafts the target's token or another one, and accepts the target's (a `VerificationRule`).

    The verdict follows from the ids that travelled, so every message matters as in a real run; scores do not.

    Args:
        right_id, wrong_id: the id the target chooses at every position, and the one a wrong draft chooses.
        needs_probs: let q travel as the rule that is emulated would; the rows are blank.
    """

    def __init__(self, acceptance: float, seed: int, right_id: int, wrong_id: int, needs_probs: bool) -> None:
        self.needs_probs = needs_probs
        self._acceptance = acceptance
        self._seed = seed
        self._right_id = right_id
        self._wrong_id = wrong_id

    def draft(self, scores: Tensor, position: int) -> tuple[int, Tensor | None]:
        token_id = self._right_id if is_right(self._acceptance, self._seed, position) else self._wrong_id
        return token_id, torch.zeros(scores.shape[0]) if self.needs_probs else None

    def judge(self, scores: Tensor, drafted: Sequence[int], probs: Tensor | None, position: int) -> Judgement:
        rows = scores.shape[0]
        num_accepted = next((i for i, token in enumerate(drafted) if token != self._right_id), len(drafted))
        num_ids = min(num_accepted + 1, rows)
        return Judgement((self._right_id,) * num_ids, num_accepted, num_accepted < len(drafted))
