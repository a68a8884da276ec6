"""What a rank finds around it: versions, device, memory, cores, network. Nothing here speaks to other ranks."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import socket
import struct
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from pearl_pp import __version__

PACKAGES = ("deepspeed", "safetensors", "torch", "transformers")

_SHARED_MEMORY = Path("/dev/shm")
_MEMORY = Path("/proc/meminfo")
_DRIVER = Path("/proc/driver/nvidia/version")
_CGROUP = Path("/sys/fs/cgroup")
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux


def package_versions() -> dict[str, str]:
    """Of this package, Python and the libraries; `missing` for one that is not installed."""
    found = {"pearl_pp": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


@dataclass(frozen=True)
class RankFacts:
    """One rank's surroundings.

    Args:
        host, local_rank: where it runs.
        versions: see `package_versions`.
        device: `cpu` or `cuda:0`; None where the device that was asked for is not there.
        card: name of its GPU, and `card_id`, which no other card has; None on a CPU.
        free_bytes, total_bytes: memory of the device, or of the machine on a CPU.
        has_bfloat16: whether the card computes in it.
        num_cores: that this process may use.
        num_threads: OMP_NUM_THREADS as it is set; None where it is not.
        shared_memory_bytes: size of /dev/shm; None where there is none.
        host_address: what the host's name resolves to; None where it does not.
        host_address_is_local: whether a socket can be bound to it.
        interface, interface_address: what gloo speaks through, and the address it has, where known.
        has_nccl: whether this torch can use it.
        has_driver: whether the machine has NVIDIA's driver, whatever torch can use.
    """

    host: str
    local_rank: int
    versions: dict[str, str]
    device: str | None
    card: str | None
    card_id: str | None
    free_bytes: int
    total_bytes: int
    has_bfloat16: bool
    num_cores: int
    num_threads: str | None
    shared_memory_bytes: int | None
    host_address: str | None
    host_address_is_local: bool
    interface: str | None
    interface_address: str | None
    has_nccl: bool
    has_driver: bool

    def record(self) -> dict[str, object]:
        """As JSON; `RankFacts(**record)` is the same again."""
        return asdict(self)


def look_around(device: torch.device | None) -> RankFacts:
    """The facts of this rank; call it after connecting, which decides about the interface."""
    is_card = device is not None and device.type == "cuda"
    properties = torch.cuda.get_device_properties(device) if is_card else None
    free, total = torch.cuda.mem_get_info(device) if is_card else _machine_memory()
    address = _host_address()
    interface = os.environ.get("GLOO_SOCKET_IFNAME") or _interface_with(address)
    return RankFacts(
        host=socket.gethostname(),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        versions=package_versions(),
        device=None if device is None else str(device),
        card=None if properties is None else properties.name,
        card_id=None if properties is None else str(properties.uuid),
        free_bytes=free,
        total_bytes=total,
        has_bfloat16=not is_card or torch.cuda.is_bf16_supported(including_emulation=False),
        num_cores=num_cores(),
        num_threads=os.environ.get("OMP_NUM_THREADS"),
        shared_memory_bytes=shutil.disk_usage(_SHARED_MEMORY).total if _SHARED_MEMORY.is_dir() else None,
        host_address=address,
        host_address_is_local=address is not None and _can_bind(address),
        interface=interface,
        interface_address=None if interface is None else _address_of(interface),
        has_nccl=_has_nccl(),
        has_driver=_DRIVER.exists(),
    )


def num_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _has_nccl() -> bool:
    return torch.cuda.is_available() and torch.version.cuda is not None and hasattr(torch._C, "_nccl_version")


def _machine_memory() -> tuple[int, int]:
    """Free and total bytes of the machine, or of the container if that may use less; zeros where nobody says."""
    try:
        rows = dict(line.split(":") for line in _MEMORY.read_text().splitlines())
    except OSError:
        return 0, 0
    free, total = (int(rows[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    with contextlib.suppress(OSError, ValueError):  # no cgroup, or "max"
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        free, total = min(free, limit - used), min(total, limit)
    return free, total


def _host_address() -> str | None:
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None, proto=socket.IPPROTO_TCP)[0][4][0])
    except OSError:
        return None


def _can_bind(address: str) -> bool:
    """Whether an interface of this machine has this address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _interface_with(address: str | None) -> str | None:
    names = (name for _, name in socket.if_nameindex())
    return next((name for name in names if address is not None and _address_of(name) == address), None)


def _address_of(interface: str) -> str | None:
    """IPv4 address of an interface, on Linux."""
    try:
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)[20:24])
    except (ImportError, OSError):
        return None
