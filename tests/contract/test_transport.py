"""One contract for every transport: what the engine may rely on."""

import pytest

from pearl_pp.transport.base import Channel
from tests.contract import exchanges

SHAPES = [(5, 7), (3,), (), (0, 8), (2, 3, 4, 5)]


@pytest.mark.parametrize("receiver_is_late", [False, True])
def test_messages_of_a_link_keep_their_order_and_channels_do_not_mix(world, receiver_is_late):
    # 100 on each channel: more than may be under way unlooked-at, so the sender also meets its own limit
    received = world.run(exchanges.fifo, 100, receiver_is_late)[-1]
    assert received == {c.name: [n * 10 + c for n in range(100)] for c in Channel}


def test_every_pair_in_both_directions_at_once(world):
    assert world.run(exchanges.both_directions, 200_000) == [[], [], []]


@pytest.mark.case("N4")
def test_shapes_dtypes_and_strides_arrive_unchanged(world):
    assert world.run(exchanges.shapes_and_dtypes, SHAPES)[0] == []


def test_waiting_twice_and_reusing_the_memory_of_a_send(world):
    assert world.run(exchanges.wait_twice_and_reuse)[1] == [[1.0], [1.0]]


@pytest.mark.parametrize("seed", range(5))
def test_random_programs_in_one_global_order_finish(world, seed):
    assert world.run(exchanges.random_program, seed, 150) == [[], [], []]


def test_bytes_and_messages_are_counted_where_they_are_sent(world):
    counts = world.run(exchanges.counters)
    assert counts[0] == {"CONTROL": (1, 24), "ACTIVATIONS": (0, 0), "HANDOFF": (2, 54), "PROBS": (0, 0)}
    assert set(counts[1].values()) == {(0, 0)}


def test_broadcast_and_gather_of_empty_small_and_large_payloads(world):
    sizes = [0, 1, 3_000_000]
    by_rank = world.run(exchanges.collectives, sizes)
    for rank, answers in enumerate(by_rank):
        assert all(broadcast_is_right for broadcast_is_right, _ in answers)
        for root in range(world.world_size):
            gathered = [lengths for _, lengths in answers[root * len(sizes) : (root + 1) * len(sizes)]]
            expected = [[size, size + 1, size + 2] for size in sizes] if rank == root else [None] * len(sizes)
            assert gathered == expected


def test_no_rank_leaves_a_barrier_before_all_have_come(world):
    times = world.run(exchanges.barrier)
    assert max(came for came, _ in times) <= min(left for _, left in times)


@pytest.mark.parametrize("channel", [Channel.CONTROL, Channel.PROBS])
def test_a_wait_ends_at_its_deadline_and_names_everything(world, channel):
    rank, peer, of_channel, seconds, took = world.spoil(exchanges.silence, channel, 0.3)[0]
    assert (rank, peer, of_channel, seconds) == (0, 1, channel, 0.3)
    assert 0.25 < took < 3.0


@pytest.mark.parametrize("channel", [Channel.CONTROL, Channel.ACTIVATIONS])
def test_waits_end_when_a_rank_leaves(world, channel):
    message = world.spoil(exchanges.departure, channel)[0]
    assert message.startswith(f"rank 0: lost rank 1 on {channel.name}")
