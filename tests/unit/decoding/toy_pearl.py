"""PEARL on Markov chains: windows, chunks in flight, rollbacks and bonus tokens, without models or ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pearl_pp.decoding.sampling import LogitsPipeline
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.decoding.verification import VerificationRule


def chain(*rows: Sequence[float]) -> Tensor:
    """Scores [vocab, vocab] of a Markov chain: row i is the distribution after token i."""
    return torch.tensor(rows).log()


def independent(*probs: float) -> Tensor:
    """A chain whose tokens do not depend on each other."""
    return chain(*[probs] * len(probs))


def random_chain(vocab_size: int, seed: int, sharpness: float = 1.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return sharpness * torch.randn(vocab_size, vocab_size, generator=generator)


def processed(logits: Tensor, params: SamplingParams) -> Tensor:
    """A chain's logits as the request's pipeline makes them scores."""
    pipeline = LogitsPipeline(params, len(logits), frozenset(), prompt_len=1)
    return torch.cat([pipeline.scores(row[None], [0]) for row in logits])


@dataclass
class Run:
    """The text of a run (its start token left out) and what became of the drafted tokens."""

    text: list[int] = field(default_factory=list)
    accepted: int = 0
    rejected: int = 0
    bonus: int = 0

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / (self.accepted + self.rejected)


@torch.inference_mode()
def pearl(
    rule: VerificationRule,
    target: Tensor,
    draft: Tensor,
    num_tokens: int,
    windows: Sequence[int] = (2,),
    in_flight: int = 1,
) -> Run:
    """Generate num_tokens by PEARL from token 0.

    windows: tokens drafted in each slot, in turn; a 0 makes bonus tokens. in_flight: most chunks under way.
    """
    run = Run()
    slot = 0
    draft_rows, target_rows = draft.unbind(), target.unbind()
    while len(run.text) < num_tokens:
        last, start = (run.text[-1] if run.text else 0), len(run.text)
        drafted, probs, fed, judged = [], [], [0], 0
        while fed and len(run.text) < num_tokens:
            for _ in range(windows[slot % len(windows)]):
                previous = drafted[-1] if drafted else last
                token, q = rule.draft(draft_rows[previous], start + len(drafted))
                drafted.append(token)
                probs.append(q)
            slot += 1
            if len(fed) == in_flight or fed[-1] == len(drafted):
                end = fed.pop(0) + 1
                tokens = drafted[judged:end]
                seen = [drafted[judged - 1] if judged else last, *drafted[judged : end - 1]]
                rows = torch.stack([target_rows[token] for token in seen])
                q_rows = torch.stack(probs[judged:end]) if rule.needs_probs and tokens else None
                judgement = rule.judge(rows, tokens, q_rows, start + judged)
                run.text.extend(judgement.token_ids)
                run.accepted += judgement.num_accepted
                run.rejected += judgement.rejected
                if judgement.rejected or len(tokens) < len(rows):
                    run.bonus += not judgement.rejected
                    break
                judged = end
            if len(drafted) > (fed[-1] if fed else judged - 1):
                fed.append(len(drafted))
    run.text = run.text[:num_tokens]
    return run


def plain(rule: VerificationRule, target: Tensor, num_tokens: int) -> list[int]:
    """Sampling from the target alone, with the same rule and so the same noise."""
    text = [0]
    for position in range(num_tokens):
        text.extend(rule.judge(target[text[-1]][None], [], None, position).token_ids)
    return text[1:]
