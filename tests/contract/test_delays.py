"""Random programs while every message, and every notice, is late by its own amount."""

import random

import pytest

from pearl_pp.transport.inprocess import InProcessGroup
from tests.contract import exchanges
from tests.contract.fabric import run_on_fabric


def late(seed):
    draw = random.Random(seed)
    return lambda src, dst, channel: draw.choice([0.0, 0.0, 0.001, 0.01])


def run_in_process(world_size, fn, *args, delay):
    return InProcessGroup(world_size, delay=delay, rendezvous=True).run(fn, *args)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("run", [run_in_process, run_on_fabric], ids=["rendezvous", "noticed"])
def test_random_programs_finish_whatever_is_late(run, seed):
    assert run(4, exchanges.random_program, seed, 300, delay=late(seed)) == [[], [], [], []]
