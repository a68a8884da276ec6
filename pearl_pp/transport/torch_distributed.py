"""Joining the ranks that torchrun, or the deepspeed launcher, has started."""

import json
import socket

import torch
import torch.distributed as dist

from pearl_pp.errors import UserError
from pearl_pp.transport.base import Transport, TransportError
from pearl_pp.transport.gloo import GlooTransport
from pearl_pp.transport.heartbeat import Heartbeat
from pearl_pp.transport.joining import join, number_told
from pearl_pp.transport.local import LocalTransport
from pearl_pp.transport.nccl import over_nccl
from pearl_pp.transport.point_to_point import warm_up


def connect(device: str = "auto", timeout_s: float = 120.0, use_nccl: bool | None = None) -> Transport:
    """Collective: the transport of this rank, connected to all ranks and warmed up.

    Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; a world of one needs none of them and
    makes no process group. `device` is auto, cpu or cuda (the card of LOCAL_RANK). Tensors travel over NCCL
    where every rank has a card of its own, else over gloo; `use_nccl` overrules that.
    A rank that is stopped or cut off ends every wait of the others within `timeout_s`, however long it may last.
    Raises UserError (no such device, the port is in use), RanksMissing (not all ranks came within `timeout_s`) and
    CannotJoin (this rank cannot connect to them).
    """
    chosen = pick_device(device)
    if number_told("WORLD_SIZE", default=1, least=1) == 1:
        return LocalTransport(chosen)
    owner = not dist.is_initialized()
    control_group, tensor_group, beat_group = join(timeout_s, 3)

    def release() -> None:
        # the default group takes all others with it
        for group in [None] if owner else [beat_group, tensor_group, control_group]:
            dist.destroy_process_group(group)

    plane = GlooTransport(control_group, tensor_group, chosen, timeout_s, release)
    if use_nccl is None:
        use_nccl = _each_rank_has_a_card(plane)
    transport = over_nccl(plane, control_group, timeout_s) if use_nccl else plane

    def fail(error: TransportError) -> None:
        for wires in {transport, plane}:
            wires.fail(error)

    beats = GlooTransport(beat_group, beat_group, torch.device("cpu"), timeout_s)
    plane.watch(Heartbeat(beats, timeout_s, fail))
    warm_up(transport)
    return transport


def pick_device(device: str) -> torch.device:
    """auto, cpu, cuda or cuda:INDEX -> the device of this process. Several processes may share a card."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("--device", device, "torch sees no CUDA device")
    if device == "cuda":
        local_rank = number_told("LOCAL_RANK", default=number_told("RANK", default=0))
        device = f"cuda:{local_rank % torch.cuda.device_count()}"
    chosen = torch.device(device)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    return chosen


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
