"""The options: the list of them, flags against YAML, and one line for every mistake."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pearl_pp.config import OPTIONS, RunConfig, run_config
from pearl_pp.config.flags import flag_of, parse_flags
from pearl_pp.config.run_config import ALIASES
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError

# The options of the command line and their defaults. Change this list only together with the documentation.
OPTION_LIST: dict[str, Any] = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "seed": None,
    "max_new_tokens": 128,
    "min_new_tokens": 0,
    "stop": (),
    "ignore_eos": False,
    "logprobs": False,
    "target": None,
    "draft": None,
    "trust_remote_code": False,
    "emulate": None,
    "prompt": (),
    "prompts": None,
    "chat": False,
    "strategy": "pearl",
    "placement": "auto",
    "gamma": "auto",
    "fill": "auto",
    "verify_interval": "auto",
    "layer_split": None,
    "handoff": "auto",
    "prefill_piece": "auto",
    "no_pre_verify": False,
    "no_post_verify": False,
    "verify": "rejection",
    "max_model_len": None,
    "dtype": "auto",
    "device": "auto",
    "memory_gb": None,
    "gpu_memory_utilization": 0.9,
    "timeout": 120.0,
    "json": None,
    "trace": None,
    "quiet": False,
}

# What users of other programs type: alias -> option.
ALIAS_LIST: dict[str, str] = {
    "model": "target",
    "target_model": "target",
    "draft_model": "draft",
    "model_draft": "draft",
    "speculative_model": "draft",
    "num_speculative_tokens": "gamma",
    "draft_max": "gamma",
    "max_tokens": "max_new_tokens",
    "n_predict": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "temp": "temperature",
    "repeat_penalty": "repetition_penalty",
    "ctx_size": "max_model_len",
}

# option -> (values on the command line, value in YAML, what the config holds): never the default.
EXAMPLES: dict[str, tuple[list[str], Any, Any]] = {
    "temperature": (["0.8"], 0.8, 0.8),
    "top_k": (["40"], 40, 40),
    "top_p": (["0.95"], 0.95, 0.95),
    "min_p": (["5e-2"], "5e-2", 0.05),
    "repetition_penalty": (["1.3"], 1.3, 1.3),
    "seed": (["7"], 7, 7),
    "max_new_tokens": (["0"], 0, 0),
    "min_new_tokens": (["3"], 3, 3),
    "stop": (["a, b", "--c"], ["a, b", "--c"], ("a, b", "--c")),
    "ignore_eos": ([], True, True),
    "logprobs": ([], True, True),
    "target": (["some/target"], "some/target", "some/target"),
    "draft": (["some/draft"], "some/draft", "some/draft"),
    "trust_remote_code": ([], True, True),
    "emulate": (["profile.yaml"], "profile.yaml", "profile.yaml"),
    "prompt": (["", "two\nlines"], ["", "two\nlines"], ("", "two\nlines")),
    "prompts": (["-"], "-", "-"),
    "chat": ([], True, True),
    "strategy": (["sd"], "sd", "sd"),
    "placement": (["some/file.yaml"], "some/file.yaml", "some/file.yaml"),
    "gamma": (["5"], 5, 5),
    "fill": (["3"], 3, 3),
    "verify_interval": (["2"], 2, 2),
    "layer_split": (["18,15,15,13"], [18, 15, 15, 13], (18, 15, 15, 13)),
    "handoff": (["ship"], "ship", "ship"),
    "prefill_piece": (["64"], 64, 64),
    "no_pre_verify": ([], True, True),
    "no_post_verify": ([], True, True),
    "verify": (["coupled"], "coupled", "coupled"),
    "max_model_len": (["512"], 512, 512),
    "dtype": (["bfloat16"], "bfloat16", "bfloat16"),
    "device": (["cpu"], "cpu", "cpu"),
    "memory_gb": (["80, 24.5"], "80, 24.5", (80.0, 24.5)),
    "gpu_memory_utilization": (["0.5"], 0.5, 0.5),
    "timeout": (["30"], 30, 30.0),
    "json": (["out.json"], "out.json", "out.json"),
    "trace": (["trace.json"], "trace.json", "trace.json"),
    "quiet": ([], True, True),
}

# Options that are refused without another one.
NEEDED_WITH: dict[str, list[str]] = {
    "target": ["--draft", "d"],
    "draft": ["--target", "t"],
    "prompts": [],
    "trust_remote_code": ["--trust-remote-code"],
}


def flags_for(option: str) -> list[str]:
    values = EXAMPLES[option][0]
    flag = flag_of(option)
    return [f"{flag}={value}" for value in values] if values else [flag]


def yaml_file(folder: Path, content: Any) -> str:
    path = folder / "run.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def test_the_list_of_options_is_frozen() -> None:
    assert {name: getattr(RunConfig(), field) for name, field in OPTIONS.items()} == OPTION_LIST
    assert ALIASES == ALIAS_LIST


@pytest.mark.case("U3")
@pytest.mark.parametrize("option", OPTION_LIST)
def test_flag_and_yaml_key_give_the_same_config_and_change_it(option: str, tmp_path: Path) -> None:
    extra = NEEDED_WITH.get(option, [])
    from_flags = parse_flags([*flags_for(option), *extra])
    from_yaml = parse_flags(["--config", yaml_file(tmp_path, {option: EXAMPLES[option][1]}), *extra])
    assert from_flags == from_yaml
    assert getattr(from_flags, OPTIONS[option]) == EXAMPLES[option][2] != OPTION_LIST[option]
    others = {field for name, field in OPTIONS.items() if name != option and flag_of(name) not in extra}
    assert all(getattr(from_flags, field) == getattr(RunConfig(), field) for field in others)


@pytest.mark.parametrize("option", OPTION_LIST)
def test_a_flag_wins_over_yaml(option: str, tmp_path: Path) -> None:
    default = OPTION_LIST[option]
    in_yaml = yaml_file(tmp_path, {option: EXAMPLES[option][1]})
    if default is False:
        argv, expected = [flag_of(option), "false"], False
    else:
        argv, expected = flags_for(option), EXAMPLES[option][2]
        in_yaml = yaml_file(tmp_path, {option: list(default) if default == () else default})
    config = parse_flags(["--config", in_yaml, *NEEDED_WITH.get(option, []), *argv])
    assert getattr(config, OPTIONS[option]) == expected


def test_flags_replace_a_list_from_yaml(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, {"prompt": ["one", "two"], "stop": "x"})
    assert parse_flags(["--config", path]).prompt == ("one", "two")
    config = parse_flags(["--config", path, "-p", "three"])
    assert (config.prompt, config.stop) == (("three",), ("x",))


@given(
    gamma=st.one_of(st.just("auto"), st.integers(1, 99)),
    temperature=st.floats(0.001, 5),
    top_p=st.floats(0.001, 1),
    seed=st.one_of(st.none(), st.integers(0, 2**63 - 1)),
    layers=st.lists(st.integers(1, 200), min_size=1, max_size=9),
    stop=st.lists(st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=1), max_size=3),
)
def test_flags_and_python_agree_on_any_values(
    gamma: Any, temperature: float, top_p: float, seed: int | None, layers: list[int], stop: list[str]
) -> None:
    options: dict[str, Any] = {"gamma": gamma, "temperature": temperature, "top_p": top_p, "stop": stop}
    options |= {"layer_split": layers} | ({} if seed is None else {"seed": seed})
    argv = [f"--gamma={gamma}", f"--temperature={temperature!r}", f"--top-p={top_p!r}"]
    argv += [f"--layer-split={','.join(map(str, layers))}"] + [f"--stop={text}" for text in stop]
    argv += [] if seed is None else [f"--seed={seed}"]
    assert parse_flags(argv) == run_config(options)


@pytest.mark.parametrize(("alias", "option"), ALIAS_LIST.items())
def test_aliases_mean_the_same_in_flags_yaml_and_python(alias: str, option: str, tmp_path: Path) -> None:
    _, value, expected = EXAMPLES[option]
    extra = NEEDED_WITH.get(option, [])
    path = yaml_file(tmp_path, {alias.replace("_", "-"): value})
    by_flag = parse_flags([f"{flag_of(alias)}={value}", *extra])
    with_underscores = parse_flags([f"--{alias}={value}", *extra])
    assert by_flag == with_underscores == parse_flags(["--config", path, *extra])
    assert getattr(by_flag, OPTIONS[option]) == expected
    assert run_config({alias: value} | ({extra[0][2:]: extra[1]} if extra else {})) == by_flag


def test_short_flags() -> None:
    config = parse_flags(["-m", "t", "-md", "d", "-p", "a", "-p", "b", "-s", "4"])
    assert config == RunConfig(target="t", draft="d", prompt=("a", "b"), seed=4)


def test_what_a_launcher_adds_is_ignored() -> None:
    assert parse_flags(["--local_rank=3", "--local-rank", "3", "--gamma", "2"]) == RunConfig(gamma=2)


def test_a_config_is_frozen_and_changed_by_copy() -> None:
    config = RunConfig(gamma=3)
    with pytest.raises(ValidationError):
        config.gamma = 4  # type: ignore[misc]
    changed = config.updated(max_tokens=7, json="x.json")
    assert (changed.gamma, changed.max_new_tokens, changed.json_file) == (3, 7, "x.json")
    assert config.max_new_tokens == 128
    with pytest.raises(UserError, match="gamma 0"):
        config.updated(gamma=0)


def test_sampling_options_of_a_run() -> None:
    config = parse_flags(["--temperature", "0.5", "--stop", "x", "--max-tokens", "9", "--gamma", "2"])
    assert config.sampling_params() == SamplingParams(temperature=0.5, stop=("x",), max_new_tokens=9)


def test_record_and_non_default_use_public_names() -> None:
    config = parse_flags(["--json", "o.json", "--layer-split", "2,2"])
    assert set(config.record()) == set(OPTION_LIST)
    assert config.non_default() == {"json": "o.json", "layer_split": [2, 2]}
    assert run_config(config.record()) == config
    assert RunConfig().non_default() == {}


def test_help_names_every_option_once_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse_flags(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    starts = [line.split()[0] for line in text.splitlines() if line.startswith("  -")]
    assert sorted(starts) == sorted([*map(flag_of, OPTION_LIST), "-h", "--config"])
    assert "local-rank" not in text


def test_a_mistake_shows_before_torch_is_loaded() -> None:
    code = (
        "import sys, pearl_pp, pearl_pp.run, pearl_pp.cli\n"
        "import pearl_pp.console.prompts, pearl_pp.console.record\n"
        "assert pearl_pp.run.main(['--gamma', '0']) == 2\n"
        "print([name for name in ('torch', 'transformers', 'deepspeed') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_path_may_be_a_path_object() -> None:
    paths = {"target": "models/a", "draft": "models/b", "prompts": "p.txt", "placement": "p.yaml", "json": "r.json"}
    given = RunConfig.model_validate({name: Path(path) for name, path in paths.items()})
    assert given == RunConfig.model_validate(paths)
    assert RunConfig(emulate=Path("e.yaml"), trace=Path("t.json")) == RunConfig(emulate="e.yaml", trace="t.json")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="--prompt"):
        run_config({"prompt": Path("a")}, {"prompt": "--prompt"})


@pytest.mark.parametrize("option", ["target", "emulate", "prompts", "placement", "json", "trace"])
def test_a_path_with_a_null_character_is_one_line(option: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f'{option}: "a\\0b.yaml"\n')
    with pytest.raises(UserError) as caught:
        parse_flags(["--config", str(path)])
    told = "must have no null character in it: no file's name has one"
    assert str(caught.value) == f"--config {path}: {option} a\\x00b.yaml: {told}"
