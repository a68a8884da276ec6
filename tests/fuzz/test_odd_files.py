"""Config, profile, placement, shape and prompt files from anybody: they can be used, or it is one clear line."""

from __future__ import annotations

import io
import json
import math
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pearl_pp import run
from pearl_pp.config import read_placement_file, read_profile, read_shape, run_config
from pearl_pp.config.flags import parse_flags
from pearl_pp.config.plan_options import PlanOptions
from pearl_pp.console import plan_question
from pearl_pp.console.prompts import load_prompts
from pearl_pp.errors import UserError
from pearl_pp.planning.choice import choose
from pearl_pp.runtime import simulated
from tests.fuzz.odd_values import ODD_FILES, ODD_TEXTS, as_yaml, changed, nested, stretched, torn
from tests.unit.simulation.machines import profile_content

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
QUICK = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

NOT_HERE = UserError("engine", None, "none is built for a file")
MOST_PASSES = 40  # of the draft in one of the target: more take longer than a test may

Read = Callable[[str], object]

READERS: dict[str, tuple[Read, str]] = {
    "config": (lambda path: parse_flags(["--config", path]), "runs/hop.yaml"),
    "placement": (read_placement_file, "placements/four_gpus_hop.yaml"),
    "profile": (read_profile, "profiles/two_machines_10gbe_32b.yaml"),
    "shape": (read_shape, "models/cpu_small.yaml"),
}
EVERY_OPTION = {
    "gamma": 5, "fill": 3, "layer_split": [1, 2], "prompt": ["a"], "temperature": 0.5, "seed": 1, "stop": "x",
    "timeout": 9,
    "memory_gb": [1.5], "dtype": "auto", "quiet": True, "json": "out.json", "placement": "hop", "max_new_tokens": 4,
}  # fmt: skip


def read(kind: str, path: Path) -> None:
    """Reads the file, or finds one line to say about it."""
    try:
        READERS[kind][0](str(path))
    except UserError as error:
        is_one_clear_line(str(error))


def is_one_clear_line(text: str) -> None:
    assert text.strip()
    assert len(text) < 1200
    obeyed = [character for character in text if unicodedata.category(character) in ("Cc", "Zl", "Zp", "Cs")]
    assert not obeyed, "a terminal, or a log, would obey it"


@pytest.mark.parametrize("content", ODD_FILES, ids=range(len(ODD_FILES)))
@pytest.mark.parametrize("kind", READERS)
def test_a_file_that_is_nothing_at_all(kind: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)
    read(kind, path)


@pytest.mark.parametrize("kind", READERS)
@QUICK
@given(data=st.data())
def test_a_good_file_with_odd_values_in_it(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    good = yaml.safe_load((CONFIGS / READERS[kind][1]).read_text())
    path = tmp_path / "odd.yaml"
    path.write_bytes(as_yaml(data.draw(changed(EVERY_OPTION if kind == "config" else good))))
    read(kind, path)


@pytest.mark.parametrize("kind", READERS)
@QUICK
@given(data=st.data())
def test_a_good_file_that_is_torn(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(data.draw(torn((CONFIGS / READERS[kind][1]).read_bytes())))
    read(kind, path)


# -- prompts: a line that cannot be used is an error of its own, the others are kept

GOOD_LINE = {"prompt": "a", "temperature": 0.5, "stop": ["x"], "max_new_tokens": 3, "seed": 1}
GOOD_CHAT = {
    "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}]
}


def load(path: Path) -> None:
    try:
        prompts = load_prompts(run_config({"prompts": str(path)}))
    except UserError as error:
        is_one_clear_line(str(error))
        return
    for prompt in prompts:
        if prompt.error is not None:
            is_one_clear_line(prompt.error)


@pytest.mark.parametrize("content", ODD_FILES, ids=range(len(ODD_FILES)))
@pytest.mark.parametrize("name", ["p.txt", "p.jsonl"])
def test_prompts_that_are_nothing_at_all(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    load(tmp_path / name)


@QUICK
@given(data=st.data())
def test_a_good_line_with_odd_values_in_it(data: st.DataObject, tmp_path: Path) -> None:
    line = data.draw(changed(data.draw(st.sampled_from([GOOD_LINE, GOOD_CHAT]))))
    text = json.dumps(line, default=str)
    path = tmp_path / "p.jsonl"
    path.write_text(data.draw(torn(text.encode())).decode("utf-8", "replace") if data.draw(st.booleans()) else text)
    load(path)


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"prompt": ' * 20_000, json.dumps({"messages": nested(400)}), '{"prompt": ' + "9" * 5000]
)
def test_deep_and_huge_lines_are_errors_of_their_own(line: str, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(f'{line}\n{{"prompt": "good"}}\n')
    bad, good = load_prompts(run_config({"prompts": str(path)}))
    assert bad.error is not None and good.error is None
    is_one_clear_line(bad.error)


# -- flags


@pytest.mark.parametrize("value", [*ODD_TEXTS, "9" * 5000, "\udcff"], ids=range(len(ODD_TEXTS) + 2))
def test_odd_flags(value: str) -> None:
    for name in EVERY_OPTION:
        try:
            parse_flags([f"--{name.replace('_', '-')}={value}"])
        except UserError as error:
            is_one_clear_line(str(error))
    for argument in (value, f"--{value}"):
        try:
            parse_flags([argument])
        except (UserError, SystemExit) as error:
            is_one_clear_line(str(error) or "help")


# -- a file cannot do what only a person may


def test_a_config_file_cannot_let_code_of_a_model_run(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    for value in ("true", "yes", '"true"', "1"):
        path.write_text(f"trust_remote_code: {value}\n")
        with pytest.raises(UserError, match="give --trust-remote-code on the command line"):
            parse_flags(["--config", str(path)])
    path.write_text("trust_remote_code: true\n")
    assert parse_flags(["--config", str(path), "--trust-remote-code"]).trust_remote_code
    assert not parse_flags(["--config", str(path), "--trust-remote-code", "false"]).trust_remote_code


@pytest.mark.parametrize("option", ["json", "trace"])
def test_a_config_file_cannot_write_elsewhere(option: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    for place in ("/etc/x.json", "../x.json", "a/../../x.json"):
        path.write_text(f"{option}: {place}\n")
        with pytest.raises(UserError, match="is outside the working folder"):
            parse_flags(["--config", str(path)])
        parse_flags(["--config", str(path), f"--{option}", place])
    path.write_text(f"{option}: results/x.json\n")
    assert parse_flags(["--config", str(path)]).record()[option] == "results/x.json"


def test_odd_values_are_not_run_as_code(tmp_path: Path) -> None:
    made = tmp_path / "made"
    path = tmp_path / "c.yaml"
    path.write_text(f"prompt: !!python/object/apply:os.system ['touch {made}']\n")
    with pytest.raises(UserError):
        parse_flags(["--config", str(path)])
    assert not made.exists()


# -- what can be used is used, up to where models would be loaded


def test_a_good_config_comes_as_far_as_the_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_bytes(as_yaml({"prompt": "a"}))
    assert exit_code_and_stderr(["--config", str(tmp_path / "c.yaml")], capsys) == (2, f"error: {NOT_HERE}\n")


@settings(QUICK, max_examples=40)
@given(data=st.data())
def test_a_config_with_odd_values_comes_to_the_engine_or_is_one_line(
    data: st.DataObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a prompt")))
    (tmp_path / "c.yaml").write_bytes(as_yaml(data.draw(changed(EVERY_OPTION))))
    code, told = exit_code_and_stderr(["--config", "c.yaml"], capsys)
    assert code == 2 and told.startswith("error: ") and told.count("\n") == 1
    is_one_clear_line(told.rstrip("\n"))


@settings(QUICK, max_examples=20)
@given(data=st.data())
def test_a_profile_with_odd_values_can_be_simulated_and_planned_with(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    content = profile_content()
    path.write_bytes(as_yaml(data.draw(st.one_of(stretched(content), changed(content)))))
    config = {"emulate": str(path), "max_new_tokens": 3, "placement": "hop"}
    try:
        profile = read_profile(str(path))
        assume(profile.ratio * max(profile.ranks.speed) / min(profile.ranks.speed) < MOST_PASSES)
        result = simulated.simulate(run_config(config), 2, 2)
        assert result.timeline.num_tokens == 3 and math.isfinite(result.timeline.duration)
        question = plan_question.ask(PlanOptions(profile=str(path), num_ranks=2)).question
        assert choose(replace(question, num_simulated=1)).first.tokens_per_s > 0
    except UserError as error:
        is_one_clear_line(str(error))


def exit_code_and_stderr(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    def never(*_: Any) -> Any:
        raise NOT_HERE

    return run.main(argv, never), capsys.readouterr().err


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 5000, b"gama: 3", b"gamma: " + b"9" * 5000, b'a: "\\e[2J"'])
def test_the_command_leaves_with_exit_code_2_and_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    code, text = exit_code_and_stderr(["--config", str(path)], capsys)
    assert code == 2
    assert text.startswith("error: ") and text.count("\n") == 1 and "Traceback" not in text
