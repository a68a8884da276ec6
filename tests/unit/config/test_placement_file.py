"""Placement files: what is read, and one line for every mistake."""

from pathlib import Path

import pytest
import yaml

from pearl_pp.config import ShardEntry, read_placement_file
from pearl_pp.errors import UserError
from pearl_pp.schedule.placement import Placement, Shard

GOOD = """
target: [8, 8, 7, 7]
replicas: [[{rank: 3, layers: [0, 2]}], [{rank: 0, layers: [0, 2]}]]
fill: 1
verify_interval: 4
gamma: 5
handoff: catchup
"""


def written(folder: Path, text: str) -> str:
    path = folder / "placement.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_placement_file(tmp_path: Path) -> None:
    placement = read_placement_file(written(tmp_path, GOOD))
    assert placement.target == (8, 8, 7, 7)
    assert placement.replicas == ((ShardEntry(rank=3, layers=(0, 2)),), (ShardEntry(rank=0, layers=(0, 2)),))
    assert (placement.fill, placement.verify_interval, placement.gamma) == (1, 4, 5)
    assert placement.handoff == "catchup"


def test_what_is_left_out_is_auto_and_shards_come_in_layer_order(tmp_path: Path) -> None:
    text = "target: [2, 2]\nreplicas: [[{rank: 1, layers: [1, 3]}, {rank: 0, layers: [0, 1]}]]\n"
    placement = read_placement_file(written(tmp_path, text))
    assert (placement.fill, placement.verify_interval, placement.gamma, placement.handoff) == ("auto",) * 4
    assert [shard.rank for shard in placement.replicas[0]] == [0, 1]


def test_the_record_of_a_placement_can_be_read_again(tmp_path: Path) -> None:
    placement = Placement("mine", (2, 1), ((Shard(0, 0, 1), Shard(1, 1, 2)),), 1, 2, None, "ship")
    again = read_placement_file(written(tmp_path, yaml.safe_dump(placement.record())))
    assert (again.name, again.target, again.gamma, again.handoff) == ("mine", (2, 1), "auto", "ship")
    assert [[(s.rank, *s.layers) for s in replica] for replica in again.replicas] == [[(0, 0, 1), (1, 1, 2)]]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("fill: 1", "fil: 1", "fil: no such key; did you mean fill?"),
        ("rank: 3", "rnk: 3", "replicas[0][0].rnk: no such key; did you mean rank?"),
        ("rank: 3, ", "", "replicas[0][0].rank: is missing"),
        ("rank: 3", "rank: 3, layer: 2", "replicas[0][0].layer: no such key; did you mean layers?"),
        ("rank: 3", "rank: -1", "replicas[0][0].rank -1: must be greater than or equal to 0"),
        ("rank: 3", "rank: three", "replicas[0][0].rank three: must be a whole number"),
        ("fill: 1", "fill: 0", "fill 0: must be 'auto' or greater than or equal to 1"),
        ("gamma: 5", "gamma: -5", "gamma -5: must be 'auto' or greater than or equal to 1"),
        ("handoff: catchup", "handoff: fax", "handoff fax: must be 'auto', 'ship' or 'catchup'"),
        ("[8, 8, 7, 7]", "[8, 0]", "target[1] 0: must be greater than or equal to 1"),
        ("[8, 8, 7, 7]", "[]", "target []: "),
        ("target: [8, 8, 7, 7]", "", "target: is missing"),
        ("[0, 2]}], [", "[1, 2]}], [", "replicas[0]: a gap, layers 0 to 0 are on no rank"),
        (
            "{rank: 0, layers: [0, 2]}",
            "{rank: 0, layers: [0, 2]}, {rank: 1, layers: [1, 3]}",
            "replicas[1]: an overlap, layer 1 is on two ranks",
        ),
        (
            "{rank: 0, layers: [0, 2]}",
            "{rank: 0, layers: [0, 1]}, {rank: 1, layers: [2, 3]}",
            "replicas[1]: a gap, layers 1 to 1 are on no rank",
        ),
        (
            "{rank: 0, layers: [0, 2]}",
            "{rank: 0, layers: [0, 1]}, {rank: 0, layers: [1, 2]}",
            "replicas[1]: rank 0 holds two shards of one replica",
        ),
        (
            "{rank: 0, layers: [0, 2]}",
            "{rank: 0, layers: [0, 3]}",
            "replicas[1]: has 3 layers, replicas[0] has 2",
        ),
        (
            "{rank: 0, layers: [0, 2]}",
            "{rank: 0, layers: [2, 2]}",
            "replicas[1]: layers [2, 2] on rank 0 hold no layer",
        ),
        ("[{rank: 0, layers: [0, 2]}]", "[]", "replicas[1]: has no shard"),
    ],
)
def test_a_mistake_names_file_key_and_reason(old: str, new: str, expected: str, tmp_path: Path) -> None:
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(UserError) as caught:
        read_placement_file(path)
    message = str(caught.value)
    assert message.startswith(f"--placement {path}: {expected}") and "\n" not in message


def test_a_missing_placement_file() -> None:
    with pytest.raises(UserError, match=r"^--placement nowhere.yaml: no such file$"):
        read_placement_file("nowhere.yaml")
