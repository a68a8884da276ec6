"""The pool of the integration tests: errors keep their type, rank and traceback; no rank outlives it."""

import os

import psutil
import pytest
import torch

from pearl_pp.errors import UserError
from pearl_pp.transport.base import Channel
from tests.rank_pool import RankPool, shared_pool


def rank_times(transport, factor):
    return transport.rank * factor, os.getpid()


def user_error_on_rank_1(transport):
    if transport.rank == 1:
        raise UserError("--target", "/x", "no such folder")
    transport.irecv(Channel.CONTROL, 1, (1,), torch.int64).wait()


def die_on_rank_0(transport):
    if transport.rank == 0:
        os._exit(7)
    transport.barrier()


def unpicklable(transport):
    return lambda: None


def sleep_on(transport):
    transport.irecv(Channel.CONTROL, (transport.rank + 1) % 2, (1,), torch.int64).wait()


def test_ranks_are_kept_between_runs():
    first, second = (shared_pool(2).run(rank_times, 10) for _ in range(2))
    assert [value for value, _ in first] == [0, 10]
    assert first == second


def test_the_first_error_comes_back_with_its_type_and_rank_and_the_next_run_works():
    with pytest.raises(UserError, match="--target /x: no such folder") as caught:
        shared_pool(2).run(user_error_on_rank_1)
    assert caught.value.rank == 1 and caught.value.option == "--target"
    assert "user_error_on_rank_1" in caught.value.__notes__[0]
    assert [value for value, _ in shared_pool(2).run(rank_times, 3)] == [0, 3]


def test_a_rank_that_dies_is_named():
    with pytest.raises(RuntimeError, match="rank-0 died with exit code 7"):
        shared_pool(2).run(die_on_rank_0)


def test_a_result_that_cannot_travel_is_an_error():
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        shared_pool(2).run(unpicklable)


def test_a_run_has_a_time_limit_and_close_leaves_no_process_and_no_port():
    pool = RankPool(2)
    pids = [pid for _, pid in pool.run(rank_times, 1)]
    port = pool._store.port
    with pytest.raises(TimeoutError, match=r"sleep_on: no result of ranks \[0, 1\] within 0\.2 s"):
        pool.run(sleep_on, timeout_s=0.2)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    listening = {c.laddr.port for c in psutil.Process().net_connections("inet") if c.status == "LISTEN"}
    assert port not in listening
