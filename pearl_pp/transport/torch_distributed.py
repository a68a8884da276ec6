"""Joining the ranks that torchrun, or the deepspeed launcher, has started."""

import json
import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist

from pearl_pp.errors import UserError
from pearl_pp.transport.base import Transport
from pearl_pp.transport.gloo import GlooTransport
from pearl_pp.transport.local import LocalTransport
from pearl_pp.transport.nccl import over_nccl
from pearl_pp.transport.point_to_point import warm_up


def connect(device: str = "auto", timeout_s: float = 120.0, use_nccl: bool | None = None) -> Transport:
    """Collective: the transport of this rank, connected to all ranks and warmed up.

    Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; a world of one needs none of them and
    makes no process group. `device` is auto, cpu or cuda (the card of LOCAL_RANK). Tensors travel over NCCL
    where every rank has a card of its own, else over gloo; `use_nccl` overrules that.
    Raises UserError (no such device) and TimeoutError (not all ranks came within `timeout_s`).
    """
    chosen = pick_device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return LocalTransport(chosen)
    timeout = timedelta(seconds=timeout_s)
    owner = not dist.is_initialized()
    if owner:
        _use_loopback_on_one_machine()
        _join(timeout)
    control_group = dist.group.WORLD if owner else dist.new_group(backend="gloo", timeout=timeout)
    tensor_group = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(control_group, dist.ProcessGroup) and isinstance(tensor_group, dist.ProcessGroup)

    def release() -> None:
        # the default group takes all others with it
        for group in [None] if owner else [tensor_group, control_group]:
            dist.destroy_process_group(group)

    plane = GlooTransport(control_group, tensor_group, chosen, timeout_s, release)
    if use_nccl is None:
        use_nccl = _each_rank_has_a_card(plane)
    transport = over_nccl(plane, control_group, timeout_s) if use_nccl else plane
    warm_up(transport)
    return transport


def pick_device(device: str) -> torch.device:
    """auto, cpu, cuda or cuda:INDEX -> the device of this process. Several processes may share a card."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("--device", device, "torch sees no CUDA device")
    if device == "cuda":
        local_rank = int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")))
        device = f"cuda:{local_rank % torch.cuda.device_count()}"
    chosen = torch.device(device)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    return chosen


def _join(timeout: timedelta) -> None:
    try:
        dist.init_process_group("gloo", timeout=timeout)
    except (dist.DistStoreError, dist.DistNetworkError) as error:
        rank, world_size, host, port = (
            os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        )
        raise TimeoutError(
            f"rank {rank}: not all {world_size} ranks came to {host}:{port} "
            f"within {timeout.total_seconds():g} s: {str(error).splitlines()[0]}"
        ) from error


def _use_loopback_on_one_machine() -> None:
    """Keep gloo off the network card (and off host name look-ups) when every rank is on this machine."""
    local_world_size = os.environ.get("LOCAL_WORLD_SIZE")  # the deepspeed launcher does not set it
    if local_world_size is not None:
        one_machine = local_world_size == os.environ["WORLD_SIZE"]
    else:
        one_machine = os.environ.get("MASTER_ADDR") in ("localhost", "127.0.0.1", "::1")
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if one_machine and loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


def _each_rank_has_a_card(transport: Transport) -> bool:
    """Collective: NCCL refuses two ranks on one card, and needs one on every rank."""
    gathered = transport.gather_bytes(json.dumps(_card(transport.device)).encode(), dst=0)
    answer = None
    if gathered is not None:
        cards = [json.loads(entry) for entry in gathered]
        answer = json.dumps(None not in cards and len(set(cards)) == len(cards)).encode()
    return json.loads(transport.broadcast_bytes(answer, src=0))


def _card(device: torch.device) -> str | None:
    """A name for this rank's card that no other card has; None where NCCL cannot be used."""
    if device.type != "cuda" or not dist.is_nccl_available():
        return None
    return f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}"
