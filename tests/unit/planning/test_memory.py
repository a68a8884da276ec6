"""What a rank will hold, counted before it is loaded, against what it holds once it is."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from pearl_pp.config import RunConfig
from pearl_pp.errors import UserError
from pearl_pp.planning.memory import Share, check_fits, shares_of
from pearl_pp.runtime.loading import build_rank, open_pair
from tests.pairs import save_pair
from tests.unit.simulation.machines import profile, save_profile

CPU = torch.device("cpu")
GB = 10**9


@pytest.mark.case("M1")
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("num_ranks", "options"),
    [
        (1, {"strategy": "sd"}),
        (3, {"placement": "hop"}),
        (3, {"placement": "dedicated", "dtype": "bfloat16"}),
        (3, {"placement": "sharded"}),
    ],
    ids=str,
)
def test_planned_bytes_are_those_of_the_loaded_stages(
    tied: bool, num_ranks: int, options: dict, tmp_path: Path
) -> None:
    target, draft = map(str, save_pair(tmp_path, "tiny", tie_word_embeddings=tied, num_hidden_layers=5))
    pair = open_pair(RunConfig(target=target, draft=draft, max_model_len=200, **options), num_ranks, CPU)
    loaded = []
    for rank in range(num_ranks):
        stages = build_rank(pair, rank, CPU).stages
        loaded.append(sum(stage.weight_bytes + stage.cache.bytes_per_token * pair.max_len for stage in stages))
    assert pair.planned_bytes() == pytest.approx(loaded, rel=0.001)


def test_an_emulated_ranks_bytes_are_the_profiles(tmp_path: Path) -> None:
    whole = {"weights_gb": 4.8, "kv_bytes_per_token": 8 * 10**5}
    target = profile().target.model_dump() | whole
    options = {"placement": "hop", "layer_split": (1, 3, 3, 1), "max_model_len": 1000}
    path = save_profile(tmp_path, target=target, draft__weights_gb=0.4)
    pair = open_pair(RunConfig(emulate=path, **options), 4, CPU)
    draft = 0.4 * GB + 4 * 128 * 1000
    assert pair.planned_bytes() == [0.7 * GB + draft, 2.1 * GB, 2.1 * GB, 0.7 * GB + draft]
    assert pair.memory_gb == (8,) * 5
    path = save_profile(tmp_path, target=target)
    assert open_pair(RunConfig(emulate=path, **options), 4, CPU).memory_gb is None
    assert open_pair(RunConfig(emulate=path, strategy="ar"), 4, CPU).memory_gb == (8,) * 5


class TestFitting:
    def test_what_is_there_may_be_used_up(self) -> None:
        check_fits([GB, 2 * GB], shares_of((1.0, 2.0), 2), 100, "--memory-gb", "1,2")
        check_fits([GB, GB], shares_of((1.0,), 2), 100, "--memory-gb", "1")

    def test_the_rank_that_has_too_little_is_named_with_what_is_short(self) -> None:
        with pytest.raises(UserError) as caught:
            check_fits([GB, 3 * GB], shares_of((2.0,), 2), 4096, "--memory-gb", "2")
        reason = "rank 1 needs 3 GB for weights and KV entries of 4096 positions, 2 GB are there: 1 GB short"
        assert str(caught.value) == f"--memory-gb 2: {reason}"

    def test_ranks_on_one_card_share_it(self) -> None:
        shares = [Share((0, 1), 3 * GB), Share((2,), 3 * GB)]
        check_fits([GB, GB, GB], shares, 8, "--gpu-memory-utilization", 0.9)
        with pytest.raises(UserError, match=r"^--gpu-memory-utilization 0.9: ranks 0, 1, on one card, need 4 GB"):
            check_fits([2 * GB, 2 * GB, GB], shares, 8, "--gpu-memory-utilization", 0.9)

    @pytest.mark.parametrize("numbers", [2, 4])
    def test_another_number_of_numbers_is_one_line(self, numbers: int) -> None:
        memory = tuple(itertools.repeat(80.0, numbers))
        with pytest.raises(UserError) as caught:
            shares_of(memory, 3)
        given = ",".join(["80"] * numbers)
        expected = f"--memory-gb {given}: has {numbers} numbers, this run has 3 ranks; give one for all or one for each"
        assert str(caught.value) == expected
