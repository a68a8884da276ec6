"""`pearl-pp simulate`: what it prints and writes, and its mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pearl_pp import cli
from tests.unit.simulation.machines import save_profile


@pytest.fixture
def profile(tmp_path: Path) -> str:
    return save_profile(tmp_path)


def run(*arguments: str) -> int:
    return cli.main(["simulate", *arguments])


def test_it_prints_the_request_and_each_rank_and_says_simulated(
    profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("-n", "4", "--emulate", profile, "--placement", "hop", "--gamma", "8", "--max-new-tokens", "50") == 0
    printed, errors = capsys.readouterr()
    assert errors == ""
    lines = [line for line in printed.splitlines() if any(part.isdigit() for part in line.split())]
    numbers = [line for line in lines if not line.lstrip().startswith(("acceptance", "two"))]
    assert all(line.lstrip().startswith("simulated") for line in numbers), numbers
    assert "simulated  test: acceptance 0.7, seed 0, free runtime" in printed.splitlines()
    assert "draft on rank 3, rank 0; F = 1, p = 4; a draft pass is 0.5 slots" in printed
    for heading in ("tokens/s", "tokens/target pass", "hops", "idle"):
        assert heading in printed
    assert [line.split()[1] for line in numbers[-4:]] == ["0", "1", "2", "3"]


def test_the_record_has_the_keys_of_a_run(profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    arguments = ("-n", "4", "--emulate", profile, "--gamma", "8", "--handoff", "ship", "--max-new-tokens", "50")
    assert run(*arguments, "--json", str(path)) == 0
    record = json.loads(path.read_text())
    assert record["mode"] == "simulated"
    assert record["plan"]["pass_slots"] == 0.5
    assert record["config"]["seed"] == 0
    metrics = record["requests"][0]["metrics"]
    assert metrics["num_output_tokens"] == 50
    assert metrics["num_draft_tokens"] == sum(
        metrics[f"num_{fate}_tokens"] for fate in ("accepted", "rejected", "discarded")
    )
    assert metrics["handoff_bytes"] > 0 and metrics["num_hops"] > 0
    assert metrics["ttft_s"] + metrics["decode_s"] == pytest.approx(metrics["total_s"])
    for rank in metrics["per_rank"]:
        busy = rank["target_s"] + rank["draft_s"]
        assert rank["idle_share"] == pytest.approx(1 - busy / metrics["total_s"], abs=0.05)
    assert record["totals"]["decode_tokens_per_s"] == metrics["decode_tokens_per_s"]


def test_plain_decoding_takes_the_time_of_a_pass_for_each_token(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    assert run("-n", "4", "--emulate", profile, "--strategy", "ar", "--json", str(path)) == 0
    assert json.loads(path.read_text())["totals"]["decode_tokens_per_s"] == pytest.approx(1 / 0.040, rel=1e-3)


def test_seed_acceptance_and_prompt_length_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def metrics(acceptance: float, *arguments: str) -> dict:
        path = tmp_path / "out.json"
        emulate = save_profile(tmp_path, acceptance=acceptance)
        assert run("-n", "4", "--emulate", emulate, "--json", str(path), *arguments) == 0
        return json.loads(path.read_text())["totals"]

    base = metrics(0.7)
    assert metrics(0.7) == base
    assert metrics(0.7, "--seed", "5")["decode_s"] != base["decode_s"]
    assert metrics(0.9)["decode_s"] < base["decode_s"]
    assert metrics(1.0)["acceptance_rate"] == 1.0
    assert metrics(0.7, "--prompt-len", "4000")["ttft_s"] > 2 * base["ttft_s"]


def test_the_trace_is_that_of_a_run_and_says_simulated(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    assert run("-n", "4", "--emulate", profile, "--placement", "hop", "--trace", str(path)) == 0
    content = json.loads(path.read_text())
    rows = content["traceEvents"]
    assert content["otherData"] == {"mode": "simulated"}
    assert [r["args"]["name"] for r in rows if r["name"] == "process_name"] == [
        f"rank {rank} (simulated)" for rank in range(4)
    ]
    bars = {row["name"] for row in rows if row["ph"] == "X"}
    assert bars >= {"target accepted", "target rejected", "draft accepted", "draft discarded", "verify", "idle"}
    assert "request 1: 64 tokens" in bars


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-n", "4"], "--emulate: say on which machine, as in --emulate configs/profiles/even_c8.yaml"),
        (["--emulate", "{profile}"], "-n: say on how many ranks, as in pearl-pp simulate -n 4"),
        (["-n", "0", "--emulate", "{profile}"], "-n 0: must be a whole number, at least 1"),
        (["-n", "four", "--emulate", "{profile}"], "-n four: must be a whole number, at least 1"),
        (["-n"], "-n: needs a number"),
        (["-n", "4", "--prompt-len"], "--prompt-len: needs a number"),
        (["-n", "4", "--prompt-len", "0"], "--prompt-len 0: must be a whole number, at least 1"),
        (
            ["-n", "6", "--emulate", "{profile}"],
            "--emulate {profile}: ranks: describes 5 ranks, this run has 6",
        ),
        (["-n", "4", "--emulate", "nowhere.yaml"], "--emulate nowhere.yaml: no such file"),
        (
            ["-n", "4", "--emulate", "{profile}", "--fill", "5"],
            "--fill 5: must be between 1 and the number of stages, 4",
        ),
        (["-n", "4", "--emulate", "{profile}", "--gama", "5"], "--gama: no such option; did you mean --gamma?"),
        (
            ["-n", "4", "--emulate", "{profile}", "--prompt", "hello"],
            "--prompt: only its length counts here: give --prompt-len",
        ),
        (
            ["-n", "4", "--emulate", "{profile}", "--stop", "x"],
            "--stop: there is no text to stop at; give --max-new-tokens",
        ),
        (
            ["-n", "4", "--emulate", "{profile}", "--max-new-tokens", "0"],
            "--max-new-tokens 0: leaves nothing to simulate",
        ),
        (
            ["-n", "4", "--emulate", "{profile}", "--prompt-len", "99999"],
            "prompt of 99999 tokens: leaves no room in a context of 32768",
        ),
        (
            ["-n", "4", "--emulate", "{profile}", "--trace", "/no/such/x.json"],
            "--trace /no/such/x.json: cannot be written: No such file or directory",
        ),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], expected: str, profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*(argument.format(profile=profile) for argument in arguments)) == 2
    assert capsys.readouterr() == ("", f"error: {expected.format(profile=profile)}\n")


def test_auto_is_the_fastest_way_by_the_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def tokens_per_s(acceptance: float, *arguments: str) -> float:
        path = tmp_path / "out.json"
        emulate = save_profile(tmp_path, acceptance=acceptance)
        assert run("-n", "4", "--emulate", emulate, "--json", str(path), *arguments) == 0
        return json.loads(path.read_text())["totals"]["decode_tokens_per_s"]

    for acceptance in (0.0, 0.8):
        named = [tokens_per_s(acceptance, "--placement", name, "--gamma", "auto") for name in ("hop", "single")]
        named.append(tokens_per_s(acceptance, "--strategy", "ar"))
        assert tokens_per_s(acceptance) >= 0.99 * max(named)
        assert "a run chooses by its own times" in capsys.readouterr().out


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert capsys.readouterr().out.startswith("usage: pearl-pp simulate")


@pytest.mark.parametrize("option", ["--json", "--trace"])
def test_a_full_disk_is_one_line(
    option: str, profile: str, tmp_path: Path, full_disk: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "out")
    assert run("-n", "4", "--emulate", profile, option, path) == 2
    assert capsys.readouterr() == ("", f"error: {option} {path}: cannot be written: No space left on device\n")
