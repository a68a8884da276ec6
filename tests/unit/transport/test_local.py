import pytest
import torch

from pearl_pp.transport.base import Channel
from pearl_pp.transport.local import LocalTransport
from pearl_pp.transport.torch_distributed import connect


def test_a_world_of_one_has_trivial_collectives_and_no_peers():
    transport = LocalTransport()
    assert (transport.rank, transport.world_size, transport.device) == (0, 1, torch.device("cpu"))
    assert transport.broadcast_bytes(b"prompt", 0) == b"prompt"
    assert transport.gather_bytes(b"result", 0) == [b"result"]
    transport.barrier()
    with pytest.raises(ValueError, match="no peer 1"):
        transport.isend(Channel.CONTROL, 1, torch.zeros(1))
    with pytest.raises(ValueError, match="no peer 1"):
        transport.irecv(Channel.CONTROL, 1, (1,), torch.int64)
    assert transport.messages_sent(Channel.CONTROL) == 0
    transport.close()


@pytest.mark.parametrize("world_size", [None, "1"])
def test_connect_alone_makes_no_process_group(monkeypatch, world_size):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    if world_size:
        monkeypatch.setenv("WORLD_SIZE", world_size)
    with connect("cpu") as transport:
        assert isinstance(transport, LocalTransport)
        assert not torch.distributed.is_initialized()


def test_a_broadcast_without_payload_is_refused_at_its_source():
    with pytest.raises(ValueError, match="rank 0 broadcasts"):
        LocalTransport().broadcast_bytes(None, 0)
