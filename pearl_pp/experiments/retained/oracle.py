"""What the text of every row must be, and the prompts that follow from it (a second turn holds the first answer)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pearl_pp.config import RunConfig
from pearl_pp.experiments.retained.experiment import Case
from pearl_pp.experiments.retained.job import ENGINE, HF, ORACLE, Job, Key
from pearl_pp.experiments.retained.workloads import prompt_for
from pearl_pp.runtime.emulation import EmulatedPair
from pearl_pp.runtime.loading import open_pair
from pearl_pp.runtime.request import Prompt

Answer = Mapping[str, Any]

GENERATE, EMULATED_TARGET, PLAIN = "generate", "emulated target", "ar"
_GREEDY = {"temperature": 0.0}


@dataclass(frozen=True)
class Asked:
    """A prompt of a case.

    Args:
        oracle: who says what its text must be; None where nobody can: each run of a sampled text differs.
        token_ids: the text; None where it follows from the prompt alone, or nobody has said it.
    """

    name: str
    prompt: Prompt
    oracle: str | None
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Oracle:
    """Who says what a text must be.

    Args:
        name: see `Asked`.
        row, kind, options: the run that says it; kind None where none has to.
        otherwise: who says it where that run cannot be made: a large model does not fit one card.
    """

    name: str | None
    row: str = "hf"
    kind: str | None = None
    options: Mapping[str, Any] | None = None
    otherwise: Oracle | None = None

    def key(self, case: Case, prompt: str) -> Key:
        return Key(case.name, self.row, "", ORACLE, 0, prompt)

    def job(self, case: Case, prompt: Prompt) -> Job:
        assert self.kind is not None and self.options is not None
        return Job(case.num_ranks, self.kind, self.options, prompt)


def oracle_of(case: Case) -> Oracle:
    """Who says the texts of a case.

    Greedy: transformers' `generate`, or plain decoding where the target does not fit one device. `coupled`: plain
    decoding with the same noise. Emulated: the profile's target, which always says the same. With `rejection` every
    schedule draws another text.
    """
    config = case.config
    if case.is_emulated:
        return Oracle(EMULATED_TARGET)
    alone = Oracle(PLAIN, "ar", ENGINE, {**case.options, "strategy": "ar"})
    if config.sampling_params().greedy:
        return Oracle(GENERATE, "hf", HF, case.options, alone)
    if config.verify == "coupled":
        return alone
    if any(len(item.turns) > 1 for item in case.workload.items):  # the first answer is said by the greedy target
        return Oracle(None, "hf", HF, {**case.options, **_GREEDY})
    return Oracle(None)


def asked(case: Case, oracle: Oracle, run: Callable[[Key, Job], Answer | None]) -> Iterator[Asked]:
    """All prompts of a case in order; `run` makes the oracle's runs, and gives None for one that cannot be made."""
    params = case.config.sampling_params()
    for item in case.workload.items[: case.prompts_limit]:
        answers: list[str] = []
        for turn in range(len(item.turns)):
            name = case.workload.key(item, turn)
            prompt = prompt_for(item, turn, answers, case.chat, params)
            answer = None
            if oracle.kind is not None:
                answer = run(oracle.key(case, name), oracle.job(case, prompt))
                if answer is None and oracle.otherwise is not None:
                    oracle = oracle.otherwise
                    answer = run(oracle.key(case, name), oracle.job(case, prompt))
            answers.append("" if answer is None else answer["text"])
            if answer is None or oracle.name is None:
                yield Asked(name, prompt, oracle.name if oracle.kind is None else None)
                if oracle.kind is not None and answer is None:
                    break  # what a later turn asks is not known, and must not be another thing the next time
            else:
                yield Asked(name, prompt, oracle.name, tuple(answer["token_ids"]))


def names(case: Case) -> list[str]:
    """Of all prompts of a case."""
    items = case.workload.items[: case.prompts_limit]
    return [case.workload.key(item, turn) for item in items for turn in range(len(item.turns))]


def text_equals(asked: Asked, config: RunConfig, num_ranks: int, answer: Answer) -> bool | None:
    """Whether an answer is the oracle's; None without an oracle."""
    if asked.oracle is None:
        return None
    expected: Sequence[int] | None = asked.token_ids
    if expected is None:
        pair = open_pair(config, num_ranks, torch.device("cpu"))
        assert isinstance(pair, EmulatedPair), "only an emulated target's text needs no run"
        room = pair.max_len - len(answer["prompt_token_ids"])
        expected = (pair.right_id,) * min(asked.prompt.params.max_new_tokens, room)
    return list(expected) == list(answer["token_ids"])
