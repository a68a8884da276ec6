"""A rank started by a launcher: connects, exchanges, closes, leaves nothing. It prints only when it fails."""

import os
import sys
import threading
from unittest import mock

import psutil
import torch
import torch.distributed as dist

from pearl_pp.transport import torch_distributed
from pearl_pp.transport.base import Channel


def sockets() -> list[object]:
    return [c for c in psutil.Process().net_connections(kind="inet") if c.status != "TIME_WAIT"]


def main(then: str) -> None:
    with mock.patch.object(torch_distributed, "warm_up", wraps=torch_distributed.warm_up) as warm_up:
        transport = torch_distributed.connect("cpu", timeout_s=30.0)
    warm_up.assert_called_once_with(transport)
    last = transport.world_size - 1
    if transport.rank == 0:
        transport.isend(Channel.PROBS, last, torch.full((300,), 2.5, dtype=torch.bfloat16))
    elif transport.rank == last:
        assert transport.irecv(Channel.PROBS, 0, (300,), torch.bfloat16).wait().eq(2.5).all()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    addresses = {c.laddr.ip.removeprefix("::ffff:") for c in sockets() if c.status == "ESTABLISHED"}
    assert addresses <= {"127.0.0.1", "::1"}, addresses
    listening = {c.laddr.ip for c in sockets() if c.status == "LISTEN"}
    assert listening and listening <= {"127.0.0.1", "::1"}, listening
    if then == "deepspeed":
        use_deepspeed()
    transport.close()
    transport.close()
    assert not dist.is_initialized()
    if then == "nothing":  # DeepSpeed holds the default group and its connections until the process ends
        assert not sockets(), sockets()
        assert threading.active_count() == 1


def use_deepspeed() -> None:
    """What the stages need of it, on the default group that connect() has made."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule
    from deepspeed.runtime.pipe.topology import ProcessTopology

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    count = torch.ones(1)
    deepspeed.comm.all_reduce(count)
    assert count.item() == dist.get_world_size()
    topology = ProcessTopology(axes=["pipe", "data"], dims=[dist.get_world_size(), 1])
    specs = [LayerSpec(torch.nn.Linear, 2, 2) for _ in range(dist.get_world_size())]
    PipelineModule(layers=specs, topology=topology, partition_method="uniform")


if __name__ == "__main__":
    main(sys.argv[1])
