"""From a model's logits to the scores that tokens are drawn from: transformers' processors, row by row.

The rules and their order are those of transformers' `generate` (repetition penalty, no end-of-sequence token
before `min_new_tokens`, temperature, top-k, top-p, min-p), written for rows that each see another prefix.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pearl_pp.decoding.sampling_params import SamplingParams

NEVER = float("-inf")
# How many of the most likely tokens top-p looks at first; eight times as many until they hold the mass.
_FIRST_NUCLEUS = 256


class LogitsPipeline:
    """The logits processing of one request. It keeps no state: every call is told the whole prefix.

    vocab_size: number of real token ids, the tokenizer's length; logits beyond are padding and cut off.
    eos_token_ids: the target's; prompt_len: tokens in the prompt.
    """

    def __init__(self, params: SamplingParams, vocab_size: int, eos_token_ids: frozenset[int], prompt_len: int) -> None:
        self.params = params
        self.vocab_size = vocab_size
        self.prompt_len = prompt_len
        self._eos_ids = sorted(token for token in eos_token_ids if token < vocab_size)

    def scores(self, logits: Tensor, context: Sequence[int], drafted: Sequence[int] = ()) -> Tensor:
        """Scores whose softmax is the distribution to draw from; masked tokens are -inf.

        logits: [rows, model's vocab], any float dtype, never changed. Row i belongs to position len(context)
        + i and sees context + drafted[:i]; rows is at most len(drafted) + 1. Returns [rows, vocab_size]
        float32; where greedy has nothing to process, a view of the logits as they are.
        """
        rows = logits.shape[0]
        if rows > len(drafted) + 1:
            raise ValueError(f"{rows} rows of logits need more than {len(drafted)} drafted tokens")
        scores = cut_to_vocab(logits, self.vocab_size)
        params = self.params
        num_banned = min(rows, self.prompt_len + params.min_new_tokens - len(context))
        if params.greedy and params.repetition_penalty == 1.0 and num_banned <= 0:
            return scores
        scores = scores.float()
        if params.repetition_penalty != 1.0:
            scores = penalise_repetition(scores, params.repetition_penalty, context, drafted)
        if num_banned > 0 and self._eos_ids:
            scores = scores.clone()
            scores[:num_banned, self._eos_ids] = NEVER
        return scores if params.greedy else warp(scores, params)


def cut_to_vocab(logits: Tensor, vocab_size: int) -> Tensor:
    """[rows, model's vocab] -> [rows, vocab_size]: a view, or padded with -inf where the model has fewer."""
    missing = vocab_size - logits.shape[-1]
    if missing > 0:
        return torch.nn.functional.pad(logits, (0, missing), value=NEVER)
    return logits[..., :vocab_size]


def penalise_repetition(scores: Tensor, penalty: float, context: Sequence[int], drafted: Sequence[int]) -> Tensor:
    """Push down the tokens row i has seen, in context or drafted[:i]: transformers' rule. A new tensor."""
    first_row = {token: row for row, token in reversed(list(enumerate(drafted, start=1)))}
    first_row.update(dict.fromkeys(context, 0))
    tokens = torch.from_numpy(np.array(list(first_row), dtype=np.int64)).to(scores.device)
    from_row = torch.from_numpy(np.array(list(first_row.values()), dtype=np.int64)).to(scores.device)
    rows = torch.arange(len(scores), device=scores.device)
    plain = scores[:, tokens]
    penalised = torch.where(plain < 0, plain * penalty, plain / penalty)
    seen = rows[:, None] >= from_row[None, :]
    return scores.index_copy(1, tokens, torch.where(seen, penalised, plain))


def warp(scores: Tensor, params: SamplingParams) -> Tensor:
    """Temperature, top-k, top-p, min-p in transformers' order; scores [rows, vocab] float32."""
    if params.temperature != 1.0:
        scores = scores / params.temperature
    if params.top_k:
        kth = scores.topk(min(params.top_k, scores.shape[-1])).values[:, -1:]
        scores = scores.masked_fill(scores < kth, NEVER)
    if params.top_p < 1.0:
        scores = _top_p(scores, params.top_p)
    if params.min_p > 0.0:
        probs = scores.softmax(-1)
        scores = scores.masked_fill(probs < params.min_p * probs.amax(-1, keepdim=True), NEVER)
    return scores


def _top_p(scores: Tensor, top_p: float) -> Tensor:
    """Keep a token while the more likely ones together hold less than top_p.

    Looks at the most likely tokens only: sorting a whole row of 32 000 on a CPU takes about 2 ms.
    """
    probs = scores.softmax(-1)
    vocab_size = probs.shape[-1]
    num_top = min(_FIRST_NUCLEUS, vocab_size)
    while True:
        top, tokens = scores.topk(num_top)
        weights = probs.gather(-1, tokens)
        mass = weights.cumsum(-1, dtype=torch.float64)
        if num_top == vocab_size or bool((mass[:, -1] >= top_p).all()):
            break
        num_top = min(8 * num_top, vocab_size)
    kept = top.masked_fill(mass - weights >= top_p, NEVER)
    return torch.full_like(scores, NEVER).scatter(-1, tokens, kept)


def token_logprobs(logits: Tensor, token_ids: Sequence[int], vocab_size: int) -> list[float]:
    """Log-probability of token_ids[i] by row i of the target's logits [rows, model's vocab]; one host copy.

    The logits are raw: before penalty, temperature and cuts, as vLLM reports them, only without padding ids.
    """
    if not token_ids:
        return []
    logprobs = cut_to_vocab(logits[: len(token_ids)], vocab_size).float().log_softmax(-1)
    tokens = torch.tensor(token_ids, device=logits.device)
    return logprobs.gather(-1, tokens[:, None])[:, 0].tolist()
