"""Named placements and placement files: where they put the draft, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pearl_pp.config import RunConfig
from pearl_pp.errors import UserError
from pearl_pp.planning.presets import resolve_placement
from pearl_pp.schedule.placement import Placement, Shard


def resolve(num_ranks: int = 4, target_layers: int = 8, draft_layers: int = 2, **options: object) -> Placement:
    return resolve_placement(RunConfig(**options), num_ranks, target_layers, draft_layers)


def refusal(*args: int, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        resolve(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def whole(*ranks: int) -> tuple[tuple[Shard, ...], ...]:
    return tuple((Shard(rank, 0, 2),) for rank in ranks)


@pytest.mark.parametrize(
    ("options", "name", "stages", "replicas", "fill", "interval"),
    [
        ({}, "auto", 4, whole(3, 0), 1, 4),
        ({"no_pre_verify": True}, "hop", 4, whole(3, 0), 1, 4),
        ({"placement": "hop"}, "hop", 4, whole(3, 0), 1, 4),
        ({"placement": "single"}, "single", 4, whole(3), 1, 4),
        ({"placement": "dedicated"}, "dedicated", 3, whole(3), 1, 3),
        ({"placement": "pipelined"}, "pipelined", 4, whole(3, 0), 3, 2),
        ({"placement": "pipelined", "fill": 3, "verify_interval": 3}, "pipelined", 4, whole(3, 1), 3, 3),
        ({"strategy": "ar"}, "ar", 4, (), 1, 4),
        ({"strategy": "sd"}, "sd", 4, whole(0), 1, 4),
        ({"strategy": "sd", "placement": "single"}, "single", 4, whole(3), 1, 4),
    ],
)
def test_a_preset_on_four_ranks(
    options: dict, name: str, stages: int, replicas: tuple, fill: int, interval: int
) -> None:
    placement = resolve(**options)
    assert placement.name == name
    assert placement.num_stages == stages
    assert placement.replicas == replicas
    assert (placement.fill, placement.verify_interval) == (fill, interval)
    assert placement.world_size == 4


PRESETS = ["hop", "single", "dedicated", "pipelined", "sharded"]


@given(st.sampled_from(PRESETS), st.integers(2, 9), st.integers(2, 8), st.integers(0, 30))
def test_a_preset_covers_both_models_on_any_number_of_ranks(name: str, ranks: int, layers: int, more: int) -> None:
    placement = resolve(ranks, ranks + more, layers, placement=name)
    assert sum(placement.target) == ranks + more
    assert placement.world_size == ranks
    for replica in placement.replicas:
        covered = [layer for shard in replica for layer in range(shard.start, shard.end)]
        assert covered == list(range(layers))
        assert len({shard.rank for shard in replica}) == len(replica)
    where = [tuple(shard.rank for shard in replica) for replica in placement.replicas]
    assert len(set(where)) == len(where)


@pytest.mark.parametrize("name", ["auto", "hop", "single", "pipelined"])
def test_one_rank_holds_one_copy_of_the_draft(name: str) -> None:
    assert resolve(1, placement=name, strategy="sd").replicas == whole(0)


@given(st.integers(2, 9), st.data())
def test_pipelined_replicas_are_never_busy_in_the_same_slots(ranks: int, data: st.DataObject) -> None:
    """In steady state rank r holds a chunk in the slots congruent to r modulo p (DESIGN section 6)."""
    interval = data.draw(st.integers(2, ranks))
    placement = resolve(ranks, 16, placement="pipelined", verify_interval=interval)
    busy = [replica[0].rank % interval for replica in placement.replicas]
    assert len(busy) == 2
    assert busy[0] != busy[1]


@pytest.mark.parametrize(("ranks", "layers", "shards"), [(4, 8, 4), (4, 2, 2), (2, 7, 2), (3, 7, 3)])
def test_sharded_cuts_the_draft_over_as_many_ranks_as_it_can(ranks: int, layers: int, shards: int) -> None:
    placement = resolve(ranks, 8, layers, placement="sharded")
    (replica,) = placement.replicas
    assert len(replica) == shards
    sizes = [shard.num_layers for shard in replica]
    assert max(sizes) - min(sizes) <= 1


def test_layers_left_over_go_where_no_replica_is() -> None:
    assert resolve(4, 10, placement="hop").target == (2, 3, 3, 2)
    assert resolve(4, 10, placement="dedicated").target == (4, 3, 3)


def test_options_go_over_a_preset() -> None:
    placement = resolve(4, 10, layer_split=(4, 3, 2, 1), gamma=7, fill=2, verify_interval=3, handoff="catchup")
    assert placement.target == (4, 3, 2, 1)
    assert (placement.gamma, placement.fill, placement.verify_interval) == (7, 2, 3)
    assert placement.handoff == "catchup"
    assert resolve().gamma is None, "auto is for the engine to measure"
    assert resolve().handoff in ("ship", "catchup")


@pytest.mark.case("P5")
@pytest.mark.parametrize(("layers", "ranks"), [(6, 8), (3, 4), (1, 2)])
def test_more_stages_than_layers_are_refused_whatever_the_strategy(layers: int, ranks: int) -> None:
    for options in ({}, {"strategy": "ar"}, {"strategy": "sd"}, {"placement": "sharded"}):
        reason = f"the target has {layers} layers, too few for {ranks} pipeline stages; start fewer ranks"
        assert refusal(ranks, layers, **options) == f"--nproc-per-node {ranks}: {reason}"


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        ((1,), {"placement": "dedicated"}, "--placement dedicated: needs 2 ranks at least, "),
        ((4, 8, 1), {"placement": "sharded"}, "--placement sharded: needs 2 ranks and 2 draft layers at least, "),
        ((1,), {"placement": "sharded"}, "--placement sharded: needs 2 ranks and 2 draft layers at least, "),
        ((4,), {"fill": 5}, "--fill 5: must be between 1 and the number of stages, 4"),
        ((4,), {"verify_interval": 5}, "--verify-interval 5: must be between 1 and the number of stages, 4"),
        ((4,), {"placement": "dedicated", "fill": 4}, "--fill 4: must be between 1 and the number of stages, 3"),
        ((4,), {"layer_split": (4, 4)}, "--layer-split 4,4: has 2 stages, this run has 4"),
        ((4,), {"layer_split": (4, 2, 1, 2)}, "--layer-split 4,2,1,2: has 9 layers, the target has 8"),
        ((4,), {"placement": "dedicated", "layer_split": (2, 2, 2, 2)}, "--layer-split 2,2,2,2: has 4 stages, this "),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(args: tuple, options: dict, message: str) -> None:
    assert refusal(*args, **options).startswith(message)


WRITTEN = {
    "target": [3, 2, 2, 1],
    "replicas": [[{"rank": 3, "layers": [0, 2]}], [{"rank": 1, "layers": [1, 2]}, {"rank": 0, "layers": [0, 1]}]],
    "fill": 2,
    "verify_interval": 3,
    "gamma": 5,
    "handoff": "catchup",
}


class TestFile:
    @pytest.fixture
    def write(self, tmp_path: Path):
        def write(**changes: object) -> str:
            path = tmp_path / "placement.yaml"
            path.write_text(yaml.safe_dump(WRITTEN | changes))
            return str(path)

        return write

    def test_says_everything_and_shards_come_in_layer_order(self, write) -> None:
        path = write()
        placement = resolve(placement=path)
        shards = ((Shard(3, 0, 2),), (Shard(0, 0, 1), Shard(1, 1, 2)))
        assert placement == Placement(path, (3, 2, 2, 1), shards, 2, 3, 5, "catchup")

    def test_options_go_over_it(self, write) -> None:
        placement = resolve(
            placement=write(), layer_split=(2, 2, 2, 2), fill=1, verify_interval=4, gamma=2, handoff="ship"
        )
        assert placement.target == (2, 2, 2, 2)
        assert (placement.fill, placement.verify_interval, placement.gamma) == (1, 4, 2)
        assert placement.handoff == "ship"

    def test_what_it_leaves_open_is_that_of_the_presets(self, write) -> None:
        left_open = dict.fromkeys(("fill", "verify_interval", "gamma", "handoff"), "auto")
        placement = resolve(placement=write(**left_open))
        assert (placement.fill, placement.verify_interval, placement.gamma) == (1, 4, None)

    def test_a_draft_may_have_ranks_of_its_own(self, write) -> None:
        path = write(target=[5, 3], replicas=[[{"rank": 2, "layers": [0, 2]}]], verify_interval=2)
        placement = resolve(3, placement=path)
        assert placement.stage_range(1) == (5, 8)
        assert placement.stage_range(2) is None

    def test_without_a_draft_its_replicas_are_left_out(self, write) -> None:
        assert resolve(4, 8, 0, placement=write(), strategy="ar").replicas == ()

    def test_the_record_of_a_placement_can_be_its_file(self, write, tmp_path: Path) -> None:
        placement = resolve(placement="sharded", gamma=3)
        path = tmp_path / "copy.yaml"
        path.write_text(yaml.safe_dump(placement.record()))
        again = resolve(placement=str(path))
        assert again.record() | {"name": "sharded"} == placement.record()

    @pytest.mark.parametrize(
        ("args", "changes", "reason"),
        [
            ((3,), {}, "is for 4 ranks, this run has 3"),
            ((5,), {}, "is for 4 ranks, this run has 5"),
            ((4, 9), {}, "target 3,2,2,1: has 8 layers, the target has 9"),
            ((4, 8, 3), {}, "replicas[0]: has 2 layers, the draft has 3"),
            ((4,), {"replicas": []}, "replicas: none, but --strategy pearl needs a draft"),
            ((4,), {"fill": 5}, "fill 5: must be between 1 and the number of stages, 4"),
            ((4,), {"verify_interval": 5}, "verify_interval 5: must be between 1 and the number of stages, 4"),
        ],
    )
    def test_a_fault_names_file_key_and_value(self, write, args: tuple, changes: dict, reason: str) -> None:
        path = write(**changes)
        message = refusal(*args, placement=path)
        assert message.startswith(f"--placement {path}")
        assert message.removeprefix(f"--placement {path}").lstrip(": ") == reason
