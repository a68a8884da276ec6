"""`pearl-pp bench overhead`: its options, what it measures in which order, and a short real run."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pearl_pp import cli
from pearl_pp.config import RunConfig
from pearl_pp.console.bench import overhead_settings
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError
from pearl_pp.experiments import measured_profile, overhead
from pearl_pp.experiments.commands import prompt_message, prompt_of
from pearl_pp.experiments.lines import Program, ProgramFailed
from pearl_pp.experiments.overhead import Configuration, Settings, configurations
from pearl_pp.experiments.windows import PARTS
from pearl_pp.runtime.request import Prompt
from tests.unit.experiments.synthetic import run


def settings_of(**changes: Any) -> Settings:
    options = {"config": RunConfig(), "prompts": [Prompt(text="a"), Prompt(text="b")], "num_ranks": 4}
    return Settings(**(options | {"rounds": 2, "gammas": (3, 5), "sd_gammas": (2, 4)} | changes))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["overheads"], "pearl-pp bench overheads: no such experiment; did you mean overhead?"),
        (["overhead", "-n", "1"], "-n 1: must be a whole number, at least 2"),
        (["overhead", "-n", "x"], "-n x: must be a whole number, at least 2"),
        (["overhead", "--rounds", "0"], "--rounds 0: must be a whole number, at least 1"),
        (["overhead", "--rounds"], "--rounds: needs a value"),
        (["overhead", "--gammas", "3,x"], "--gammas x: must be a whole number, at least 1"),
        (["overhead", "--gammas", "3", "--gamma", "4"], "--gammas: takes the place of --gamma; give one of them"),
        (["overhead", "--recrod", "x"], "--recrod: no such option"),
        (["overhead", "--record", "/nowhere/x.jsonl"], "--record /nowhere/x.jsonl: cannot be written"),
        (["overhead", "--strategy", "ar"], "--strategy ar: a window of pearl is measured"),
        (["overhead", "--placement", "dedicated"], "--placement dedicated: is measured beside another"),
        (["overhead", "--sd-gammas", "2,auto"], "--sd-gammas auto: must be a whole number, at least 1"),
        (["overhead", "--beside", "ar,dedicate"], "--beside dedicate: no such row; did you mean dedicated?"),
        (["overhead", "--beside", ""], "--beside: no such row; there are ar, sd, dedicated, or none"),
        (["profile"], "--out: say where to write the profile"),
        (["profile", "--out"], "--out: needs a value"),
        (["profile", "--out", "/nowhere/x.yaml"], "--out /nowhere/x.yaml: cannot be written"),
        (["profile", "--out", "x.yaml", "--repeats", "0"], "--repeats 0: must be a whole number, at least 1"),
        (
            ["profile", "--out", "x.yaml", "--placement", "single"],
            "--placement single: the profile is measured with hop",
        ),
        (["profile", "--out", "x.yaml", "--emulate", "y.yaml"], "--emulate: has no models to measure"),
        (["profile", "--out", "x.yaml", "--strategy", "sd"], "--strategy sd: a window of pearl is measured"),
        (["overhead", "--trace", "x.json"], "--trace: is written by pearl-pp run"),
        (["overhead", "--gama", "3"], "--gama: no such option; did you mean --gamma?"),
    ],
)
def test_a_mistake_is_one_line_and_starts_nothing(
    argv: list[str], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for experiment in (overhead, measured_profile):
        monkeypatch.setattr(experiment, "measure", lambda *_: pytest.fail("started"))
    assert cli.main(["bench", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {expected}")
    assert err.count("\n") == 1


def test_options_of_its_own_and_of_a_run() -> None:
    settings = overhead_settings(["-n", "2", "--gammas", "auto,3", "--max-new-tokens", "9", "--prompt", "x"])
    assert (settings.num_ranks, settings.rounds, settings.gammas) == (2, 3, ("auto", 3))
    assert (settings.sd_gammas, settings.beside) == ((2, 3, 4, 5, 6, 8), ("ar", "sd", "dedicated"))
    assert overhead_settings(["--sd-gammas", "7, 9", "--beside", "sd"]).sd_gammas == (7, 9)
    assert overhead_settings(["--beside", "none"]).beside == ()
    synthetic = ["--target", "synthetic:cpu_small", "--draft", "synthetic:cpu_small"]
    assert overhead_settings(synthetic).config.target == "synthetic:cpu_small"
    assert [(p.text, p.params.max_new_tokens) for p in settings.prompts] == [("x", 9)]
    assert overhead_settings(["--gamma", "6"]).gammas == (6,)
    assert len(overhead_settings([]).prompts) == 8


def test_without_options_hop_is_measured_beside_ar_sd_and_dedicated() -> None:
    found = configurations(settings_of())
    assert [(c.name, c.num_ranks, c.gamma) for c in found] == [
        ("hop", 4, 3), ("hop", 4, 5), ("ar", 4, None), ("sd", 4, 2), ("sd", 4, 4),
        ("dedicated", 5, 3), ("dedicated", 5, 5),
    ]  # fmt: skip
    assert [(c.config.strategy, c.config.placement) for c in found[1:6]] == [
        ("pearl", "hop"), ("ar", "auto"), ("sd", "auto"), ("sd", "auto"), ("pearl", "dedicated")
    ]  # fmt: skip
    assert [c.name for c in configurations(settings_of(beside=("sd",), gammas=(3,)))] == ["hop", "sd", "sd"]


def test_the_reference_is_the_papers_pearl_whatever_is_measured() -> None:
    config = RunConfig(placement="pipelined", fill=3, verify_interval=2, no_pre_verify=True, layer_split=(5, 5, 3, 3))
    found = configurations(settings_of(config=config, gammas=("auto",), sd_gammas=(3,)))
    tested, alone, turns, dedicated = found
    assert (tested.name, tested.config.fill, tested.config.no_pre_verify) == ("pipelined", 3, True)
    for reference in (alone.config, turns.config, dedicated.config):
        assert (reference.fill, reference.verify_interval, reference.no_pre_verify) == ("auto", "auto", False)
        assert reference.layer_split == (5, 5, 3, 3)


@pytest.mark.parametrize("gammas", [(4, "auto"), ("auto", 4)])
def test_a_group_that_is_asked_for_auto_starts_with_it(gammas: tuple) -> None:
    found = configurations(settings_of(gammas=gammas, beside=("ar", "dedicated")))
    assert [c.gamma for c in found] == [*gammas, None, *gammas]
    assert {c.config.gamma for c in found} == {"auto"}, "only then does a group measure it"


def test_every_prompt_runs_in_all_configurations_before_the_next_and_who_begins_changes() -> None:
    turns = list(overhead._turns(settings_of(), 3))
    assert [prompt for prompt, _ in turns] == [0, 1, 0, 1]
    assert [order for _, order in turns] == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]


def test_the_best_gamma_of_each_name_is_the_fastest() -> None:
    def done(name: str, gamma: int, rate: float) -> Configuration:
        return Configuration(name, RunConfig(), 4, gamma, [run(rate)])

    best = overhead._best([done("hop", 3, 5.0), done("hop", 4, 7.0), done("hop", 5, 6.0), done("dedicated", 3, 1.0)])
    assert {name: c.gamma for name, c in best.items()} == {"hop": 4, "dedicated": 3}


def test_a_text_is_compared_with_its_own_prompts_oracle() -> None:
    prompts = [Prompt(text="a"), Prompt(text="b", params=SamplingParams(temperature=1.0))]
    runs = [run(1.0, token_ids=ids) for ids in ([1, 2], [9], [1, 2], [8])]

    def equal(oracle: list[Any], prompts: list[Prompt] = prompts) -> bool | None:
        return overhead._text_is_equal(Configuration("hop", RunConfig(), 4, 3, runs), oracle, prompts)

    assert equal([[1, 2], None]) is True
    assert equal([[1, 3], None]) is False
    assert equal([[1, 2, 3], None]) is False
    assert equal([[1, 2, 3], None], [Prompt(params=SamplingParams(stop=("x",))), prompts[1]]) is True
    assert equal([None, None]) is None


def test_a_prompt_survives_the_pipe() -> None:
    params = SamplingParams(max_new_tokens=3, stop=("x",))
    for prompt in (
        Prompt(text="a\n\u2028", params=params, chat=True),
        Prompt(messages=({"role": "user", "content": "b"},), params=params),
        Prompt(token_ids=(1, 2)),
    ):
        assert prompt_of(json.loads(json.dumps(prompt_message(prompt)))) == prompt


def test_a_program_that_dies_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dying.py").write_text("raise SystemExit('no such card')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    program = Program("hop", ["dying"])
    try:
        with pytest.raises(ProgramFailed, match="hop: ended with exit code 1\nno such card"):
            program.answer()
    finally:
        program.close()


def test_a_users_mistake_found_by_a_program_keeps_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from pearl_pp.experiments.lines import Told\nfrom pearl_pp.errors import UserError\n"
    (tmp_path / "refusing.py").write_text(code + "Told().user_error(UserError('--target', '/x', 'no such folder'))")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(cli.__file__).parents[1]}")
    program = Program("hop", ["refusing"])
    try:
        with pytest.raises(UserError, match=r"^--target /x: no such folder$"):
            program.answer()
    finally:
        program.close()


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_short_real_run(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    options = ["-n", "2", "--rounds", "1", "--gammas", "3", "--max-new-tokens", "12", "--prompt", "def f(x):"]
    options += ["--beside", "ar,dedicated"]
    command = [sys.executable, "-m", "pearl_pp.cli", "bench", "overhead", *options, "--record", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(path.read_text())
    assert record["mode"] == "real"
    assert set(record["versions"]) >= {"torch", "transformers", "pearl_pp"}
    assert record["machine"]["cores"] >= 1
    entries = [SimpleNamespace(**entry) for entry in record["configurations"]]
    assert [(e.name, e.ranks, e.gamma) for e in entries] == [
        ("hop", 2, 3), ("ar", 2, None), ("dedicated", 3, 3)
    ]  # fmt: skip
    for entry in entries:
        assert entry.text_equals_oracle is True
        assert entry.speed["num_output_tokens"] == 12
        assert 0 < entry.speed["of_simulated"] < 3
        _check_windows(entry)
    assert set(record["passes"]) == {"1", "3"}
    for both in record["passes"].values():
        assert len(both["target"]["stages_ms"]) == 2
        assert both["target"]["ratio"] > 0 and both["draft"]["transformers_ms"] > 0
    assert set(record["ratios"]) == {"hop/ar", "hop/dedicated"} and min(record["ratios"].values()) > 0
    for word in ("One pass", "Speed: hop/ar", "Time per window", "Inside a window", "the first record"):
        assert word in done.stdout
    assert done.stdout.count("real") >= 5


def _check_windows(entry: Any) -> None:
    """Parts add up, and the window is no shorter than the passes in it."""
    figures = entry.windows
    parts = figures["parts"]
    assert len(parts["ranks"]) == entry.ranks
    for numbers in (parts["path"], *parts["ranks"]):
        assert set(numbers) == set(PARTS)
        assert sum(numbers.values()) == pytest.approx(parts["window_ms"])
    row = figures["kinds"]["all"]
    assert row["target_ms"] < row["window_ms"]
    assert row["ideal_ms"] == pytest.approx(max(row["target_ms"], figures["draft_ms"] or 0.0))
    assert row["excess_ms"] == pytest.approx(row["window_ms"] - row["ideal_ms"])
    if entry.gamma is not None:
        assert figures["gamma"] == entry.gamma
        assert figures["draft_ms"] == pytest.approx(entry.gamma * figures["draft_pass_ms"])
