"""DeepSpeed's pipeline: a layer per rank, built on its rank only, and nothing printed."""

import os
import socket
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
import torch.distributed
from pearl_pp.stages.deepspeed_pipeline import pipeline_module
from pearl_pp.stages.rank_module import RankModule

built = []
def build(rank):
    built.append(rank)
    print("building")
    return RankModule(None, {})

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.distributed.init_process_group("gloo")
module = pipeline_module(world_size, rank, build)
assert type(module) is RankModule and built == [rank]
import deepspeed
assert deepspeed.comm.get_world_size() == world_size
torch.distributed.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_rank_builds_its_own_layer_and_only_the_builder_prints(world_size: int) -> None:
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world_size)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, **common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    for process in processes:
        output, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors
        assert (output, errors) == ("building\n", "")


def test_a_process_alone_needs_no_deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    from pearl_pp.stages.deepspeed_pipeline import pipeline_module
    from pearl_pp.stages.rank_module import RankModule

    monkeypatch.setitem(sys.modules, "deepspeed", None)  # importing it fails
    module = RankModule(None, {})
    assert pipeline_module(1, 0, lambda rank: module) is module


def test_several_ranks_need_a_process_group() -> None:
    from pearl_pp.stages.deepspeed_pipeline import pipeline_module
    from pearl_pp.stages.rank_module import RankModule

    with pytest.raises(RuntimeError, match=r"torch\.distributed"):
        pipeline_module(2, 0, lambda rank: RankModule(None, {}))
