"""What the in-process transport adds: delays, rendezvous, checks and an end when a rank fails."""

import threading
import time

import pytest
import torch

from pearl_pp.transport.base import Channel, MessageMismatch, PeerLost, TransportTimeout
from pearl_pp.transport.inprocess import InProcessGroup
from pearl_pp.transport.point_to_point import warm_up

ONE = torch.ones(1, dtype=torch.int64)


def pair(**options):
    group = InProcessGroup(2, **options)
    return group.transport(0), group.transport(1)


def test_a_rendezvous_send_completes_only_when_a_receive_is_posted():
    a, b = pair(rendezvous=True, timeout_s=5.0)
    send = a.isend(Channel.PROBS, 1, ONE)
    waiter = threading.Thread(target=send.wait)
    waiter.start()
    time.sleep(0.05)
    assert waiter.is_alive()
    b.irecv(Channel.PROBS, 0, (1,), torch.int64)
    waiter.join(5.0)
    assert not waiter.is_alive()


def test_without_rendezvous_a_send_is_complete_at_once_and_was_copied():
    a, b = pair()
    tensor = torch.ones(3)
    a.isend(Channel.PROBS, 1, tensor).wait()
    tensor.zero_()
    assert b.irecv(Channel.PROBS, 0, (3,), torch.float32).wait().tolist() == [1.0, 1.0, 1.0]


def test_delays_postpone_messages_but_never_reorder_a_link():
    delays = iter([0.15, 0.0])
    a, b = pair(delay=lambda src, dst, channel: next(delays))
    started = time.monotonic()
    for value in (1, 2):
        a.isend(Channel.CONTROL, 1, value * ONE)
    receives = [b.irecv(Channel.CONTROL, 0, (1,), torch.int64) for _ in range(2)]
    assert [int(r.wait()) for r in reversed(receives)] == [2, 1]
    assert time.monotonic() - started >= 0.15  # the second waits behind the first


def test_a_receive_refuses_another_shape_or_dtype():
    a, b = pair()
    a.isend(Channel.ACTIVATIONS, 1, torch.zeros(2, 3))
    with pytest.raises(MessageMismatch, match="rank 1: bad message from rank 0 on ACTIVATIONS"):
        b.irecv(Channel.ACTIVATIONS, 0, (3, 2), torch.float32).wait()
    a.isend(Channel.ACTIVATIONS, 1, torch.zeros(2, 3))
    with pytest.raises(MessageMismatch, match="float64"):
        b.irecv(Channel.ACTIVATIONS, 0, (2, 3), torch.float64).wait()


def test_when_one_rank_raises_the_waits_of_the_others_end_at_once():
    ended = []

    def on_rank(transport):
        if transport.rank == 1:
            raise KeyError("the cause")
        try:
            transport.irecv(Channel.CONTROL, 1, (1,), torch.int64).wait()
        except PeerLost as error:
            ended.append(str(error))
            raise

    started = time.monotonic()
    with pytest.raises(KeyError, match="the cause"):
        InProcessGroup(3, timeout_s=30.0).run(on_rank)
    assert time.monotonic() - started < 5.0
    assert len(ended) == 2 and all("rank 1 failed: KeyError('the cause')" in text for text in ended)


def test_a_timeout_is_final_for_the_group_as_it_is_with_gloo():
    a, b = pair(timeout_s=0.05)
    with pytest.raises(TransportTimeout, match=r"rank 0: no answer from rank 1 on HANDOFF within 0\.05 s"):
        a.irecv(Channel.HANDOFF, 1, (1,), torch.int64).wait()
    with pytest.raises(PeerLost, match="rank 0 timed out"):
        b.irecv(Channel.CONTROL, 0, (1,), torch.int64).wait()


@pytest.mark.parametrize("peer", [-1, 0, 2])
def test_a_rank_is_not_its_own_peer(peer):
    a, _ = pair()
    with pytest.raises(ValueError, match="no peer"):
        a.isend(Channel.CONTROL, peer, ONE)


@pytest.mark.case("P3")
def test_warm_up_meets_every_pair_on_every_channel_and_counts_nothing():
    links = []
    group = InProcessGroup(4, rendezvous=True, delay=lambda *link: links.append(link) or 0.0)

    def on_rank(transport):
        warm_up(transport)
        return sum(transport.messages_sent(channel) for channel in Channel)

    assert group.run(on_rank) == [0] * 4
    assert sorted(links) == sorted((s, d, c) for s in range(4) for d in range(4) if s != d for c in Channel)
