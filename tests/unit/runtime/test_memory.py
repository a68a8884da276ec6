"""A plan that does not fit is refused on every rank alike, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pearl_pp.config import RunConfig
from pearl_pp.errors import UserError
from pearl_pp.planning.memory import RankBytes, Share
from pearl_pp.runtime import memory
from pearl_pp.runtime.loading import open_pair
from pearl_pp.runtime.pair import ModelPair
from pearl_pp.transport.inprocess import InProcessGroup, InProcessTransport
from tests.unit.simulation.machines import profile, save_profile

GB = 10**9


def of(*sizes: int) -> list[RankBytes]:
    return [RankBytes(target_weights=size) for size in sizes]


def refusals(pair: ModelPair, num_ranks: int, planned: list[RankBytes], **options: object) -> set[str]:
    """What the ranks say; an empty text for a rank to which everything fits."""

    def work(transport: InProcessTransport) -> str:
        try:
            memory.check_memory(transport, RunConfig(**options), pair, planned)
        except UserError as error:
            return str(error)
        return ""

    return set(InProcessGroup(num_ranks, 10.0, None, True).run(work))


def test_memory_that_the_user_names(word_pair: ModelPair) -> None:
    assert refusals(word_pair, 2, of(GB, 2 * GB), memory_gb=2) == {""}
    (said,) = refusals(word_pair, 2, of(GB, 2 * GB), memory_gb="2,1.5")
    needs = "rank 1 needs 2 GB for weights, KV entries of 64 positions and work space"
    reason = f"{needs}, 1.5 GB are there: 0.5 GB short"
    assert said == f"--memory-gb 2,1.5: {reason}"
    (said,) = refusals(word_pair, 2, of(GB, GB), memory_gb="2,2,2")
    assert said.startswith("--memory-gb 2,2,2: has 3 numbers, this run has 2 ranks")


def test_on_a_cpu_nothing_is_assumed(word_pair: ModelPair) -> None:
    assert refusals(word_pair, 2, of(GB**2, GB**2)) == {""}


def test_an_emulated_run_has_the_profiles_cards(tmp_path: Path) -> None:
    target = profile().target.model_dump() | {"weights_gb": 40.0}
    path = save_profile(tmp_path, target=target, draft__weights_gb=0.1)
    pair = open_pair(RunConfig(emulate=path), 4, torch.device("cpu"))
    (said,) = refusals(pair, 4, pair.planned_bytes(), emulate=path)
    assert said.startswith(f"--emulate {path}: rank ") and said.endswith(" GB short")
    assert refusals(pair, 4, pair.planned_bytes(), emulate=path, memory_gb=20) == {""}


def test_ranks_share_the_cards_they_are_on() -> None:
    cards = [("a 0", 10 * GB), ("a 1", 20 * GB), ("a 0", 10 * GB), None]
    assert memory.shares_of_cards(cards, 0.5) == [Share((0, 2), 5 * GB), Share((1,), 10 * GB)]


def test_a_card_is_asked_for_its_size(word_pair: ModelPair, monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(uuid="u", total_memory=10 * GB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    group = InProcessGroup(1, 1.0, None, True)
    transport = group.transport(0)
    transport.device = torch.device("cuda")
    memory.check_memory(transport, RunConfig(), word_pair, of(9 * GB))
    with pytest.raises(UserError, match=r"^--gpu-memory-utilization 0.5: rank 0 needs 9 GB .* 5 GB are there"):
        memory.check_memory(transport, RunConfig(gpu_memory_utilization=0.5), word_pair, of(9 * GB))
