"""Many requests in one run: memory stays flat on every rank, speed does not drift, answers stay right."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from pearl_pp import PearlPP
from pearl_pp.console.record import JsonRecord
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.runtime.request import Prompt
from pearl_pp.transport.base import Transport
from tests.pairs import oracle, save_pair
from tests.rank_pool import shared_pool

NUM_RANKS = 4
LARGEST_GROWTH = 0.01


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Target and draft of one pair that agrees now and then."""
    target, draft = save_pair(tmp_path_factory.mktemp("noisy"), "noisy")
    return str(target), str(draft)


class Soaked(NamedTuple):
    """One rank's view: its memory in bytes after the warm-up and at the end, and what it answered."""

    early_bytes: int
    late_bytes: int
    token_seconds: list[float]
    answers: list[list[int]]
    errors: list[str | None]


def random_request(rng: random.Random) -> Prompt:
    """A short prompt with options of every kind; every third one is plainly greedy, as the oracle is."""
    ids = tuple(rng.randrange(3, 126) for _ in range(rng.randrange(1, 40)))
    options: dict = {"max_new_tokens": rng.randrange(0, 16), "ignore_eos": True, "seed": rng.randrange(2**31)}
    if rng.random() < 2 / 3:
        options |= {
            "temperature": rng.choice([0.0, 0.5, 1.2]),
            "top_k": rng.choice([0, 5]),
            "top_p": rng.choice([1.0, 0.9]),
            "repetition_penalty": rng.choice([1.0, 1.2]),
            "logprobs": rng.random() < 0.5,
            "ignore_eos": rng.random() < 0.5,
        }
    return Prompt(token_ids=ids, params=SamplingParams(**options))


def is_plain(prompt: Prompt) -> bool:
    params = prompt.params
    return params.temperature == 0 and params.ignore_eos and params.repetition_penalty == 1.0


def soak(
    transport: Transport,
    folders: tuple[str, str],
    seed: int,
    num_warm_up: int,
    num_requests: int,
    options: dict,
    folder: str,
) -> Soaked:
    rng = random.Random(seed)
    prompts = [random_request(rng) for _ in range(num_requests)]
    engine = PearlPP(transport=transport, target=folders[0], draft=folders[1], gamma=3, **options)
    path = str(Path(folder, "record.json")) if transport.rank == 0 else None
    record = JsonRecord(path, config={}, plan={}, versions={}, mode="real")
    process = psutil.Process()
    early_bytes = 0
    token_seconds, answers, errors = [], [], []
    started = time.perf_counter()
    for index, output in enumerate(engine.iterate(prompts)):
        if transport.rank == 0:
            record.add(output)
        now = time.perf_counter()
        token_seconds.append((now - started) / max(1, len(output.token_ids)))
        answers.append(output.token_ids if is_plain(prompts[index]) else [])
        errors.append(output.error)
        if index == num_warm_up:
            gc.collect()
            early_bytes = process.memory_info().rss
        started = time.perf_counter()
    gc.collect()
    late_bytes = process.memory_info().rss
    engine.close()
    return Soaked(early_bytes, late_bytes, token_seconds, answers, errors)


@pytest.mark.parametrize(
    ("num_warm_up", "num_requests"),
    [(60, 150), pytest.param(200, 2000, marks=[pytest.mark.long, pytest.mark.timeout(1500)])],
)
def test_memory_stays_flat_and_speed_does_not_drift(
    num_warm_up: int,
    num_requests: int,
    folders: tuple[str, str],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    options = {"placement": "pipelined"}
    ranks = shared_pool(NUM_RANKS).run(
        soak, folders, 7, num_warm_up, num_requests, options, str(tmp_path), timeout_s=1400.0
    )
    rng = random.Random(7)
    prompts = [random_request(rng) for _ in range(num_requests)]
    for rank, soaked in enumerate(ranks):
        growth = soaked.late_bytes / soaked.early_bytes - 1
        record_property(f"growth on rank {rank}", growth)
        print(f"rank {rank}: {soaked.early_bytes / 2**20:.1f} -> {soaked.late_bytes / 2**20:.1f} MiB, {growth:+.2%}")
        assert soaked.errors == [None] * num_requests
        assert soaked.answers == ranks[0].answers
    assert max(soaked.late_bytes / soaked.early_bytes - 1 for soaked in ranks) < LARGEST_GROWTH
    part = (num_requests - num_warm_up) // 3
    first, last = (
        statistics.median(ranks[0].token_seconds[s])
        for s in (slice(num_warm_up, num_warm_up + part), slice(-part, None))
    )
    print(f"seconds a token, first third after warm-up {first:.4f}, last third {last:.4f}")
    assert last < 1.5 * first, "slower and slower"
    checked = [index for index, prompt in enumerate(prompts) if is_plain(prompt) and prompt.params.max_new_tokens][::7]
    assert len(checked) > num_requests // 60
    for index in checked:
        prompt = prompts[index]
        expected = oracle(Path(folders[0]), list(prompt.token_ids or ()), prompt.params.max_new_tokens)
        assert ranks[0].answers[index] == expected


def with_delays(
    transport: Transport, folders: tuple[str, str], verify_interval: int, num_requests: int
) -> list[list[int]]:
    """Every rank dawdles before slots of its own choice."""
    from pearl_pp.schedule.generator import SlotGenerator

    rng = random.Random(transport.rank)
    next_slot = SlotGenerator.next_slot

    def late(self: SlotGenerator):
        if rng.random() < 0.3:
            time.sleep(rng.random() * 0.004)
        return next_slot(self)

    options = {"placement": "pipelined", "verify_interval": verify_interval, "fill": rng.choice([1])}
    engine = PearlPP(transport=transport, target=folders[0], draft=folders[1], gamma=3, **options)
    params = SamplingParams(max_new_tokens=8, ignore_eos=True)
    prompts = [Prompt(token_ids=(3 + i % 100, 5, 7), params=params) for i in range(num_requests)]
    SlotGenerator.next_slot = late  # type: ignore[method-assign]
    try:
        return [output.token_ids for output in engine.iterate(prompts)]
    finally:
        SlotGenerator.next_slot = next_slot  # type: ignore[method-assign]
        engine.close()


@pytest.mark.parametrize("num_requests", [12, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
@pytest.mark.parametrize("verify_interval", [1, 2, 3, 4])
def test_random_delays_on_every_rank_change_no_answer(
    verify_interval: int,
    num_requests: int,
    folders: tuple[str, str],
) -> None:
    ranks = shared_pool(NUM_RANKS).run(with_delays, folders, verify_interval, num_requests, timeout_s=500.0)
    assert all(answers == ranks[0] for answers in ranks)
    for index in range(0, num_requests, 5):
        assert ranks[0][index] == oracle(Path(folders[0]), [3 + index % 100, 5, 7], 8)
