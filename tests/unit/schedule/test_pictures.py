"""Golden schedules, as the picture of the README and as the list of every instruction."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

import pytest

from pearl_pp.schedule.generator import SlotGenerator
from pearl_pp.schedule.picture import describe, draw
from pearl_pp.schedule.placement import Placement, Replica, Shard
from pearl_pp.schedule.schedule import Schedule, plain, speculative
from tests.unit.schedule.strategies import play

GOLDEN = Path(__file__).parents[2] / "golden"
NUM_SLOTS = 12


def whole(*ranks: int) -> tuple[Replica, ...]:
    return tuple((Shard(rank, 0, 2),) for rank in ranks)


def pearl(num_stages: int, replicas: tuple[Replica, ...], fill: int, interval: int, gamma: int) -> Schedule:
    placement = Placement("", (1,) * num_stages, replicas, fill, interval, gamma, "ship")
    return speculative(placement, gamma)


def turns(num_stages: int, gamma: int) -> Schedule:
    placement = Placement("", (1,) * num_stages, whole(0), 1, num_stages, gamma, "ship")
    return speculative(placement, gamma, pre_verify=False, post_verify=False)


PICTURES: dict[str, Schedule] = {
    "ar_n4": plain(4),
    "sd_n4": turns(4, 4),
    "hop_n4": pearl(4, whole(3, 0), 1, 4, 5),
    "hop_n2": pearl(2, whole(1, 0), 1, 2, 4),
    "single_n4": pearl(4, whole(3), 1, 4, 5),
    "dedicated_n4": pearl(4, whole(4), 1, 4, 5),
    "dedicated_p1": pearl(3, whole(3), 3, 1, 2),
    "sharded_n4": pearl(4, ((Shard(1, 0, 1), Shard(0, 1, 2)),), 1, 4, 5),
    "sharded_n2": pearl(2, ((Shard(1, 0, 1), Shard(0, 1, 2)),), 1, 2, 2),
    "pipelined_n4_p2": pearl(4, whole(3, 0), 1, 2, 4),
    "pipelined_n4_f3_p2": pearl(4, whole(3, 0), 3, 2, 4),
    "pipelined_n3_p2": pearl(3, whole(2, 1), 1, 2, 4),
    "pipelined_n8_p2": pearl(8, whole(7, 0), 1, 2, 4),
    "pipelined_n8_f7_p2": pearl(8, whole(7, 0), 7, 2, 4),
    "pipelined_n2_f2_p2": pearl(2, whole(1, 0), 2, 2, 4),
    "one_replica_n4_f4_p1": pearl(4, whole(3), 4, 1, 2),
}


def check(name: str, text: str) -> None:
    """Compares with the golden file; PEARL_PP_UPDATE_GOLDEN=1 writes it anew, to be read before it is committed."""
    path = GOLDEN / name
    if os.environ.get("PEARL_PP_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", PICTURES)
def test_picture_when_everything_is_accepted_and_after_a_rejection(name: str) -> None:
    schedule = PICTURES[name]
    texts = []
    for title, accepted in (("everything accepted", 1.0), ("the second chunk's first token rejected", 0.0)):
        generator = SlotGenerator(schedule, 5, 10_000, 10_000)

        def judge(verify, generator=generator, accepted=accepted) -> int:
            return 0 if accepted == 0.0 and generator.num_verdicts == 1 else verify.num_drafted

        plans = [plan for plan, _ in islice(play(generator, judge), NUM_SLOTS)]
        texts.append(f"{title}\n{draw(plans, schedule.world_size)}")
    check(f"{name}.txt", "\n".join(texts))


@pytest.mark.parametrize("name", ["hop_n4", "sharded_n4"])
def test_instructions_of_a_request_from_start_to_end(name: str) -> None:
    generator = SlotGenerator(PICTURES[name], 3, 3 + 10, 10_000)
    plans = [plan for plan, _ in play(generator, lambda v: 0 if v.first == 9 else v.num_drafted)]
    check(f"{name}_instructions.txt", describe(plans))
