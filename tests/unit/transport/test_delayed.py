"""Emulated links: contents and counters as ever, arrivals no sooner than the link allows."""

from __future__ import annotations

import time

import pytest
import torch

from pearl_pp.transport.base import Channel, Transport
from pearl_pp.transport.delayed import DelayedTransport
from pearl_pp.transport.inprocess import InProcessGroup

LATENCY_S, BYTES_PER_S = 0.02, 1e6


def link_time(src: int, dst: int, num_bytes: int) -> float:
    return (LATENCY_S if src < dst else 0.0) + num_bytes / BYTES_PER_S


@pytest.mark.parametrize(
    ("channel", "tensor"),
    [
        (Channel.CONTROL, torch.arange(5)),
        (Channel.ACTIVATIONS, torch.randn(3, 7).to(torch.bfloat16)),
        (Channel.HANDOFF, torch.arange(60, dtype=torch.uint8).view(1, 2, 3, 10)[:, :, :, :7]),
        (Channel.PROBS, torch.zeros(0, 8)),
    ],
)
@pytest.mark.parametrize("rendezvous", [False, True])
def test_a_message_arrives_whole_and_counts_its_payload(
    channel: Channel, tensor: torch.Tensor, rendezvous: bool
) -> None:
    def on_rank(inner: Transport) -> None:
        transport = DelayedTransport(inner, link_time)
        if transport.rank == 0:
            send = transport.isend(channel, 1, tensor)
            assert torch.equal(send.wait(), tensor)
            assert (transport.bytes_sent(channel), transport.messages_sent(channel)) == (tensor.nbytes, 1)
        else:
            arrived = transport.irecv(channel, 0, tensor.shape, tensor.dtype).wait()
            assert torch.equal(arrived, tensor) and arrived.dtype == tensor.dtype

    InProcessGroup(2, rendezvous=rendezvous).run(on_rank)


@pytest.mark.parametrize(("num_bytes", "least"), [(8, LATENCY_S), (30_000, LATENCY_S + 0.03)])
def test_no_message_is_read_before_latency_and_bytes_allow(num_bytes: int, least: float) -> None:
    def on_rank(inner: Transport) -> float:
        transport = DelayedTransport(inner, link_time)
        start = time.monotonic()
        if transport.rank == 0:
            transport.isend(Channel.ACTIVATIONS, 1, torch.zeros(num_bytes, dtype=torch.uint8))
            return start
        transport.irecv(Channel.ACTIVATIONS, 0, (num_bytes,), torch.uint8).wait()
        return time.monotonic()

    sent, arrived = InProcessGroup(2).run(on_rank)
    assert least <= arrived - sent < least + 0.5


def test_time_since_the_send_counts_not_since_the_wait() -> None:
    def on_rank(inner: Transport) -> float:
        transport = DelayedTransport(inner, link_time)
        if transport.rank == 0:
            transport.isend(Channel.CONTROL, 1, torch.tensor([1]))
            return 0.0
        pending = transport.irecv(Channel.CONTROL, 0, (1,), torch.int64)
        time.sleep(3 * LATENCY_S)
        start = time.monotonic()
        pending.wait()
        return time.monotonic() - start

    assert InProcessGroup(2).run(on_rank)[1] < LATENCY_S / 2


def test_collectives_work_over_it() -> None:
    def on_rank(inner: Transport) -> tuple[bytes, list[bytes] | None]:
        transport = DelayedTransport(inner, link_time)
        transport.barrier()
        return transport.broadcast_bytes(b"hello" if transport.rank == 0 else None, 0), transport.gather_bytes(
            bytes([transport.rank]), 0
        )

    results = InProcessGroup(3).run(on_rank)
    assert [hello for hello, _ in results] == [b"hello"] * 3
    assert results[0][1] == [b"\0", b"\1", b"\2"]
