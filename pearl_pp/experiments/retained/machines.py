"""The machines that records were made on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Machine(NamedTuple):
    """Records are of the same machine where all of these are equal; what changes from run to run is left out."""

    hostname: str
    cpu: str
    cores: int
    device: str

    @property
    def kind(self) -> str:
        return f"{self.device}: {self.cpu}, {self.cores} cores" if self.device else f"{self.cpu}, {self.cores} cores"


def machine_of(about: Mapping[str, Any]) -> Machine:
    """From the `machine` of a record."""
    hostname, cpu, device = (str(about.get(name) or "") for name in ("hostname", "cpu", "device"))
    # Which of its cards a program ran on ("cuda:0") does not make it another machine.
    return Machine(hostname, cpu, int(about.get("cores") or 0), device.partition(":")[0])


def machine_names(machines: Iterable[Machine]) -> dict[Machine, str]:
    """A name for each: what it is, with the host's name only where two are of one kind."""
    different = list(dict.fromkeys(machines))
    times = Counter(machine.kind for machine in different)
    return {m: m.kind if times[m.kind] == 1 else f"{m.kind} ({m.hostname})" for m in different}
