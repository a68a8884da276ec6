"""A plan that does not fit is refused on every rank alike, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pearl_pp.config import RunConfig
from pearl_pp.errors import UserError
from pearl_pp.planning.memory import RankBytes, Share
from pearl_pp.runtime.devices import Device, gather_devices
from pearl_pp.runtime.loading import open_pair
from pearl_pp.runtime.memory import memory_of, shares_of_cards
from pearl_pp.runtime.pair import ModelPair
from pearl_pp.transport.inprocess import InProcessGroup
from tests.unit.simulation.machines import profile, save_profile

GB = 10**9


def of(*sizes: int) -> list[RankBytes]:
    return [RankBytes(target_weights=size) for size in sizes]


def refusal(pair: ModelPair, planned: list[RankBytes], devices: list[Device] | None = None, **options: object) -> str:
    """What a rank says; an empty text where everything fits."""
    try:
        memory_of(RunConfig(**options), pair, devices or [Device()] * len(planned)).check(planned, pair.max_len)
    except UserError as error:
        return str(error)
    return ""


def test_memory_that_the_user_names(word_pair: ModelPair) -> None:
    assert refusal(word_pair, of(GB, 2 * GB), memory_gb=2) == ""
    said = refusal(word_pair, of(GB, 2 * GB), memory_gb="2,1.5")
    needs = "rank 1 needs 2 GB for weights, KV entries of 64 positions and work space"
    reason = f"{needs}, 1.5 GB are there: 0.5 GB short"
    assert said == f"--memory-gb 2,1.5: {reason}"
    said = refusal(word_pair, of(GB, GB), memory_gb="2,2,2")
    assert said.startswith("--memory-gb 2,2,2: has 3 numbers, this run has 2 ranks")


def test_on_a_cpu_nothing_is_assumed(word_pair: ModelPair) -> None:
    assert refusal(word_pair, of(GB**2, GB**2)) == ""
    assert memory_of(RunConfig(), word_pair, [Device()] * 2).of_each_rank(2) is None


def test_an_emulated_run_has_the_profiles_cards(tmp_path: Path) -> None:
    target = profile().target.model_dump() | {"weights_gb": 40.0}
    path = save_profile(tmp_path, target=target, draft__weights_gb=0.1)
    pair = open_pair(RunConfig(emulate=path), 4, torch.device("cpu"))
    said = refusal(pair, pair.planned_bytes(), emulate=path)
    assert said.startswith(f"--emulate {path}: rank ") and said.endswith(" GB short")
    assert refusal(pair, pair.planned_bytes(), emulate=path, memory_gb=20) == ""


def test_ranks_share_the_cards_they_are_on() -> None:
    small, large = Device("a 0", 10 * GB, 10 * GB), Device("a 1", 20 * GB, 20 * GB)
    cards = [small, large, small, Device()]
    assert shares_of_cards(cards, 0.5) == [Share((0, 2), 5 * GB), Share((1,), 10 * GB)]


def test_memory_that_other_processes_have_is_not_there(word_pair: ModelPair) -> None:
    card = Device("a 0", 10 * GB, 3 * GB)
    assert shares_of_cards([card], 0.9) == [Share((0,), 3 * GB)]
    assert shares_of_cards([card._replace(held_bytes=GB), card._replace(held_bytes=2 * GB)], 0.9) == [
        Share((0, 1), 6 * GB)
    ], "what ranks of this job hold is theirs"
    said = refusal(word_pair, of(4 * GB), [card])
    assert said.startswith("--gpu-memory-utilization 0.9: rank 0 needs 4 GB") and "3 GB are there" in said


def test_a_card_is_asked_for_its_size(word_pair: ModelPair, monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(uuid="u", total_memory=10 * GB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * GB, 10 * GB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: GB)
    monkeypatch.setattr("pearl_pp.runtime.devices._bandwidth", lambda device: 900.0)
    transport = InProcessGroup(1, 1.0, None, True).transport(0)
    transport.device = torch.device("cuda")
    (device,) = gather_devices(transport)
    assert device[1:] == (10 * GB, 8 * GB, GB, 900.0)
    assert refusal(word_pair, of(9 * GB), [device]) == ""
    said = refusal(word_pair, of(9 * GB), [device], gpu_memory_utilization=0.5)
    assert said.startswith("--gpu-memory-utilization 0.5: rank 0 needs 9 GB") and " 5 GB are there" in said
