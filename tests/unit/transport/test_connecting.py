"""What connect() decides before it connects: the device, the interface, and who may use NCCL."""

import os

import pytest
import torch

from pearl_pp.errors import UserError
from pearl_pp.transport import joining, torch_distributed
from pearl_pp.transport.inprocess import InProcessGroup
from pearl_pp.transport.torch_distributed import pick_device

LOCAL = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "4"}
REMOTE = {"MASTER_ADDR": "node-17", "WORLD_SIZE": "4"}


def test_auto_is_the_cpu_where_there_is_no_card(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")
    with pytest.raises(UserError, match="--device cuda: torch sees no CUDA device"):
        pick_device("cuda")


@pytest.mark.parametrize(("local_rank", "index"), [("0", 0), ("1", 1), ("2", 0), ("5", 1)])
def test_local_rank_picks_the_card_and_ranks_share_cards_in_turn(monkeypatch, local_rank, index):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda", index)
    assert chosen == [torch.device("cuda", index)] * 2


@pytest.mark.parametrize(
    ("variables", "interface"),
    [
        (LOCAL | {"LOCAL_WORLD_SIZE": "4"}, "lo"),
        (REMOTE | {"LOCAL_WORLD_SIZE": "4"}, "lo"),  # all ranks here, whatever this host is called
        (LOCAL | {"LOCAL_WORLD_SIZE": "2"}, None),  # another machine's ranks come through a tunnel, say
        (LOCAL, "lo"),  # the deepspeed launcher
        (REMOTE, None),
        (LOCAL | {"GLOO_SOCKET_IFNAME": "eth7"}, "eth7"),
    ],
)
def test_gloo_keeps_to_the_loopback_only_on_one_machine(monkeypatch, variables, interface):
    monkeypatch.setattr(os, "environ", dict(variables))
    monkeypatch.setattr(joining.socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth7")])
    joining._use_loopback_on_one_machine()
    assert os.environ.get("GLOO_SOCKET_IFNAME") == interface


@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        (["a", "b", "c"], True),
        (["a", "b", "a"], False),  # two ranks on one card: NCCL refuses that
        (["a", None, "c"], False),  # a rank on its CPU
        ([None, None, None], False),
    ],
)
def test_nccl_is_for_ranks_with_a_card_each_and_all_ranks_agree(monkeypatch, cards, expected):
    monkeypatch.setattr(torch_distributed, "_card", lambda device: cards[device.index])

    def on_rank(transport):
        transport.device = torch.device("cuda", transport.rank)  # only names the entry in `cards`
        return torch_distributed._each_rank_has_a_card(transport)

    assert InProcessGroup(3).run(on_rank) == [expected] * 3
