"""One line for every mistake in an option, naming the option, the value and the reason."""

from pathlib import Path

import pytest

from pearl_pp.config import RunConfig, run_config
from pearl_pp.config.flags import parse_flags
from pearl_pp.errors import UserError


def yaml_file(folder: Path, content: str) -> str:
    path = folder / "run.yaml"
    path.write_text(content, encoding="utf-8")
    return str(path)


def message_of(*argv: str) -> str:
    with pytest.raises(UserError) as caught:
        parse_flags(argv)
    return str(caught.value)


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
        (["--gamma", "1000000000"], "--gamma 1000000000: must be 'auto' or less than or equal to 1000"),
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
        (
            ["--emulate", "p", "--target", "t", "--draft", "d"],
            "--target t: with --emulate the profile takes the target's place; leave it out",
        ),
        (["--emulate", "p", "--logprobs"], "--logprobs: with --emulate there are no probabilities; leave it out"),
        (["--emulate", "p", "--device", "cuda"], "--device cuda: with --emulate nothing is computed; leave it out"),
        (["--emulate", "p", "--dtype", "float16"], "--dtype float16: with --emulate nothing is computed; leave it out"),
        (["--emulate", "p", "--top-k", "5"], "--top-k 5: with --emulate there are no logits; leave it out"),
        (["--emulate", "p", "--top-p", "0.9"], "--top-p 0.9: with --emulate there are no logits; leave it out"),
        (["--emulate", "p", "--min-p", "0.1"], "--min-p 0.1: with --emulate there are no logits; leave it out"),
        (
            ["--emulate", "p", "--repetition-penalty", "1.1"],
            "--repetition-penalty 1.1: with --emulate there are no logits; leave it out",
        ),
        (
            ["--emulate", "p", "--trust-remote-code"],
            "--trust-remote-code: with --emulate there is no model to bring code; leave it out",
        ),
        (
            ["--emulate", "p", "--gpu-memory-utilization", "0.5"],
            "--gpu-memory-utilization 0.5: with --emulate nothing is computed; leave it out",
        ),
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
        ("emulate: 5", "emulate 5: must be a text"),
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
