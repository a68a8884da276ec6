"""What a rank will hold, counted before it is loaded, against what it holds once it is."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pearl_pp.config import RunConfig
from pearl_pp.errors import UserError
from pearl_pp.planning.memory import (
    FIXED,
    MAX_MEMORY_GB,
    FixedBytes,
    ModelBytes,
    RankBytes,
    Share,
    check_fits,
    count_bytes,
    largest_piece,
    planned_bytes,
    shares_of,
)
from pearl_pp.runtime.loading import build_rank, open_pair
from pearl_pp.runtime.pacing import prefill_piece
from pearl_pp.schedule.placement import Placement, Shard
from pearl_pp.stages.pass_bytes import PassBytes
from pearl_pp.stages.source import open_model
from pearl_pp.stages.stage import build_stage
from tests.families import FAMILIES
from tests.pairs import save_pair
from tests.unit.simulation.machines import profile, save_profile
from tests.unit.stages.tiny import cut, save_model

CPU = torch.device("cpu")
GB = 10**9


def weights(planned: RankBytes) -> int:
    return planned.target_weights + planned.draft_weights + planned.tied_copy


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
def test_planned_weights_and_entries_are_those_of_the_loaded_stages(
    tied: bool, num_ranks: int, options: dict, tmp_path: Path
) -> None:
    target, draft = map(str, save_pair(tmp_path, "tiny", tie_word_embeddings=tied, num_hidden_layers=5))
    pair = open_pair(RunConfig(target=target, draft=draft, max_model_len=200, **options), num_ranks, CPU)
    for rank, planned in enumerate(pair.planned_bytes()):
        module = build_rank(pair, rank, CPU)
        targets, drafts = [module.target] if module.target else [], list(module.shards.values())
        assert weights(planned) == module.weight_bytes
        assert planned.target_kv == sum(stage.cache.bytes_per_token * pair.max_len for stage in targets)
        assert planned.draft_kv == sum(stage.cache.bytes_per_token * pair.max_len for stage in drafts)
        assert (planned.draft_weights > 0) == bool(drafts)


@pytest.mark.case("A1", "M1")
@pytest.mark.parametrize("name", FAMILIES)
def test_counted_weights_are_those_of_a_loaded_model_for_every_family(name: str, tmp_path: Path) -> None:
    config = FAMILIES[name].config
    config.save_pretrained(tmp_path / "bare")
    counted = count_bytes(open_model(tmp_path / "bare", "--target"), torch.float32)
    save_model(tmp_path / "whole", config)
    source = open_model(tmp_path / "whole", "--target")
    source.check()
    for start, end in cut(4, 3):
        stage = build_stage(source, start, end, dtype=torch.float32, device="cpu", max_len=32)
        assert counted.weights_of(start, end) == stage.weight_bytes
        assert counted.kv_of(start, end, 10) == 10 * stage.cache.bytes_per_token
        is_copy = source.tied and stage.is_last and not stage.is_first
        head = stage.model.get_output_embeddings()
        assert counted.tied_copy_of(start, end) == (head.weight.nbytes if is_copy else 0)
    assert counted.of_pass.row > 4 * source.hidden_size


LAYERS = 12
MODEL = ModelBytes(
    layers=(1000,) * LAYERS,
    ends={(False, False): 0, (True, False): 300, (False, True): 310, (True, True): 310},
    kv_per_layer=2,
    tied=300,
    hidden_row=8,
    vocab_size=50,
    of_pass=PassBytes(base=0, row=40, mask=2, mask_scratch=3, tables=1),
    loading=5,
)
NO_FIXED = FixedBytes()


def placement(target: tuple[int, ...], *replicas: tuple[Shard, ...]) -> Placement:
    return Placement("test", target, replicas, 1, len(target), None, "catchup")


@given(data=st.data(), num_ranks=st.integers(1, 6), max_len=st.integers(1, 5000))
def test_all_layers_are_somewhere_and_only_a_cut_tied_model_has_copies(
    data: st.DataObject, num_ranks: int, max_len: int
) -> None:
    edges = sorted(data.draw(st.sets(st.integers(1, LAYERS - 1), min_size=num_ranks - 1, max_size=num_ranks - 1)))
    split = tuple(end - start for start, end in itertools.pairwise([0, *edges, LAYERS]))
    rank = data.draw(st.integers(0, num_ranks - 1))
    at = placement(split, (Shard(rank, 0, LAYERS),))
    planned = planned_bytes(at, MODEL, MODEL, max_len, NO_FIXED)
    assert sum(each.target_weights for each in planned) == 1000 * LAYERS + 310
    assert sum(each.tied_copy for each in planned) == (300 if num_ranks > 1 else 0)
    assert sum(each.target_kv for each in planned) == LAYERS * 2 * max_len
    drafts = [(each.draft_weights, each.draft_kv) for each in planned]
    assert drafts == [(12310, 24 * max_len) if number == rank else (0, 0) for number in range(num_ranks)]
    for each in planned:
        assert each.total == sum(value for kind, value in each.record().items() if kind != "total")
        assert each.record()["total"] == each.total


@given(max_len=st.integers(1, 3000), num_stages=st.integers(1, 8))
def test_no_prompt_comes_in_larger_pieces_than_are_planned_for(max_len: int, num_stages: int) -> None:
    lengths = range(1, max_len + 1, 1 + max_len // 200)
    pieces = [prefill_piece(length, num_stages, 128) or length for length in (*lengths, max_len)]
    assert max(pieces) <= largest_piece(max_len, num_stages)
    assert largest_piece(max_len, num_stages) <= max(255, max_len // num_stages)
    assert largest_piece(max_len, num_stages, 128, 7) == min(7, max_len)


class TestWorkSpace:
    """Each term, on numbers small enough to add up by hand."""

    ROW = PassBytes(base=1, row=10, mask=2, mask_scratch=3)

    def test_a_piece_of_a_prompt_or_the_mask_it_needs_whichever_is_more(self) -> None:
        assert self.ROW.of(5, 5) == 1 + 5 * 10, "the first rows need no mask"
        assert self.ROW.of(1, 100) == 1 + 10, "nor does one row"
        assert self.ROW.of(5, 8) == 5 * 8 * 2 + 5 * 8 * 3, "making the mask takes more than the layer"
        assert PassBytes(base=1, row=100, mask=2, mask_scratch=3).of(5, 8) == 5 * 8 * 2 + 1 + 500
        assert PassBytes(row=1, mask=2, first_rows_too=True).of(5, 5) == 50 + 5

    def test_the_last_stage_has_rows_of_logits(self) -> None:
        wide = ModelBytes(MODEL.layers, MODEL.ends, 2, vocab_size=1000)
        first, last = planned_bytes(placement((6, 6)), wide, None, 10, NO_FIXED)
        assert first.work_space == 0
        assert last.work_space == 10 * 1000 * 4 * 4

    def test_a_cache_grows_beside_its_old_self(self) -> None:
        bare = ModelBytes(MODEL.layers, MODEL.ends, 2)
        for max_len, old in ((200, 0), (256, 0), (257, 256), (512, 256), (513, 512), (2048, 1024)):
            (planned,) = planned_bytes(placement((LAYERS,)), bare, None, max_len, NO_FIXED)
            assert planned.work_space == LAYERS * 2 * old

    def test_sent_hidden_states_stay_where_gloo_keeps_them(self) -> None:
        bare = ModelBytes(MODEL.layers, MODEL.ends, 2, hidden_row=8)
        planned = planned_bytes(placement((6, 6)), bare, None, 100, FixedBytes(keeps_sent=True))
        assert [each.work_space for each in planned] == [800, 0]

    def test_loading_comes_before_the_entries(self) -> None:
        bare = ModelBytes(MODEL.layers, MODEL.ends, 2, loading=100)
        work = [planned_bytes(placement((LAYERS,)), bare, None, n, NO_FIXED)[0].work_space for n in (1, 4, 5)]
        assert work == [100 - 24, 100 - 96, 0]


def test_a_card_has_its_own_costs_and_a_process_alone_no_messages() -> None:
    fixed = FIXED["cuda"]
    alone, (first, _) = (planned_bytes(placement(t), MODEL, None, 8, fixed) for t in ((LAYERS,), (6, 6)))
    assert (alone[0].buffers, first.buffers) == (0, 3 * fixed.communicator)
    assert (first.context, first.reserve) == (fixed.context, fixed.reserve) and fixed.context > 0 < fixed.reserve
    on_cpu = planned_bytes(placement((6, 6)), MODEL, None, 8, FIXED["cpu"])[0]
    assert on_cpu.buffers == on_cpu.reserve == 0 < on_cpu.context < 10 * 2**20


def test_an_emulated_ranks_bytes_are_the_profiles_on_a_card(tmp_path: Path) -> None:
    whole = {"weights_gb": 4.8, "kv_bytes_per_token": 8 * 10**5}
    target = profile().target.model_dump() | whole
    options = {"placement": "hop", "layer_split": (1, 3, 3, 1), "max_model_len": 1000}
    path = save_profile(tmp_path, target=target, draft__weights_gb=0.4)
    pair = open_pair(RunConfig(emulate=path, **options), 4, CPU)
    planned = pair.planned_bytes()
    assert [each.target_weights + each.target_kv for each in planned] == [0.7 * GB, 2.1 * GB, 2.1 * GB, 0.7 * GB]
    draft = 0.4 * GB + 4 * 128 * 1000
    assert [each.draft_weights + each.draft_kv for each in planned] == [draft, 0, 0, draft]
    assert all(each.context == FIXED["cuda"].context for each in planned)
    assert pair.memory_gb == (8,) * 5
    path = save_profile(tmp_path, target=target)
    assert open_pair(RunConfig(emulate=path, **options), 4, CPU).memory_gb is None
    assert open_pair(RunConfig(emulate=path, strategy="ar"), 4, CPU).memory_gb == (8,) * 5


def of(*sizes: int) -> list[RankBytes]:
    return [RankBytes(target_weights=size) for size in sizes]


class TestFitting:
    def test_what_is_there_may_be_used_up(self) -> None:
        check_fits(of(GB, 2 * GB), shares_of((1.0, 2.0), 2), 100, "--memory-gb", "1,2")
        check_fits(of(GB, GB), shares_of((1.0,), 2), 100, "--memory-gb", "1")

    def test_the_rank_that_has_too_little_is_named_with_what_is_short(self) -> None:
        with pytest.raises(UserError) as caught:
            check_fits(of(GB, 3 * GB), shares_of((2.0,), 2), 4096, "--memory-gb", "2")
        needs = "rank 1 needs 3 GB for weights, KV entries of 4096 positions and work space"
        reason = f"{needs}, 2 GB are there: 1 GB short"
        assert str(caught.value) == f"--memory-gb 2: {reason}"

    def test_ranks_on_one_card_share_it(self) -> None:
        shares = [Share((0, 1), 3 * GB), Share((2,), 3 * GB)]
        check_fits(of(GB, GB, GB), shares, 8, "--gpu-memory-utilization", 0.9)
        with pytest.raises(UserError, match=r"^--gpu-memory-utilization 0.9: ranks 0, 1, on one card, need 4 GB"):
            check_fits(of(2 * GB, 2 * GB, GB), shares, 8, "--gpu-memory-utilization", 0.9)

    @pytest.mark.parametrize("numbers", [2, 4])
    def test_another_number_of_numbers_is_one_line(self, numbers: int) -> None:
        memory = tuple(itertools.repeat(80.0, numbers))
        with pytest.raises(UserError) as caught:
            shares_of(memory, 3)
        given = ",".join(["80"] * numbers)
        expected = f"--memory-gb {given}: has {numbers} numbers, this run has 3 ranks; give one for all or one for each"
        assert str(caught.value) == expected

    @pytest.mark.parametrize("number", [0.0, -1.0, float("inf"), float("nan"), 24e9, 2 * MAX_MEMORY_GB])
    def test_a_number_that_is_no_cards_is_one_line(self, number: float) -> None:
        with pytest.raises(UserError, match=r"^--memory-gb 80,\S+: \S+ GB: must be more than 0 and at most 100,000; "):
            shares_of((80.0, number), 2)
