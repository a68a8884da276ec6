"""Sampling options are checked once, and a mistake is one line that names the flag."""

import pytest
from pydantic import ValidationError

from pearl_pp.decoding.sampling_params import SamplingParams, sampling_params
from pearl_pp.errors import UserError


def test_the_defaults_are_greedy() -> None:
    params = sampling_params()
    assert params == SamplingParams() and params.greedy
    assert (params.top_k, params.top_p, params.min_p, params.repetition_penalty) == (0, 1.0, 0.0, 1.0)
    assert not sampling_params(temperature=0.5).greedy


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"top_p": 1.5}, "--top-p 1.5: must be less than or equal to 1"),
        ({"top_p": 0}, "--top-p 0: must be greater than 0"),
        ({"top_p": "much"}, "--top-p 'much': must be a valid number, unable to parse string as a number"),
        ({"temperature": -1}, "--temperature -1: must be greater than or equal to 0"),
        ({"temperature": float("nan")}, "--temperature nan: must be a finite number"),
        ({"temperature": float("inf")}, "--temperature inf: must be a finite number"),
        ({"temperature": 1e-9}, "--temperature 1e-09: must be 0 (greedy) or at least 1e-06"),
        ({"top_k": -1}, "--top-k -1: must be greater than or equal to 0"),
        ({"top_k": 2.5}, "--top-k 2.5: must be a valid integer, got a number with a fractional part"),
        ({"min_p": 1.01}, "--min-p 1.01: must be less than or equal to 1"),
        ({"min_p": float("nan")}, "--min-p nan: must be a finite number"),
        ({"repetition_penalty": 0.0}, "--repetition-penalty 0.0: must be greater than 0"),
        ({"seed": -3}, "--seed -3: must be greater than or equal to 0"),
        ({"seed": 2**63}, f"--seed {2**63}: must be less than {2**63}"),
        ({"max_new_tokens": -1}, "--max-new-tokens -1: must be greater than or equal to 0"),
        (
            {"min_new_tokens": 9, "max_new_tokens": 8},
            "--min-new-tokens 9: is more than --max-new-tokens 8",
        ),
        ({"stop": ""}, "--stop '': a stop string must not be empty"),
        ({"stop": ["a", 3]}, "--stop 3: must be a valid string"),
        ({"top-q": 1}, "--top-q: unknown sampling option; did you mean --top-p?"),
        ({"temprature": 1}, "--temprature: unknown sampling option; did you mean --temperature?"),
        ({"max_tokens": 1}, "--max-tokens: unknown sampling option; did you mean --max-new-tokens?"),
        ({"xyzzy": 1}, "--xyzzy: unknown sampling option"),
    ],
)
def test_a_mistake_is_one_line(options: dict[str, object], line: str) -> None:
    with pytest.raises(UserError) as error:
        sampling_params(**options)
    assert str(error.value) == line


def test_names_with_hyphens_and_one_stop_string() -> None:
    params = sampling_params(**{"top-p": 0.5, "stop": "END", "max-new-tokens": 3})
    assert (params.top_p, params.stop, params.max_new_tokens) == (0.5, ("END",), 3)


def test_they_cannot_be_changed_and_options_can_be_laid_over() -> None:
    params = sampling_params(temperature=1.0, stop=["a", "b"], seed=5)
    with pytest.raises(ValidationError):
        params.temperature = 0.5
    changed = sampling_params(**{**params.model_dump(), "temperature": 0.5})
    assert changed == SamplingParams(temperature=0.5, stop=("a", "b"), seed=5)
    assert hash(changed) != hash(params)
