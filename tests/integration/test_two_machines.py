"""The recipe for two machines, on two network namespaces: the same text, on the named network alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from pearl_pp import builtin
from tests.integration.commands import MARK, ROOT, still_running
from tests.pairs import oracle

pytestmark = pytest.mark.alone

RECIPE = ROOT / "launch" / "two_nodes.sh"
PROMPT = builtin.prompts()[0]
NUM_TOKENS = 40
PORT = 29511
LOOK_EVERY_S = 0.2


# The one that leads to HEAD, and another that the user may know to be faster.
NETWORKS = ("10.77.0", "10.78.0")


@dataclass(frozen=True)
class Machine:
    """A network namespace: its own interfaces, ports and routes, and the same files and processes."""

    namespace: str
    number: int

    def interface(self, network: int) -> str:
        return f"{self.namespace}i{network}"

    def address(self, network: int) -> str:
        return f"{NETWORKS[network]}.{self.number + 1}"

    def command(self, *arguments: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *arguments]

    def listeners(self) -> set[str]:
        """Addresses with ports on which something listens."""
        found = subprocess.run(self.command("ss", "-Hltn"), capture_output=True, text=True, check=True).stdout
        return {line.split()[3] for line in found.splitlines()}


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    """Two machines with two networks between them."""
    if shutil.which("ip") is None or shutil.which("ss") is None:
        pytest.skip("ip and ss (iproute2) are not installed")
    prefix = f"pp{os.getpid() % 100_000}"
    pair = (Machine(f"{prefix}a", 0), Machine(f"{prefix}b", 1))
    with ExitStack() as stack:
        try:
            for machine in pair:
                ip("netns", "add", machine.namespace)
                stack.callback(ip, "netns", "del", machine.namespace)
                ip("-n", machine.namespace, "link", "set", "lo", "up")
            for network in range(len(NETWORKS)):
                lay_cable(pair, network)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here, which stand in for machines (root may): {error.stderr.strip()}")
        yield pair


def lay_cable(pair: tuple[Machine, Machine], network: int) -> None:
    one, other = ((machine.interface(network), "netns", machine.namespace) for machine in pair)
    ip("link", "add", *one, "type", "veth", "peer", "name", *other)
    for machine in pair:
        interface = machine.interface(network)
        ip("-n", machine.namespace, "address", "add", f"{machine.address(network)}/24", "dev", interface)
        ip("-n", machine.namespace, "link", "set", interface, "up")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """That of a user whose environment for the project is this one; no machine may install anything."""
    binaries = tmp_path / "venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (binaries / "python").chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("_SOCKET_IFNAME")}
    made = inherited | {"PEARL_PP_VENV": str(tmp_path / "venv"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    installed = '. launch/_env.sh && _fingerprint >"$VENV/.installed-"'
    subprocess.run(["bash", "-c", installed], cwd=ROOT, env=made, check=True)
    return made


def start(machine: Machine, network: int | None, environment: dict[str, str], *options: str) -> subprocess.Popen[str]:
    settings = {"HEAD": f"{NETWORKS[0]}.1", "PORT": str(PORT), "RANKS_PER_NODE": "2"}
    if network is not None:
        settings["IFACE"] = machine.interface(network)
    return subprocess.Popen(
        machine.command("bash", str(RECIPE), str(machine.number), *options),
        env=environment | settings, cwd=ROOT, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def listeners_while(started: list[subprocess.Popen[str]], machines: tuple[Machine, Machine]) -> list[set[str]]:
    """Of each machine, everything that listened at some time until both have ended."""
    seen: list[set[str]] = [set(), set()]
    while any(process.poll() is None for process in started):
        for listeners, machine in zip(seen, machines, strict=True):
            listeners.update(machine.listeners())
        time.sleep(LOOK_EVERY_S)
    return seen


@pytest.mark.timeout(100)
@pytest.mark.parametrize(("named", "used"), [(None, 0), (1, 1)], ids=["the network of HEAD", "the network of IFACE"])
def test_two_machines_give_the_oracles_text_over_one_network_alone(
    machines: tuple[Machine, Machine], environment: dict[str, str], named: int | None, used: int, tmp_path: Path
) -> None:
    record = tmp_path / "out.json"
    mark = uuid.uuid4().hex
    length = ("--max-new-tokens", str(NUM_TOKENS), "--ignore-eos")
    options = ("--json", str(record), "--timeout", "30", "--prompt", PROMPT, *length)
    started = [start(machine, named, environment | {MARK: mark}, *options) for machine in machines]
    try:
        seen = listeners_while(started, machines)
    finally:
        for process in still_running(mark):  # nothing, unless the test was broken off
            process.kill()
    outputs = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs

    request = json.loads(record.read_text())["requests"][0]
    assert request["token_ids"] == oracle(builtin.TARGET_DIR, request["prompt_token_ids"], NUM_TOKENS)
    assert request["metrics"]["num_draft_tokens"] > 0
    said = [stdout.splitlines() for stdout, _ in outputs]
    for lines, machine in zip(said, machines, strict=True):
        interface = machine.interface(used)
        assert lines[0] == f"pearl_pp: machine {machine.number} of 2: 2 ranks, messages over {interface}"
    assert (len(said[0]) > 1, len(said[1])) == (True, 1), "the text is shown where rank 0 is, and only there"

    for listeners, machine in zip(seen, machines, strict=True):
        of_ranks = {listener for listener in listeners if not listener.endswith(f":{PORT}")}
        assert {listener.rpartition(":")[0] for listener in of_ranks} == {machine.address(used)}
    assert not any(listener.endswith(f":{PORT}") for listener in seen[1]), "the meeting place is on machine 0 alone"


def recipe(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "HEAD"} | settings
    return subprocess.run(
        ["bash", str(RECIPE), *arguments], env=environment, capture_output=True, text=True, timeout=20, check=False
    )


def test_without_an_address_the_recipe_says_how_it_is_used() -> None:
    for finished in (recipe("0"), recipe(HEAD="10.0.0.1")):
        assert finished.returncode == 2
        assert finished.stderr.startswith("usage: HEAD=ADDRESS [IFACE=INTERFACE] bash launch/two_nodes.sh NODE_NUMBER")


@pytest.mark.parametrize("head", ["127.0.0.1", "no.such.name.invalid"])
def test_an_address_that_leads_to_no_other_machine_is_named_before_anything_starts(head: str) -> None:
    finished = recipe("0", HEAD=head)
    assert finished.returncode == 2
    assert finished.stderr.startswith(f"error: HEAD {head}: no interface leads there from this machine; ")
    assert finished.stderr.count("\n") == 1


@pytest.mark.parametrize("interface", ["nosuch0", ".", "../net"])
def test_an_interface_that_is_not_there_is_named_before_anything_starts(interface: str) -> None:
    finished = recipe("0", HEAD="10.0.0.1", IFACE=interface)
    assert finished.returncode == 2
    assert finished.stderr.startswith(f"error: IFACE {interface}: no such interface; there are ")
    assert finished.stderr.count("\n") == 1


@pytest.mark.parametrize("number", ["2", "-1", "x", "--target", "", "00"])
def test_a_number_of_no_machine_is_named_before_anything_starts(number: str) -> None:
    finished = recipe(number, HEAD="10.0.0.1", IFACE="lo")
    assert finished.returncode == 2
    assert finished.stderr == f"error: NODE_NUMBER {number}: must be this machine's number, 0 to 1\n"


def test_ranks_are_told_the_interface_alone_and_none_that_begins_with_its_name(tmp_path: Path) -> None:
    interface = next((path.name for path in Path("/sys/class/net").iterdir() if path.name != "lo"), None)
    if interface is None:
        pytest.skip("no interface but the loopback")
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "python").write_text('#!/bin/sh\n[ "$1" = -m ] && exec env\n[ "$1" = - ] && echo made\nexit 0\n')
    (binaries / "python").chmod(0o755)
    (tmp_path / ".installed-").write_text("made\n")
    told = recipe("0", HEAD="10.0.0.1", IFACE=interface, PEARL_PP_VENV=str(tmp_path)).stdout.splitlines()
    assert {f"GLOO_SOCKET_IFNAME={interface}", f"NCCL_SOCKET_IFNAME=={interface}"} <= set(told)
