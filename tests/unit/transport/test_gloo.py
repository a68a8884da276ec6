"""What is particular to gloo: bounded memory of unfinished sends, and messages apart by tag in one group."""

import time

import pytest
import torch
import torch.distributed as dist

from pearl_pp.transport.base import Channel, MessageMismatch
from pearl_pp.transport.gloo import MAX_UNFINISHED_SENDS, GlooTransport
from tests.rank_pool import shared_pool


def send_many(transport, num_messages):
    if transport.rank == 0:
        for _ in range(num_messages):
            transport.isend(Channel.PROBS, 1, torch.zeros(1000))
        return len(transport._unfinished)
    receives = [transport.irecv(Channel.PROBS, 0, (1000,), torch.float32) for _ in range(num_messages)]
    return sum(int(receive.wait().numel()) for receive in receives)


def run_ahead(transport, seconds):
    """How long a late receiver held the sender up, for fewer and for more sends than it may hold."""
    took = []
    for num_messages in (MAX_UNFINISHED_SENDS // 2, 2 * MAX_UNFINISHED_SENDS):
        transport.barrier()
        started = time.monotonic()
        if transport.rank == 0:
            for _ in range(num_messages):
                transport.isend(Channel.ACTIVATIONS, 1, torch.zeros(10))
        else:
            time.sleep(seconds)
            for _ in range(num_messages):
                transport.irecv(Channel.ACTIVATIONS, 0, (10,), torch.float32).wait()
        took.append(time.monotonic() - started)
        transport.barrier()
    return took


def two_over_one_group(transport):
    group = dist.group.WORLD
    first, second = (GlooTransport(group, group, torch.device("cpu"), 20.0, first_tag=tag) for tag in (500, 600))
    if transport.rank == 0:
        first.isend(Channel.CONTROL, 1, torch.tensor([1]))
        second.isend(Channel.CONTROL, 1, torch.tensor([2]))
        transport.isend(Channel.CONTROL, 1, torch.tensor([3]))
        transport.barrier()
        return []
    planes = (transport, second, first)
    got = [int(plane.irecv(Channel.CONTROL, 0, (1,), torch.int64).wait()) for plane in planes]
    transport.barrier()
    return got


def test_sends_that_nobody_waits_for_are_let_go():
    kept, received = shared_pool(2).run(send_many, 200)
    assert kept == MAX_UNFINISHED_SENDS
    assert received == 200_000


def test_a_sender_may_run_ahead_but_not_without_end():
    within, beyond = shared_pool(2).run(run_ahead, 0.5)[0]
    assert within < 0.25
    assert beyond > 0.4


def test_transports_over_one_group_do_not_mix():
    assert shared_pool(2).run(two_over_one_group)[1] == [3, 2, 1]


def of_another_size(transport, sent, expected, dtype):
    """What a receiver of `expected` numbers of float32 says of a message of `sent` numbers of `dtype`."""
    group = dist.group.WORLD
    plane = GlooTransport(group, group, torch.device("cpu"), 20.0, first_tag=700)
    said = ""
    if transport.rank == 0:
        plane.isend(Channel.ACTIVATIONS, 1, torch.ones(sent, dtype=dtype)).wait()
    else:
        try:
            plane.irecv(Channel.ACTIVATIONS, 0, (expected,), torch.float32).wait()
        except MessageMismatch as error:
            said = str(error)
    transport.barrier()
    return said


@pytest.mark.case("P4")
@pytest.mark.parametrize(
    ("sent", "expected", "dtype", "how"),
    [
        (1000, 1000, torch.float64, "longer than the 4000"),
        (100_000, 100_000, torch.float64, "longer than the 400000"),
        (6000, 1, torch.float32, "longer than the 4"),
        (1000, 1000, torch.bfloat16, "shorter than the 4000"),
        (1000, 1000, torch.float32, ""),
    ],
)
def test_a_message_of_another_size_is_told_by_its_receiver(sent, expected, dtype, how):
    said = shared_pool(2).run(of_another_size, sent, expected, dtype)[1]
    assert said == (f"rank 1: bad message from rank 0 on ACTIVATIONS: {how} bytes expected" if how else "")
