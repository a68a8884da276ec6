"""What the doctor makes of what ranks find; and its command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from pearl_pp import cli
from pearl_pp.console import doctor, leaving
from pearl_pp.console.diagnosis import Finding, diagnose
from pearl_pp.console.doctor_report import print_report
from pearl_pp.runtime.link_times import LinkTime
from pearl_pp.runtime.machine import RankFacts
from pearl_pp.transport import torch_distributed
from pearl_pp.transport.base import CannotJoin, RanksMissing

GB = 10**9
VERSIONS = {"pearl_pp": "1", "python": "3.11.0", "torch": "2.13.0", "transformers": "5.24.0", "deepspeed": "0.19"}
CPU = RankFacts(
    host="a",
    local_rank=0,
    versions=VERSIONS,
    device="cpu",
    card=None,
    card_id=None,
    free_bytes=20 * GB,
    total_bytes=24 * GB,
    has_bfloat16=True,
    num_cores=8,
    num_threads="1",
    shared_memory_bytes=2**30,
    host_address="10.0.0.1",
    host_address_is_local=True,
    interface="eth0",
    interface_address="10.0.0.1",
    has_nccl=False,
    has_driver=False,
)
CARD = replace(
    CPU, device="cuda:0", card="A card", card_id="u0", free_bytes=79 * GB, total_bytes=80 * GB, has_nccl=True
)
CARDS = [CARD, replace(CARD, device="cuda:1", card_id="u1", local_rank=1)]


def texts(*ranks: RankFacts) -> list[str]:
    return [finding.text for finding in diagnose(ranks)]


def test_nothing_is_wrong_with_two_good_cards() -> None:
    assert diagnose(CARDS) == []


def test_without_cards_a_line_says_so() -> None:
    assert texts(CPU, CPU) == ["no GPU is used: models run on the CPU, in float32 unless --dtype says otherwise"]
    assert "it may be a build for CPUs" in texts(replace(CPU, has_driver=True))[0]


@pytest.mark.parametrize(
    ("changes", "stops", "expected"),
    [
        ({"card_id": "u0"}, False, "ranks 0, 1 are on one GPU: NCCL refuses that, so tensors go over gloo"),
        ({"has_nccl": False}, False, "rank 1: this torch has no NCCL"),
        ({"has_bfloat16": False}, False, "rank 1: the card has no bfloat16"),
        ({"free_bytes": 60 * GB}, False, "rank 1: 60.0 of 80.0 GB of its GPU are free"),
        ({"num_threads": None}, False, "rank 1: OMP_NUM_THREADS is not set"),
        ({"card": None, "card_id": None, "device": "cpu"}, True, "rank 1: no GPU, the others have one"),
        ({"versions": VERSIONS | {"transformers": "5.17.0"}}, True, "rank 1 has transformers 5.17.0, rank 0 has 5.24"),
        ({"versions": VERSIONS | {"torch": "2.6.0"}}, False, "rank 1 has torch 2.6.0, rank 0 has 2.13.0"),
        ({"versions": VERSIONS | {"deepspeed": "missing"}}, True, "rank 1: the package deepspeed is not installed"),
        ({"host": "b", "host_address": None, "interface": None}, True, "b: the host's name does not resolve: set GLOO"),
        (
            {"host": "b", "host_address": "127.0.1.1", "interface": None},
            True,
            "b: the host's name resolves to 127.0.1.1",
        ),
        ({"host": "b", "host_address_is_local": False}, False, "b: the host's name resolves to 10.0.0.1, which no int"),
    ],
)
def test_each_fault_has_its_line(changes: dict, stops: bool, expected: str) -> None:
    findings = diagnose([CARDS[0], replace(CARDS[1], **changes)])
    found = [finding for finding in findings if finding.text.startswith(expected)]
    assert len(found) == 1, findings
    assert found[0].stops is stops
    assert findings == sorted(findings, key=lambda finding: not finding.stops)


def test_faults_of_a_machine_are_told_once() -> None:
    small = [replace(rank, shared_memory_bytes=64 * 2**20, num_cores=1) for rank in CARDS]
    assert [text.split(":")[0] for text in texts(*small)] == ["a", "a"]
    assert "/dev/shm has 64 MiB" in texts(*small)[0]
    assert texts(*[replace(CPU, num_cores=2)] * 4)[1].startswith("a: 4 ranks share 2 cores: stages take turns")
    assert len(texts(*[CPU] * 8)) == 1


def test_a_link_that_is_much_slower_than_the_best_is_named() -> None:
    fast, slow = LinkTime(20.0, 20.0), LinkTime(100.0, 1.0)
    links = [[None, fast, slow], [fast, None, fast], [slow, fast, None]]
    ranks = [*CARDS, replace(CARD, card_id="u2")]
    (finding,) = diagnose(ranks, links)
    assert finding == Finding(
        False, "ranks 0 and 2: 1 GB/s, the fastest pair has 20: keep hops of the draft off this link"
    )
    assert diagnose(ranks, [[None if i == j else fast for i in range(3)] for j in range(3)]) == []


def test_the_report_shows_ranks_links_and_findings(capsys: pytest.CaptureFixture[str]) -> None:
    link = LinkTime(91.2, 1.25)
    finding = Finding(True, "rank 1: a long line [about] something that is wrong and must not be broken into two " * 2)
    print_report(CARDS, {"control": [[None, link], [link, None]], "tensors": None}, [finding])
    out = capsys.readouterr().out
    assert "torch 2.13.0" in out and "cuda:1 A card" in out and "91 us 1.25" in out
    assert f"STOPS  {finding.text}\n" in out
    assert "nothing here would stop a run" not in out


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--devise", "cpu"], "--devise: no such option; did you mean --device?"),
        (["-n", "0"], "-n 0: must be a whole number, at least 1"),
        (["--timeout", "0"], "--timeout 0: must be more than 0 and at most 604800"),
        (["--device", "tpu"], "--device: invalid choice: 'tpu' (choose from 'auto', 'cpu', 'cuda')"),
    ],
)
def test_a_mistake_in_the_options_is_one_line(
    argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", *argv]) == 2
    assert capsys.readouterr().err == f"error: {expected}\n"


@pytest.mark.parametrize(("interrupted", "code", "said"), [(False, 1, "error: rank 1: nobody\n"), (True, 130, "")])
def test_a_rank_that_finds_no_rank_0_says_so_itself(
    interrupted: bool, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def finds_nobody(*_: object) -> NoReturn:
        raise RanksMissing("rank 1: nobody")

    def sleep(_: float) -> None:
        if interrupted:
            raise KeyboardInterrupt

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(torch_distributed, "connect", finds_nobody)
    monkeypatch.setattr(leaving.time, "sleep", sleep)
    assert doctor.main([]) == code
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("error", [RanksMissing("not all came"), CannotJoin("no address for eth7")])
def test_rank_0_that_cannot_join_says_what_it_sees(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def cannot(*_: object) -> NoReturn:
        raise error

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(torch_distributed, "connect", cannot)
    assert doctor.main(["--json", str(tmp_path / "d.json")]) == 1
    assert f"rank 0 cannot join the other ranks: {error}" in capsys.readouterr().out
    assert json.loads((tmp_path / "d.json").read_text())["findings"]
