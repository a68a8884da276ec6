"""What the ranks do in the contract's tests: functions of a module, for they travel to other processes."""

import random
import time
from itertools import permutations
from typing import Any

import torch

from pearl_pp.transport.base import Channel, PeerLost, Transport, TransportTimeout

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool]


def place(transport: Transport, channel: Channel, tensor: torch.Tensor) -> torch.Tensor:
    return tensor if channel is Channel.CONTROL else tensor.to(transport.device)


def fifo(transport: Transport, num_messages: int, receiver_is_late: bool) -> dict[str, list[int]] | None:
    """Rank 0 posts numbered messages on all channels in turn; the last rank takes them channel by channel."""
    last = transport.world_size - 1
    if transport.rank == 0:
        for number in range(num_messages):
            for channel in Channel:
                tensor = torch.tensor([number * 10 + channel])
                transport.isend(channel, last, place(transport, channel, tensor))
    if transport.rank == last:
        if receiver_is_late:
            time.sleep(0.2)
        posted = {channel: [] for channel in Channel}
        for _ in range(num_messages):
            for channel in Channel:
                posted[channel].append(transport.irecv(channel, 0, (1,), torch.int64))
        return {c.name: [int(p.wait()) for p in posted[c]] for c in reversed(Channel)}
    return None


def both_directions(transport: Transport, num_elements: int) -> list[int]:
    """Every pair exchanges large messages at once; all are posted before the first is waited for."""
    posted, seen = [], []
    for src, dst in permutations(range(transport.world_size), 2):
        for channel in Channel:
            if transport.rank == src:
                tensor = torch.full((num_elements,), float(10 * src + dst))
                posted.append(transport.isend(channel, dst, place(transport, channel, tensor)))
            elif transport.rank == dst:
                posted.append(transport.irecv(channel, src, (num_elements,), torch.float32))
                seen.append((len(posted) - 1, float(10 * src + dst)))
    tensors = [message.wait() for message in posted]
    return [index for index, value in seen if not bool((tensors[index] == value).all())]


def sample(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Values that a detour through another dtype would change (ids beyond 2**31, bf16's own grid)."""
    count = torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)
    if dtype is torch.int64:
        return count.long() + 2**53 + 1
    return (count * 1.37 - 3).abs().to(dtype)


def shapes_and_dtypes(transport: Transport, shapes: list[tuple[int, ...]]) -> list[str]:
    """Rank 1 sends every shape in every dtype to rank 0, contiguous and not; the wrong ones come back."""
    wrong = []
    for shape in shapes:
        for dtype in DTYPES:
            tensor = sample(shape, dtype).to(transport.device)
            if transport.rank == 1:
                transport.isend(Channel.ACTIVATIONS, 0, tensor)
                transport.isend(Channel.HANDOFF, 0, tensor.transpose(0, -1) if shape else tensor)
                transport.isend(Channel.PROBS, 0, tensor[..., ::2] if shape else tensor)
            if transport.rank == 0:
                for channel, expected in (
                    (Channel.ACTIVATIONS, tensor),
                    (Channel.HANDOFF, tensor.transpose(0, -1) if shape else tensor),
                    (Channel.PROBS, tensor[..., ::2] if shape else tensor),
                ):
                    got = transport.irecv(channel, 1, tuple(expected.shape), dtype).wait()
                    if (got.dtype, got.device) != (dtype, transport.device) or not torch.equal(got, expected):
                        wrong.append(f"{shape} {dtype} {channel.name}")
    return wrong


def wait_twice_and_reuse(transport: Transport) -> list[list[float]] | None:
    """A sender overwrites its tensor once wait() has returned; a second wait() returns at once."""
    if transport.rank == 0:
        tensor = torch.ones(1000, device=transport.device)
        send = transport.isend(Channel.ACTIVATIONS, 1, tensor)
        assert send.wait() is tensor and send.wait() is tensor
        tensor.fill_(7.0)
    if transport.rank == 1:
        receive = transport.irecv(Channel.ACTIVATIONS, 0, (1000,), torch.float32)
        first = receive.wait()
        return [first.unique().tolist(), receive.wait().unique().tolist()]
    return None


def random_program(transport: Transport, seed: int, num_messages: int) -> list[int]:
    """One global order of random messages; receives are waited for later, in another order."""
    plan = random.Random(seed)
    mine = random.Random(seed + 1 + transport.rank)
    pairs = list(permutations(range(transport.world_size), 2))
    waiting: list[tuple[int, Any]] = []
    wrong = []
    for number in range(num_messages):
        src, dst = plan.choice(pairs)
        channel, size = plan.choice(list(Channel)), plan.choice([0, 1, 9, 50_000])
        if transport.rank == src:
            tensor = torch.full((size,), number)
            transport.isend(channel, dst, place(transport, channel, tensor))
        elif transport.rank == dst:
            waiting.append((number, transport.irecv(channel, src, (size,), torch.int64)))
        while waiting and (mine.random() < 0.3 or number == num_messages - 1):
            expected, receive = waiting.pop(mine.randrange(len(waiting)))
            if not bool((receive.wait() == expected).all()):
                wrong.append(expected)
    return wrong


def counters(transport: Transport) -> dict[str, tuple[int, int]]:
    transport.reset_counters()
    if transport.rank == 0:
        transport.isend(Channel.CONTROL, 1, torch.zeros(3, dtype=torch.int64))
        for shape in [(4, 5), (7,)]:
            entries = torch.zeros(shape, dtype=torch.bfloat16, device=transport.device)
            transport.isend(Channel.HANDOFF, 1, entries)
    if transport.rank == 1:
        transport.irecv(Channel.CONTROL, 0, (3,), torch.int64).wait()
        transport.irecv(Channel.HANDOFF, 0, (4, 5), torch.bfloat16).wait()
        transport.irecv(Channel.HANDOFF, 0, (7,), torch.bfloat16).wait()
    counts = {c.name: (transport.messages_sent(c), transport.bytes_sent(c)) for c in Channel}
    transport.reset_counters()
    assert not any(transport.bytes_sent(c) or transport.messages_sent(c) for c in Channel)
    return counts


def collectives(transport: Transport, sizes: list[int]) -> list[tuple[bool, list[int] | None]]:
    """Every rank broadcasts and gathers such payloads; by call: was the broadcast right, sizes gathered."""
    answers = []
    for root in range(transport.world_size):
        for size in sizes:
            payload = bytes([root + 1]) * size
            got = transport.broadcast_bytes(payload if transport.rank == root else None, root)
            gathered = transport.gather_bytes(bytes([transport.rank]) * (size + transport.rank), root)
            answers.append((got == payload, gathered and [len(entry) for entry in gathered]))
    return answers


def barrier(transport: Transport) -> tuple[float, float]:
    """When this rank came and left; they come at different times."""
    time.sleep(0.05 * transport.rank)
    came = time.monotonic()
    transport.barrier()
    return came, time.monotonic()


def silence(transport: Transport, channel: Channel, seconds: float) -> tuple[Any, ...] | None:
    """Rank 0 waits for a message that rank 1 never sends."""
    if transport.rank != 0:
        time.sleep(2 * seconds)
        return None
    started = time.monotonic()
    try:
        transport.irecv(channel, 1, (1,), torch.int64).wait(seconds)
    except TransportTimeout as error:
        return error.rank, error.peer, error.channel, error.seconds, time.monotonic() - started
    return None


def departure(transport: Transport, channel: Channel) -> str | None:
    """Rank 1 aborts while the others wait, rank 0 for rank 1 itself."""
    if transport.rank == 1:
        time.sleep(0.2)
        transport.abort("no more")
        time.sleep(1.0)  # the process lives on: it is not its end that the others notice
        return None
    try:
        transport.irecv(channel, 1, (1,), torch.int64).wait()
    except PeerLost as error:
        return _after_the_loss(transport, channel) or str(error)
    return "nothing raised"


def _after_the_loss(transport: Transport, channel: Channel) -> str:
    """Later messages fail as well, when they are posted or waited for."""
    try:
        transport.isend(channel, 1, torch.zeros(1, dtype=torch.int64, device=transport.device))
        transport.irecv(channel, 1, (1,), torch.int64).wait()
    except PeerLost:
        return ""
    return "nothing raised the second time"
