"""`pearl-pp plan`: from config.json files and profiles to a ranking, and its mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pearl_pp import cli
from pearl_pp.config import RunConfig, read_placement_file
from pearl_pp.planning.presets import resolve_placement

PROFILES = Path(__file__).parents[3] / "configs" / "profiles"
MIXED = str(PROFILES / "mixed_2x24gb_2x12gb_14b.yaml")

SMALL = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}


def model(folder: Path, **changes: object) -> str:
    """A folder with a config.json and nothing else."""
    folder.mkdir()
    content = {key: value for key, value in (SMALL | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(content))
    return str(folder)


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    target, draft = model(tmp_path / "target"), model(tmp_path / "draft", num_hidden_layers=2)
    return ["--target", target, "--draft", draft]


def test_two_configs_and_a_memory_list_are_enough(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, written, trace = (str(tmp_path / name) for name in ("plan.json", "plan.yaml", "trace.json"))
    outputs = ["--json", record, "--write", written, "--trace", trace]
    assert cli.main(["plan", *pair, "--memory-gb", "2,2,2", "--context", "512", *outputs]) == 0
    printed = capsys.readouterr().out
    assert all(len(line.rstrip()) <= 100 for line in printed.splitlines() if "|" in line or "─" in line)
    assert "assumed" in printed
    assert "simulated  first because: " in printed
    rows = [line.split() for line in printed.splitlines() if line.split()[:1] and line.split()[0].isdecimal()]
    speeds = [float(cell.removesuffix("x")) for row in rows for cell in row if cell.endswith("x") and cell != "x"]
    assert speeds[1:] == sorted(speeds[1:], reverse=True)
    assert len(speeds) > 3
    content = json.loads(Path(record).read_text())
    assert content["mode"] == "simulated"
    assert content["fits"]
    assert content["question"]["context"] == 512
    first = content["first"]
    assert first == content["ranking"][0]
    assert len(first["planned_bytes"]) == 3
    assert {"target_weights", "tied_copy", "draft_kv", "work_space", "context", "total"} <= set(
        first["planned_bytes"][0]
    )
    assert json.loads(Path(trace).read_text())["traceEvents"]
    # What was written is what a run's --placement reads.
    assert list(read_placement_file(written).target) == first["placement"]["target"]
    options = RunConfig(placement=written, strategy=first["strategy"])
    placement = resolve_placement(options, 3, 8, 2)
    assert placement.record() == first["placement"] | {"name": written, "handoff": placement.handoff}


def test_a_config_file_may_be_named_itself(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    named = [f"{part}/config.json" if not part.startswith("--") else part for part in pair]
    results = []
    for models in (pair, named):
        assert cli.main(["plan", *models, "--memory-gb", "2,2"]) == 0
        results.append(capsys.readouterr().out)
    assert results[0] == results[1]


def test_a_profile_is_enough_and_other_models_scale_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--profile", MIXED, "--top", "3"]) == 0
    printed = capsys.readouterr().out
    assert "21.6, 21.6, 10.8, 10.8 GB to use" in printed
    big = model(tmp_path / "big", hidden_size=4096, num_hidden_layers=32, intermediate_size=11008, vocab_size=32000,
                num_attention_heads=32, num_key_value_heads=32)  # fmt: skip
    assert cli.main(["plan", "--profile", MIXED, "--target", big]) == 0
    assert "target: pass 25" in capsys.readouterr().out  # between the profile's 0.5B (7.2 ms) and 14B (48.6 ms)


def test_models_of_one_size_scale_another_one_by_its_weights(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = yaml.safe_load(Path(MIXED).read_text())
    content["draft"]["weights_gb"] = content["target"]["weights_gb"]
    profile = tmp_path / "same.yaml"
    profile.write_text(yaml.safe_dump(content))
    assert cli.main(["plan", "--profile", str(profile), *pair]) == 0
    assert "scaled by weights" in capsys.readouterr().out


def test_nothing_fits_is_exit_code_3_and_says_what_is_short(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = str(tmp_path / "plan.json")
    assert cli.main(["plan", *pair, "--memory-gb", "0.9,0.9", "--json", record]) == 3
    assert "nothing fits; closest is " in capsys.readouterr().out
    content = json.loads(Path(record).read_text())
    assert not content["fits"]
    assert sum(content["first"]["short_bytes"]) > 0


def test_without_a_draft_decoding_is_plain(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *pair[:2], "--memory-gb", "2", "-n", "2"]) == 0
    assert "only plain decoding is planned" in capsys.readouterr().out


def test_what_the_user_fixes_stays(pair: list[str], tmp_path: Path) -> None:
    record = str(tmp_path / "plan.json")
    fixed = ["--layer-split", "5,2,1", "--fill", "2", "--verify_interval=2", "--gamma", "3", "--handoff", "ship"]
    assert cli.main(["plan", *pair, "--memory-gb", "2", "-n", "3", *fixed, "--json", record]) == 0
    ranking = json.loads(Path(record).read_text())["ranking"]
    assert {tuple(entry["placement"]["target"]) for entry in ranking} == {(5, 2, 1)}
    pearl = [entry["placement"] for entry in ranking if entry["strategy"] == "pearl"]
    assert {(p["fill"], p["verify_interval"], p["gamma"]) for p in pearl} == {(2, 2, 3)}


TWO = ["--memory-gb", "2,2"]
ONE_OR_EACH = "give one for all or one for each"
RANKS_GIVE = f"ranks; {ONE_OR_EACH}"
PROFILE_SAYS = "the profile says how fast its ranks are; leave one of them out"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "--memory-gb: say how much each rank has, as in --memory-gb 24,24,12,12"),
        (["-n", "2"], "--memory-gb: say how much each rank has, as in --memory-gb 24,24,12,12"),
        (["-n", "0"], "-n 0: must be greater than or equal to 1"),
        (["-n", "x"], "-n x: must be a whole number"),
        (["-n", "4", "--memory-gb", "2,2"], f"--memory-gb 2,2: has 2 numbers, this run has 4 ranks; {ONE_OR_EACH}"),
        (["--memory-gb", "2,0"], "--memory-gb 2,0: must be greater than 0"),
        (["--memory-gb", "2,-1"], "--memory-gb 2,-1: must be greater than 0"),
        (["--memory-gb", "2,inf"], "--memory-gb 2,inf: must be a finite number"),
        ([*TWO, "--bandwidth-gb-s", "1,2,3"], f"--bandwidth-gb-s 1,2,3: has 3 numbers, there are 2 {RANKS_GIVE}"),
        ([*TWO, "--acceptance", "1.5"], "--acceptance 1.5: must be less than or equal to 1"),
        ([*TWO, "--context", "4096"], "--context 4096: is more than the target's 2048 positions"),
        ([*TWO, "--context", "0"], "--context 0: must be greater than or equal to 1"),
        ([*TWO, "--layer-split", "4,3"], "--layer-split 4,3: has 7 layers, the target has 8"),
        ([*TWO, "--layer-split", "4,2,1,1"], "--layer-split 4,2,1,1: has 4 stages, there are 2 ranks"),
        ([*TWO, "--fill", "3"], "--fill 3: must be between 1 and the number of stages, 2 at most"),
        (["--memory-gb", "2", "-n", "12"], "-n 12: the target has 8 layers, too few for so many pipeline stages"),
        ([*TWO, "--gpu-memory-utilization", "0"], "--gpu-memory-utilization 0: must be greater than 0"),
        ([*TWO, "--memry", "1"], "--memry: no such option; did you mean --memory-gb?"),
        ([*TWO, "--emulate", "x.yaml"], "--emulate: no such option; did you mean --profile?"),
        ([*TWO, "--top"], "--top: needs a value"),
        ([*TWO, "--link-gb-s", "1e-320"], "--link-gb-s 1e-320: must be greater than or equal to 0.001"),
        ([*TWO, "--link-latency-us", "1e300"], "--link-latency-us 1e300: must be less than or equal to 1000000000"),
        (["-n", "2000", "--memory-gb", "2"], "-n 2000: must be less than or equal to 1024"),
        (
            [*TWO, "--bandwidth-gb-s", "0.125,1e6"],
            "pearl-pp plan: no such machine: speed[0] 1.25e-07: must be greater than or equal to 0.0001",
        ),
        ([*TWO, "--json", "/no/such/x"], "--json /no/such/x: cannot be written: No such file or directory"),
        (["--profile", MIXED, "-n", "5"], f"-n 5: the profile {MIXED} describes 4 ranks"),
        (["--profile", MIXED, "--bandwidth-gb-s", "9"], f"--bandwidth-gb-s: {PROFILE_SAYS}"),
        (["--profile", "/no.yaml"], "--profile /no.yaml: no such file"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(
    options: list[str], expected: str, pair: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", *pair, *options]) == 2
    assert capsys.readouterr() == ("", f"error: {expected}\n")


def test_mistakes_in_models_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = model(tmp_path / "target")
    mistakes = {
        model(tmp_path / "a", num_hidden_layers=None): "its config.json does not say the number of layers",
        model(tmp_path / "b", hidden_size=None): "its config.json does not say the hidden size",
        model(tmp_path / "c", vocab_size=None): "its config.json does not say the vocabulary's size",
        model(tmp_path / "d", num_hidden_layers=12): "the draft is the smaller model",
        str(tmp_path / "e"): "no such folder",
    }
    for draft, reason in mistakes.items():
        assert cli.main(["plan", "--target", target, "--draft", draft, "--memory-gb", "2,2"]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith(f"error: --draft {draft}: ")
        assert reason in printed.err
        assert printed.err.count("\n") == 1
    assert cli.main(["plan", "--memory-gb", "2,2"]) == 2
    assert capsys.readouterr().err == "error: --target: say which model, or give --profile FILE.yaml\n"


@pytest.mark.parametrize("option", ["--json", "--write", "--trace"])
def test_a_full_disk_is_one_line(
    option: str, pair: list[str], tmp_path: Path, full_disk: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "out")
    assert cli.main(["plan", *pair, *TWO, option, path]) == 2
    assert capsys.readouterr().err == f"error: {option} {path}: cannot be written: No space left on device\n"
