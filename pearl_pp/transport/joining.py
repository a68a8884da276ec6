"""Where the ranks of one job meet: at an address that others cannot reach, under a name that others do not have."""

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import NamedTuple, TypeVar

import torch.distributed as dist

from pearl_pp.errors import UserError
from pearl_pp.transport.base import CannotJoin, RanksMissing

# Set by the launcher of `pearl-pp run`: the job's name, and for rank 0 the socket that the others will call.
JOB = "PEARL_PP_JOB"
LISTEN_FD = "PEARL_PP_LISTEN_FD"

_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_MOST_RANKS = 99_999
_MOST_PORT = 65_535

# A store that finds out itself that a rank is missing can say more than the clock.
_BEHIND_STORE_S = 3.0

_Made = TypeVar("_Made")


class _Meeting(NamedTuple):
    """Who this rank is, how many shall meet, and where."""

    rank: int
    world_size: int
    where: str


def join(timeout_s: float, num_groups: int) -> list[dist.ProcessGroup]:
    """Collective: `num_groups` process groups over gloo, each of all ranks that a launcher has started.

    The first is the default group, unless this process has one already.

    Raises:
        UserError: a variable of the launcher's cannot be, or the port is in use.
        RanksMissing: not all ranks came within `timeout_s`, or one of them is stopped.
        CannotJoin: connecting failed before.
    """
    timeout = timedelta(seconds=timeout_s)
    if dist.is_initialized():
        others = _Meeting(dist.get_rank(), dist.get_world_size(), "new groups")
        return _in_time(lambda: [_new_group(timeout) for _ in range(num_groups)], timeout_s, others)
    world_size = number_told("WORLD_SIZE", least=1)
    rank = number_told("RANK", most=world_size - 1)
    host, port = _told("MASTER_ADDR"), number_told("MASTER_PORT", least=1, most=_MOST_PORT)
    _use_loopback_on_one_machine()

    def meet() -> list[dist.ProcessGroup]:
        store = dist.PrefixStore(f"pearl_pp/{_job()}", _store(rank, world_size, host, port, timeout))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
        assert dist.group.WORLD is not None
        return [dist.group.WORLD, *(_new_group(timeout) for _ in range(num_groups - 1))]

    return _in_time(meet, timeout_s, _Meeting(rank, world_size, f"{host}:{port}"))


def number_told(name: str, default: int | None = None, least: int = 0, most: int = _MOST_RANKS) -> int:
    """The number in the launcher's variable `name`, or `default`. Raises UserError."""
    if default is not None and name not in os.environ:
        return default
    text = _told(name)
    with contextlib.suppress(ValueError):
        if least <= (number := int(text)) <= most:
            return number
    raise UserError(name, text, f"must be a whole number from {least} to {most}")


def _told(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise UserError(name, None, "needs a value: torchrun, deepspeed and pearl-pp run set it for every rank")
    return value


def _in_time(make: Callable[[], _Made], timeout_s: float, meeting: _Meeting) -> _Made:
    """What `make` makes together with all other ranks, or an error in time.

    In a thread of its own: a stopped rank may hold the port at which all meet, and what asks there may wait for ever.
    """
    made: Future[_Made] = Future()

    def work() -> None:
        try:
            made.set_result(make())
        except BaseException as error:  # raised below, where somebody hears it
            made.set_exception(error)

    started = time.monotonic()
    threading.Thread(target=work, name="joining", daemon=True).start()
    rank, world_size, where = meeting
    late = f"rank {rank}: not all {world_size} ranks came to {where} within {timeout_s:g} s"
    try:
        return made.result(timeout_s + _BEHIND_STORE_S)
    except (RuntimeError, OSError) as error:
        if not made.done():
            raise RanksMissing(f"{late}: no answer") from None
        if time.monotonic() - started >= timeout_s:  # gloo and the store have one type and many texts for their errors
            raise RanksMissing(f"{late}: {_reason(error)}") from error
        raise CannotJoin(f"rank {rank}: cannot join the {world_size} ranks at {where}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The first line of it, without the place in a library's source."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.splitlines()[0].split("] ", 1)[-1]


def _new_group(timeout: timedelta) -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(group, dist.ProcessGroup)  # this rank is a member
    return group


def _job() -> str:
    """By this name ranks find one another: two jobs that use one port by mistake never mix."""
    return os.environ.get(JOB) or os.environ.get("TORCHELASTIC_RUN_ID", "")


def _store(rank: int, world_size: int, host: str, port: int, timeout: timedelta) -> dist.Store:
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun keeps the store
        store, _, _ = next(iter(dist.rendezvous("env://", rank, world_size, timeout=timeout)))
        store.set_timeout(timeout)
        return store
    if rank != 0:
        return dist.TCPStore(host, port, world_size, False, timeout)
    # The store would listen on every interface; a socket of ours listens on the one that the ranks call.
    return dist.TCPStore(
        host, port, world_size, True, timeout, wait_for_workers=False, master_listen_fd=_listen(host, port)
    )


def _listen(host: str, port: int) -> int:
    """A listening socket's descriptor: the launcher's, or one on `host`'s interface."""
    if given := os.environ.pop(LISTEN_FD, None):  # a second job of this process makes its own
        return int(given)
    for address in (_address(host), ""):
        try:
            return socket.create_server((address, port), family=_family(address)).detach()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UserError("MASTER_PORT", port, "is in use on this machine; choose another port") from None
            if error.errno != errno.EADDRNOTAVAIL or not address:  # an address that only others know this machine by
                raise UserError("MASTER_PORT", port, f"cannot be listened at: {error.strerror}") from None
    raise AssertionError("the last address raises")


def _address(host: str) -> str:
    """What rank 0 listens on: `host`, or every interface where that is this machine's name for itself alone."""
    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        raise UserError("MASTER_ADDR", host, f"is no address of a machine: {_reason(error)}") from None
    is_loopback = address.startswith("127.") or address == "::1"
    return "" if is_loopback and not _is_one_machine() else address


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _is_one_machine() -> bool:
    """Whether every rank is on this machine, as far as the launcher says."""
    local_world_size = os.environ.get("LOCAL_WORLD_SIZE")  # the deepspeed launcher does not set it
    if local_world_size is not None:
        return local_world_size == os.environ["WORLD_SIZE"]
    return os.environ.get("MASTER_ADDR") in _LOCAL_NAMES


def _use_loopback_on_one_machine() -> None:
    """Keep gloo off the network card (and off host name look-ups) when every rank is on this machine."""
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if _is_one_machine() and loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
