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
}


def flags_for(option: str) -> list[str]:
    values = EXAMPLES[option][0]
    flag = flag_of(option)
    return [f"{flag}={value}" for value in values] if values else [flag]


def yaml_file(folder: Path, content: Any) -> str:
    path = folder / "run.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def message_of(*argv: str) -> str:
    with pytest.raises(UserError) as caught:
        parse_flags(argv)
    return str(caught.value)


def test_the_list_of_options_is_frozen() -> None:
    assert {name: getattr(RunConfig(), field) for name, field in OPTIONS.items()} == OPTION_LIST


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
    config = parse_flags(["--config", in_yaml, *argv, *NEEDED_WITH.get(option, [])])
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
    stop=st.lists(
        st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=1), max_size=3
    ),
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


@pytest.mark.parametrize(("alias", "option"), ALIASES.items())
def test_aliases_mean_the_same_in_flags_yaml_and_python(alias: str, option: str, tmp_path: Path) -> None:
    _, value, expected = EXAMPLES[option]
    extra = NEEDED_WITH.get(option, [])
    path = yaml_file(tmp_path, {alias.replace("_", "-"): value})
    by_flag = parse_flags([f"{flag_of(alias)}={value}", *extra])
    with_underscores = parse_flags([f"--{alias}={value}", *extra])
    assert by_flag == with_underscores == parse_flags(["--config", path, *extra])
    assert getattr(by_flag, OPTIONS[option]) == expected
    assert run_config({alias: value} | ({extra[0][2:]: extra[1]} if extra else {})) == by_flag


def test_what_a_launcher_adds_is_ignored() -> None:
    assert parse_flags(["--local_rank=3", "--local-rank", "3", "--gamma", "2"]) == RunConfig(gamma=2)


@pytest.mark.case("U2")
@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--gama", "5"], "--gama: no such option; did you mean --gamma?"),
        (["--max_new_token=5"], "--max-new-token: no such option; did you mean --max-new-tokens?"),
        (["--confg", "x"], "--confg: no such option; did you mean --config?"),
        (["--zzzz"], "--zzzz: no such option"),
        (["hello"], "argument hello: is not an option; prompts are given with --prompt"),
        (["--gamma", "0"], "--gamma 0: must be 'auto' or greater than or equal to 1"),
        (["--gamma", "many"], "--gamma many: must be 'auto' or a whole number"),
        (["--temperature", "-1"], "--temperature -1: must be greater than or equal to 0"),
        (["--temperature", "nan"], "--temperature nan: must be a finite number"),
        (["--top-p", "1.5"], "--top-p 1.5: must be less than or equal to 1"),
        (["--max-new-tokens", "1.5"], "--max-new-tokens 1.5: must be a whole number"),
        (
            ["--min-new-tokens", "9", "--max-tokens", "5"],
            "--min-new-tokens 9: is more than --max-new-tokens 5",
        ),
        (["--stop="], "--stop ['']: a stop string must not be empty"),
        (["--layer-split", "4,x"], "--layer-split 4,x: must be a whole number"),
        (["--layer-split", "4,0"], "--layer-split 4,0: must be greater than or equal to 1"),
        (["--memory-gb", "80,-1"], "--memory-gb 80,-1: must be greater than 0"),
        (["--gpu-memory-utilization", "2"], "--gpu-memory-utilization 2: must be less than or equal to 1"),
        (["--timeout", "inf"], "--timeout inf: must be a finite number"),
        (["--strategy", "fast"], "--strategy fast: must be 'pearl', 'sd' or 'ar'"),
        (["--chat", "maybe"], "--chat maybe: must be true or false"),
        (["--emulate", "p.yaml"], "--emulate: emulation is not supported yet"),
        (["--target", "synthetic:70b"], "--target synthetic:70b: synthetic models are not supported yet"),
        (["--draft", "d"], "--draft d: needs --target too"),
        (["--target", "t"], "--target t: needs --draft too, or --strategy ar"),
    ],
)
def test_a_mistake_in_a_flag_is_one_line(argv: list[str], expected: str) -> None:
    assert message_of(*argv) == expected


def test_other_mistakes_name_the_option_too() -> None:
    assert message_of("--placement", "hopp").startswith("--placement hopp: must be auto, dedicated")
    assert message_of("--placement", "hopp").endswith("did you mean hop?")
    assert message_of("--gamma").startswith("--gamma: needs a value")
    long_and_broken = message_of("--seed", "a\n" * 500)
    assert len(long_and_broken) < 200 and "\n" not in long_and_broken


@pytest.mark.case("U2")
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("max_new_tokns: 5", "max_new_tokns: no such option; did you mean max_new_tokens?"),
        ("gamma: 0", "gamma 0: must be 'auto' or greater than or equal to 1"),
        ("max_new_tokens: true", "max_new_tokens True: takes a value, not true or false"),
        ("temperature: false", "temperature False: takes a value, not true or false"),
        ("prompt: 5", "prompt 5: must be a list"),
        ("stop: [1]", "stop [1]: must be a text"),
        ("emulate: x", "emulate x: emulation is not supported yet"),
        ("gamma: 1\ngamma: 2", "line 2: gamma is there twice"),
        ("max_tokens: 1\nmax_new_tokens: 2", "max_new_tokens 2: is the same option as max_tokens"),
        ("gamma: [1", "line 1: expected ',' or ']', but got '<stream end>'"),
        ("- gamma", "must hold lines of the form name: value"),
        ("1: 2", "must hold lines of the form name: value"),
        ("config: other.yaml", "config: no such option"),
    ],
)
def test_a_mistake_in_yaml_names_file_and_key(content: str, expected: str, tmp_path: Path) -> None:
    path = yaml_file(tmp_path, content)
    assert message_of("--config", path) == f"--config {path}: {expected}"


def test_a_config_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert message_of("--config", "nowhere.yaml") == "--config nowhere.yaml: no such file"
    assert message_of("--config", str(tmp_path)) == f"--config {tmp_path}: cannot be read: Is a directory"
    (tmp_path / "latin1.yaml").write_bytes(b"gamma: 1\nstop: \xe9\n")
    path = f"{tmp_path}/latin1.yaml"
    assert message_of("--config", path) == f"--config {path}: line 2 is not UTF-8 text"
    assert parse_flags(["--config", yaml_file(tmp_path, "# nothing\n")]) == RunConfig()


def test_python_names_its_own_spelling() -> None:
    with pytest.raises(UserError, match=r"^num_speculative_tokens 0: must be"):
        run_config({"num_speculative_tokens": 0})
    with pytest.raises(UserError, match=r"^gama: no such option; did you mean gamma\?$"):
        run_config({"gama": 1})
    with pytest.raises(UserError, match=r"^max_tokens 2: is given twice, also as max_new_tokens$"):
        run_config({"max_new_tokens": 1, "max_tokens": 2})


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
