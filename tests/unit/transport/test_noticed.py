"""The rules that keep NCCL's receives short, with a tensor plane that only notes what is launched."""

import threading
import time

import pytest
import torch

from pearl_pp.transport.base import Channel, PeerLost, TransportTimeout
from pearl_pp.transport.inprocess import InProcessGroup
from pearl_pp.transport.noticed import NoticedTransport
from pearl_pp.transport.point_to_point import Completed

A, H = Channel.ACTIVATIONS, Channel.HANDOFF


class NotingLauncher:
    """Launches complete at once; a received tensor is all zeros."""

    device = torch.device("cpu")

    def __init__(self):
        self.log = []
        self.fails = False
        self.aborted = False

    def ready(self, tensor):
        self.log.append("ready")

    def send(self, channel, dst, tensor):
        if self.fails:
            raise RuntimeError("NCCL error")
        self.log.append(f"send {channel.name} to {dst}")
        return Completed(tensor)

    def recv(self, channel, src, shape, dtype):
        self.log.append(f"recv {channel.name} from {src}")
        return Completed(torch.zeros(shape, dtype=dtype))

    def close(self): ...

    def abort(self):
        self.aborted = True


class Pair:
    def __init__(self):
        self.control, self.notices = InProcessGroup(2, timeout_s=5.0), InProcessGroup(2, timeout_s=5.0)
        self.launchers = [NotingLauncher(), NotingLauncher()]
        self.ranks = [
            NoticedTransport(self.control.transport(r), self.notices.transport(r), self.launchers[r], 5.0)
            for r in range(2)
        ]


@pytest.fixture
def pair():
    made = Pair()
    yield made
    if any(rank.broken for rank in made.ranks):
        for rank in made.ranks:
            rank.abort()
    else:
        made.control.run(lambda plane: made.ranks[plane.rank].close())
    assert eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("notices")])


def eventually(condition):
    deadline = time.monotonic() + 5.0
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


def test_a_receive_is_launched_only_after_its_senders_notice(pair):
    receive = pair.ranks[1].irecv(A, 0, (3,), torch.float32)
    time.sleep(0.05)
    assert pair.launchers[1].log == []
    pair.ranks[0].isend(A, 1, torch.ones(3))
    # without any call on rank 1: it may be computing
    assert eventually(lambda: pair.launchers[1].log == ["recv ACTIVATIONS from 0"])
    assert receive.wait().shape == (3,)


def test_a_notice_that_comes_before_the_receive_is_kept(pair):
    pair.ranks[0].isend(A, 1, torch.ones(3))
    time.sleep(0.05)
    assert pair.launchers[1].log == []
    pair.ranks[1].irecv(A, 0, (3,), torch.float32).wait()
    assert pair.launchers[1].log == ["recv ACTIVATIONS from 0"]


def test_data_is_ready_before_it_is_sent_and_noticed(pair):
    pair.ranks[0].isend(A, 1, torch.ones(3))
    assert pair.launchers[0].log == ["ready", "send ACTIVATIONS to 1"]


def test_launches_of_a_channel_keep_the_posted_order_and_other_channels_pass(pair):
    # one stream per channel: a send that overtook an earlier receive would cross the streams of two ranks
    first = pair.ranks[1].irecv(A, 0, (1,), torch.float32)
    second = pair.ranks[1].isend(A, 0, torch.ones(1))
    pair.ranks[1].isend(H, 0, torch.ones(1))
    assert [entry for entry in pair.launchers[1].log if entry != "ready"] == ["send HANDOFF to 0"]
    pair.ranks[0].isend(A, 1, torch.ones(1))
    first.wait()
    second.wait()
    assert [entry for entry in pair.launchers[1].log if entry != "ready"] == [
        "send HANDOFF to 0",
        "recv ACTIVATIONS from 0",
        "send ACTIVATIONS to 0",
    ]


def test_the_deadline_is_kept_although_nothing_was_launched(pair):
    receive = pair.ranks[1].irecv(H, 0, (3,), torch.float32)
    with pytest.raises(TransportTimeout, match=r"rank 1: no answer from rank 0 on HANDOFF within 0\.1 s"):
        receive.wait(0.1)
    assert pair.launchers[1].log == []


def test_waits_end_when_the_peer_leaves(pair):
    receive = pair.ranks[1].irecv(A, 0, (3,), torch.float32)
    pair.ranks[0].abort("its own error")
    with pytest.raises(PeerLost, match="rank 1: lost rank 0 on ACTIVATIONS"):
        receive.wait()
    pair.ranks[1].close()  # nobody to meet: it does not wait for rank 0
    assert [launcher.aborted for launcher in pair.launchers] == [True, True]


def test_a_launch_that_fails_is_raised_where_it_happens_and_leaves_nothing_waiting(pair):
    pair.launchers[0].fails = True
    with pytest.raises(RuntimeError, match="NCCL error"):
        pair.ranks[0].isend(A, 1, torch.ones(3))
    pair.ranks[0].abort()
