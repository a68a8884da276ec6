"""Many requests in one run: memory stays flat on every rank, speed does not drift, answers stay right."""

from __future__ import annotations

import ctypes
import gc
import random
import sys
import time
from array import array
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

pytestmark = pytest.mark.alone

NUM_RANKS = 4
LARGEST_GROWTH = 0.01
LARGEST_DRIFT = 1.5


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Target and draft of one pair that agrees now and then."""
    target, draft = save_pair(tmp_path_factory.mktemp("noisy"), "noisy")
    return str(target), str(draft)


class Soaked(NamedTuple):
    """One rank's view: its memory in bytes after the warm-up and at the end, and what it answered.

    `cpu_seconds` is what all its threads had used when each request was done. Answers are kept as bytes (ids are below
    128), and nothing else of a request: what the test holds must not look like growth.
    """

    early_bytes: int
    late_bytes: int
    cpu_seconds: list[float]
    answers: list[bytes]
    errors: list[str]


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


def requests(seed: int, num_warm_up: int, num_requests: int) -> list[Prompt]:
    """Random ones; those of the first quarter after the warm-up come again at the end, for the same work once more."""
    rng = random.Random(seed)
    quarter = (num_requests - num_warm_up) // 4
    prompts = [random_request(rng) for _ in range(num_requests - quarter)]
    return prompts + prompts[num_warm_up : num_warm_up + quarter]


def is_plain(prompt: Prompt) -> bool:
    params = prompt.params
    return params.temperature == 0 and params.ignore_eos and params.repetition_penalty == 1.0


def bytes_in_use(process: psutil.Process) -> int:
    """Resident memory without what the allocator holds for later: how much of that there is, is left to chance."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    return process.memory_info().rss


def soak(
    transport: Transport, folders: tuple[str, str], prompts: list[Prompt], num_warm_up: int, folder: str
) -> Soaked:
    engine = PearlPP(transport=transport, target=folders[0], draft=folders[1], gamma=3, placement="pipelined")
    path = str(Path(folder, "record.json")) if transport.rank == 0 else None
    record = JsonRecord(path, config={}, plan={}, versions={}, mode="real")
    process = psutil.Process()
    early_bytes = 0
    cpu_seconds, answers, errors = array("d", bytes(8 * len(prompts))), [b""] * len(prompts), []
    for index, output in enumerate(engine.iterate(prompts)):
        if transport.rank == 0:
            record.add(output)
        cpu_seconds[index] = time.process_time()
        if is_plain(prompts[index]):
            answers[index] = bytes(output.token_ids)
        if output.error is not None:
            errors.append(output.error)
        if index == num_warm_up:
            early_bytes = bytes_in_use(process)
    late_bytes = bytes_in_use(process)
    engine.close()
    return Soaked(early_bytes, late_bytes, cpu_seconds.tolist(), answers, errors)


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
    prompts = requests(7, num_warm_up, num_requests)
    ranks = shared_pool(NUM_RANKS).run(soak, folders, prompts, num_warm_up, str(tmp_path), timeout_s=1400.0)
    quarter = (num_requests - num_warm_up) // 4
    growths = [soaked.late_bytes / soaked.early_bytes - 1 for soaked in ranks]
    drifts = [drift_of(soaked.cpu_seconds, num_warm_up, quarter) for soaked in ranks]
    for rank, (soaked, growth, drift) in enumerate(zip(ranks, growths, drifts, strict=True)):
        record_property(f"growth on rank {rank}", growth)
        record_property(f"drift on rank {rank}", drift)
        size = f"{soaked.early_bytes / 2**20:.1f} -> {soaked.late_bytes / 2**20:.1f} MiB, {growth:+.2%}"
        print(f"rank {rank}: {size}; CPU time of the same requests later: {drift:.2f} times")
    for soaked in ranks:
        assert not soaked.errors
        assert soaked.answers == ranks[0].answers
        assert soaked.answers[-quarter:] == soaked.answers[num_warm_up : num_warm_up + quarter]
    assert max(growths) < LARGEST_GROWTH
    assert max(drifts) < LARGEST_DRIFT, "slower and slower"
    check_sample(prompts, ranks[0].answers, Path(folders[0]))


def drift_of(cpu_seconds: list[float], num_warm_up: int, quarter: int) -> float:
    """CPU time of the last quarter over that of the first, which had the same requests.

    Other processes do not count in it, as they would in time on the clock.
    """
    first = cpu_seconds[num_warm_up + quarter - 1] - cpu_seconds[num_warm_up - 1]
    return (cpu_seconds[-1] - cpu_seconds[-quarter - 1]) / first


def check_sample(prompts: list[Prompt], answers: list[bytes], target: Path) -> None:
    """Some of the plain ones are what one process says."""
    plain = [index for index, prompt in enumerate(prompts) if is_plain(prompt) and prompt.params.max_new_tokens]
    checked = plain[::7]
    assert len(checked) > len(prompts) // 60
    for index in checked:
        prompt = prompts[index]
        assert list(answers[index]) == oracle(target, list(prompt.token_ids or ()), prompt.params.max_new_tokens)


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

    options = {"placement": "pipelined", "verify_interval": verify_interval, "fill": 1}
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
