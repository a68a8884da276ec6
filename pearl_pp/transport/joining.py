"""Where the ranks of one job meet: at an address that others cannot reach, under a name that others do not have."""

import errno
import os
import socket
from datetime import timedelta

import torch.distributed as dist

from pearl_pp.errors import UserError
from pearl_pp.transport.base import RanksMissing

# Set by the launcher of `pearl-pp run`: the job's name, and for rank 0 the socket that the others will call.
JOB = "PEARL_PP_JOB"
LISTEN_FD = "PEARL_PP_LISTEN_FD"

_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def join(timeout: timedelta) -> None:
    """Collective: make the default process group over gloo of the ranks that a launcher has started.

    Raises UserError (the port is in use) and RanksMissing (not all ranks came in time).
    """
    _use_loopback_on_one_machine()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        store = dist.PrefixStore(f"pearl_pp/{_job()}", _store(rank, world_size, timeout))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
    except (dist.DistStoreError, dist.DistNetworkError) as error:
        host, port = (os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise RanksMissing(
            f"rank {rank}: not all {world_size} ranks came to {host}:{port} "
            f"within {timeout.total_seconds():g} s: {str(error).splitlines()[0]}"
        ) from error


def _job() -> str:
    """By this name ranks find one another: two jobs that use one port by mistake never mix."""
    return os.environ.get(JOB) or os.environ.get("TORCHELASTIC_RUN_ID", "")


def _store(rank: int, world_size: int, timeout: timedelta) -> dist.Store:
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun keeps the store
        store, _, _ = next(iter(dist.rendezvous("env://", rank, world_size, timeout=timeout)))
        store.set_timeout(timeout)
        return store
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
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
                raise
    raise AssertionError("the last address raises")


def _address(host: str) -> str:
    """What rank 0 listens on: `host`, or every interface where that is this machine's name for itself alone."""
    address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
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
