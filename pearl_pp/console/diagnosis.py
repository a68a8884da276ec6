"""From what the ranks found to what would go wrong, in plain words. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pearl_pp.runtime.link_times import LinkTimes
from pearl_pp.runtime.machine import RankFacts

# Containers often have 64 MB; NCCL maps tens of MB for each pair of ranks on a machine.
SMALL_SHARED_MEMORY = 256 * 2**20
# A card of which others use this much: a run plans with all of it.
MUCH_IN_USE = 0.1
# A link this many times slower than the fastest one is worth a line.
MUCH_SLOWER = 5.0


class Finding(NamedTuple):
    """One line for the user; `stops`: a run on these ranks would end with an error."""

    stops: bool
    text: str


def diagnose(ranks: Sequence[RankFacts], links: LinkTimes | None = None) -> list[Finding]:
    """What would go wrong on `ranks`; those that stop a run come first.

    Args:
        links: of the plane of tensors, where there are several ranks.
    """
    found = [finding for check in _CHECKS for finding in check(ranks)]
    found += _slow_links(links) if links is not None else []
    return sorted(found, key=lambda finding: not finding.stops)


def _missing_packages(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    for name in ranks[0].versions:
        if at := [number for number, rank in enumerate(ranks) if rank.versions[name] == "missing"]:
            yield Finding(True, f"{_on(at)}: the package {name} is not installed")


def _versions_differ(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    for name, first in ranks[0].versions.items():
        for number, rank in enumerate(ranks):
            if rank.versions[name] != first:
                # Stages of one model must be cut by the same code; the ranks compare it before they load.
                text = f"rank {number} has {name} {rank.versions[name]}, rank 0 has {first}"
                yield Finding(name in ("transformers", "pearl_pp"), f"{text}: install the same on all machines")
                break


def _devices(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    without = [number for number, rank in enumerate(ranks) if rank.card is None]
    if not without:
        return
    if len(without) < len(ranks):
        yield Finding(
            True, f"{_on(without)}: no GPU, the others have one: say --device cpu, or name one --dtype for all"
        )
        return
    if any(rank.has_driver for rank in ranks):
        yield Finding(False, "there is an NVIDIA driver, but this torch sees no GPU: it may be a build for CPUs")
    yield Finding(False, "no GPU is used: models run on the CPU, in float32 unless --dtype says otherwise")


def _shared_cards(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    for card in dict.fromkeys(rank.card_id for rank in ranks):
        at = [number for number, rank in enumerate(ranks) if rank.card_id == card and card is not None]
        if len(at) > 1:
            text = f"{_on(at)} are on one GPU: NCCL refuses that, so tensors go over gloo through host memory"
            yield Finding(False, f"{text}, and their passes take turns")


def _no_nccl(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    if at := [number for number, rank in enumerate(ranks) if rank.card is not None and not rank.has_nccl]:
        yield Finding(False, f"{_on(at)}: this torch has no NCCL, so tensors go over gloo through host memory")


def _no_bfloat16(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    if at := [number for number, rank in enumerate(ranks) if not rank.has_bfloat16]:
        yield Finding(False, f"{_on(at)}: the card has no bfloat16; --dtype float16 works on all ranks")


def _used_cards(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    for number, rank in enumerate(ranks):
        if rank.card is not None and rank.free_bytes < (1 - MUCH_IN_USE) * rank.total_bytes:
            free, total = rank.free_bytes / 1e9, rank.total_bytes / 1e9
            text = f"rank {number}: {free:.1f} of {total:.1f} GB of its GPU are free, something else uses the rest"
            yield Finding(False, f"{text}: lower --gpu-memory-utilization or say --memory-gb")


def _shared_memory(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    for host, at in _hosts(ranks).items():
        size = ranks[at[0]].shared_memory_bytes
        if len(at) > 1 and ranks[at[0]].card is not None and size is not None and size < SMALL_SHARED_MEMORY:
            text = f"{host}: /dev/shm has {size / 2**20:.0f} MiB, NCCL may fail with a system error"
            yield Finding(False, f"{text}: start the container with --ipc=host or --shm-size=1g")


def _few_cores(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    for host, at in _hosts(ranks).items():
        cores = ranks[at[0]].num_cores
        if len(at) > cores:
            text = f"{host}: {len(at)} ranks share {cores} core{'s' if cores > 1 else ''}"
            if ranks[at[0]].card is None:
                yield Finding(False, f"{text}: stages take turns, so speeds will not show the overlap (--emulate does)")
            else:
                yield Finding(False, f"{text}: a rank that waits for a core delays its messages")


def _threads(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    if at := [number for number, rank in enumerate(ranks) if rank.num_threads is None]:
        text = "OMP_NUM_THREADS is not set, each rank starts a thread for every core and they disturb one another"
        if len(ranks) > 1:
            yield Finding(False, f"{_on(at)}: {text}: set it to cores / ranks, at least 1")


def _addresses(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    """gloo listens on the address that the host's name resolves to, unless an interface is named."""
    hosts = _hosts(ranks)
    for host, at in hosts.items():
        rank = ranks[at[0]]
        address = rank.host_address
        several = len(hosts) > 1
        if address is not None and rank.host_address_is_local and not (several and address.startswith("127.")):
            continue
        what = "does not resolve" if address is None else f"resolves to {address}"
        if address is not None:
            what += ", which other machines cannot reach" if rank.host_address_is_local else ", which no interface has"
        if rank.interface is not None:
            yield Finding(False, f"{host}: the host's name {what}; harmless here, gloo uses {rank.interface}")
        else:
            yield Finding(several, f"{host}: the host's name {what}: set GLOO_SOCKET_IFNAME to the network's interface")


def _slow_links(links: LinkTimes) -> Iterator[Finding]:
    pairs = {(src, dst): link for src, row in enumerate(links) for dst, link in enumerate(row) if link and src < dst}
    if not pairs:
        return
    best = max(link.bandwidth_gb_s for link in pairs.values())
    for (src, dst), link in pairs.items():
        if link.bandwidth_gb_s * MUCH_SLOWER < best:
            text = f"ranks {src} and {dst}: {link.bandwidth_gb_s:g} GB/s, the fastest pair has {best:g}"
            yield Finding(False, f"{text}: keep hops of the draft off this link")


def _hosts(ranks: Sequence[RankFacts]) -> dict[str, list[int]]:
    hosts: dict[str, list[int]] = {}
    for number, rank in enumerate(ranks):
        hosts.setdefault(rank.host, []).append(number)
    return hosts


def _on(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


_CHECKS: tuple[Callable[[Sequence[RankFacts]], Iterator[Finding]], ...] = (
    _missing_packages,
    _versions_differ,
    _devices,
    _shared_cards,
    _no_nccl,
    _no_bfloat16,
    _used_cards,
    _shared_memory,
    _few_cores,
    _threads,
    _addresses,
)
