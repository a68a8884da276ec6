"""Where layers and the draft go when ranks differ, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pearl_pp.config import RunConfig
from pearl_pp.errors import UserError
from pearl_pp.runtime import fitting
from pearl_pp.runtime.devices import Device
from pearl_pp.runtime.loading import open_pair
from pearl_pp.runtime.simulated import simulate
from pearl_pp.schedule.placement import Placement
from pearl_pp.transport.inprocess import InProcessGroup, InProcessTransport

NUM_RANKS = 4
PROFILES = Path(__file__).resolve().parents[3] / "configs" / "profiles"
PAIR = {"target": "synthetic:cpu_small", "draft": "synthetic:cpu_small"}  # 24 layers of 21 MB, a draft of 0.15 GB
TIGHT = "0.5,0.5,0.14,0.3"


def fitted(**options: object) -> tuple[Placement, list[str]]:
    """The placement that every rank finds, and what is said of it."""
    config = RunConfig(**(options if "emulate" in options else PAIR | options))
    pair = open_pair(config, NUM_RANKS, torch.device("cpu"))

    def work(transport: InProcessTransport) -> tuple[Placement, list[str]]:
        fitted_pair, needed, notes = fitting.fit_placement(transport, config, pair)
        assert needed == fitted_pair.planned_bytes(transport.device.type)
        return fitted_pair.placement, notes

    results = InProcessGroup(NUM_RANKS, 60.0, None, True).run(work)
    assert all(result == results[0] for result in results)
    return results[0]


def test_equal_ranks_get_even_stages() -> None:
    for options in ({}, {"memory_gb": 2}, {"placement": "hop", "memory_gb": "2,2,2,2.1"}):
        placement, notes = fitted(**options)
        assert (placement.target, notes) == ((6, 6, 6, 6), [])


@pytest.mark.parametrize("placement", ["hop", "single", "auto"])
def test_layers_go_where_there_is_memory(placement: str) -> None:
    with pytest.raises(UserError, match=r"^--memory-gb \S+: rank 2 needs .* short$"):
        fitted(placement=placement, memory_gb=TIGHT, layer_split="6,6,6,6")
    found, _ = fitted(placement=placement, memory_gb=TIGHT)
    assert sum(found.target) == 24
    assert found.replicas
    if found.num_stages == NUM_RANKS:
        assert found.target[2] < 6


def test_a_target_alone_is_cut_as_well() -> None:
    found, _ = fitted(strategy="ar", memory_gb=TIGHT)
    assert sum(found.target) == 24 and found.target[2] < 6 and not found.replicas


def test_where_ranks_are_nearly_alike_the_even_split_gives_way_with_a_reason() -> None:
    """Less than a tenth apart: even stages are tried first."""
    whole = open_pair(RunConfig(**PAIR, placement="single"), NUM_RANKS, torch.device("cpu")).planned_bytes()
    largest = max(rank.total for rank in whole) / 1e9
    found, notes = fitted(placement="single", memory_gb=f"{largest * 0.97}")
    assert found.target[3] < 6, "the rank of the draft gets fewer layers"
    assert len(notes) == 1 and notes[0].startswith("layers are cut as memory allows; evenly, rank 3 needs")


def test_what_fits_nowhere_is_refused_with_what_is_short() -> None:
    with pytest.raises(UserError, match="short"):
        fitted(placement="hop", memory_gb="0.1,0.1,0.1,0.1")


def test_slower_cards_get_fewer_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [Device(f"a {rank}", 24 * 10**9, 24 * 10**9, 0, speed) for rank, speed in enumerate((900, 900, 450, 450))]
    monkeypatch.setattr(fitting, "gather_devices", lambda transport: devices)
    several, _ = fitted(placement="pipelined")
    assert several.target[0] > several.target[2] > 0, "the slowest stage sets the pace of several chunks in flight"
    monkeypatch.setattr(
        fitting,
        "gather_devices",
        lambda transport: [device._replace(bandwidth_gb_s=900.0 + rank) for rank, device in enumerate(devices)],
    )
    alike, _ = fitted(placement="pipelined")
    assert alike.target == (6, 6, 6, 6), "differences of a measurement are none"


def test_a_simulated_run_has_the_placement_that_a_run_loads() -> None:
    options = {"emulate": str(PROFILES / "a100_llama2_7b_70b.yaml"), "max_new_tokens": 8}
    found, _ = fitted(**options)
    assert found.num_stages == 3, "the draft alone on the last card is the planner's choice here, and no preset's"
    simulated = simulate(RunConfig(**options), NUM_RANKS, prompt_len=4)
    assert simulated.pair.placement == found
