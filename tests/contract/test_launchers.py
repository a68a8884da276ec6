"""connect() under launchers: silent, on the loopback, and nothing is left after close()."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(Path(__file__).with_name("launched_rank.py"))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def environment(**changes: str) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("GLOO_", "MASTER_"))}
    return inherited | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | changes


@pytest.mark.case("P3")
def test_under_torchrun_connect_is_silent_and_close_leaves_nothing():
    run = subprocess.run(
        [*TORCHRUN, "--nproc-per-node", "4", SCRIPT, "nothing"],
        env=environment(), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_deepspeed_uses_the_default_group_after_connect():
    run = subprocess.run(
        [*TORCHRUN, "--nproc-per-node", "2", SCRIPT, "deepspeed"],
        env=environment(), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr


def test_with_the_few_variables_of_the_deepspeed_launcher():
    port = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).port  # free again at once
    common = environment(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT, "nothing"],
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    assert [(rank.communicate(timeout=60)[0], rank.returncode) for rank in ranks] == [("", 0), ("", 0)]


def test_ranks_that_find_no_others_say_where_they_looked():
    code = "from pearl_pp.transport.torch_distributed import connect; connect('cpu', timeout_s=2.0)"
    runs = []
    for rank in range(2):
        port = str(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).port)
        common = environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        run = subprocess.Popen([sys.executable, "-c", code], env=common, stderr=subprocess.PIPE, text=True)
        runs.append((rank, port, run))
    for rank, port, run in runs:
        last_line = run.communicate(timeout=60)[1].strip().splitlines()[-1]
        assert run.returncode == 1
        where = f"not all 2 ranks came to 127.0.0.1:{port} within 2 s"
        assert f"RanksMissing: rank {rank}: {where}" in last_line
