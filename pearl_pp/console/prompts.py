"""The prompts of a run: from flags, from a text or JSONL file, from standard input, or the built-in ones."""

import json
import secrets
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pearl_pp import builtin
from pearl_pp.config import RunConfig, option_name, run_config
from pearl_pp.config.reading import decode_utf8, nearest, one_line, read_text, shortened
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.errors import UserError
from pearl_pp.runtime.request import Prompt

SAMPLING_OPTIONS = tuple(SamplingParams.model_fields)


def load_prompts(config: RunConfig) -> list[Prompt]:
    """The prompts that `config` names, flags first, each with its sampling options; else the built-in ones.

    A line that cannot be understood becomes a Prompt with `error` set: it is reported, the others run.
    Raises UserError where a whole file, or a prompt given as a flag, cannot be used.
    """
    for text in config.prompt:
        if not _is_unicode(text):
            raise UserError("--prompt", ascii(text), "is not UTF-8 text")
    prompts = [_text_prompt(text, config) for text in config.prompt]
    if config.prompts is not None:
        prompts += _from_file(config.prompts, config)
    return prompts or [_text_prompt(text, config) for text in builtin.prompts()]


def fix_seed(prompts: Sequence[Prompt]) -> tuple[list[Prompt], int | None]:
    """Draw one seed for the sampled prompts that have none: `(prompts with seeds, the seed drawn or None)`.

    A drawn seed is printed and recorded, so that every run can be repeated.
    """
    if all(prompt.params.greedy or prompt.params.seed is not None for prompt in prompts):
        return list(prompts), None
    seed = secrets.randbelow(2**31)
    seeded = [
        prompt if prompt.params.seed is not None else replace(prompt, params=_with_seed(prompt.params, seed))
        for prompt in prompts
    ]
    return seeded, seed


def label(prompt: Prompt, width: int = 72) -> str:
    """The prompt in one short line, for a heading, without what a terminal would obey."""
    text = prompt.text if prompt.text is not None else "" if prompt.error is None else "(cannot be read)"
    if prompt.messages:
        text = str(prompt.messages[-1].get("content", ""))
    return shortened(text, width)


def _text_prompt(text: str, config: RunConfig) -> Prompt:
    return Prompt(text=text, params=config.sampling_params(), chat=config.chat)


def _with_seed(params: SamplingParams, seed: int) -> SamplingParams:
    return params.model_copy(update={"seed": seed})


def _from_file(path: str, config: RunConfig) -> list[Prompt]:
    suffix = Path(path).suffix.lower()
    if suffix == ".json":
        raise UserError("--prompts", path, "write one JSON object a line, in a file that ends in .jsonl")
    text = _standard_input() if path == "-" else read_text("--prompts", path)
    # Not splitlines(): JSON and plain text may hold characters that Python counts as line ends.
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise UserError("--prompts", path, "holds no prompt")
    if suffix in (".jsonl", ".ndjson") or (path == "-" and _is_object(numbered[0][1])):
        return [_from_json_line(f"{path} line {number}", line, config) for number, line in numbered]
    return [_text_prompt(line, config) for _, line in numbered]


def _standard_input() -> str:
    try:
        return decode_utf8("--prompts", "-", sys.stdin.buffer.read())
    except OSError as error:
        raise UserError("--prompts", "-", f"standard input cannot be read: {error.strerror}") from None


def _is_object(line: str) -> bool:
    """Whether standard input, which has no file name, is JSONL: its first line is a JSON object."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _from_json_line(place: str, line: str, config: RunConfig) -> Prompt:
    try:
        content = json.loads(line)
        if not isinstance(content, dict):
            raise ValueError('must be an object such as {"prompt": "..."}')
        text, messages = content.pop("prompt", None), content.pop("messages", None)
        if (messages is None) == (text is None):
            raise ValueError('needs either "prompt" or "messages"')
        messages = tuple(messages) if isinstance(messages, list) else messages
        prompt = Prompt(text=text, messages=messages, chat=config.chat or messages is not None)
        prompt.check()
        return replace(prompt, params=_line_params(config, content))
    except json.JSONDecodeError as error:
        return Prompt(error=f"{place}: not JSON: {error.msg} at column {error.colno}")
    except RecursionError:
        return Prompt(error=f"{place}: is nested too deeply")
    except (ValueError, UserError) as error:
        return Prompt(error=f"{place}: {error}")


def _line_params(config: RunConfig, options: dict[str, Any]) -> SamplingParams:
    """The run's sampling options with those of one line over them; raises UserError or ValueError."""
    names: dict[str, str] = {}
    for key, value in options.items():
        name = option_name(key, key)
        if name not in SAMPLING_OPTIONS:
            raise ValueError(f"{key} is not a sampling option{nearest(name, SAMPLING_OPTIONS)}")
        if name in names:
            raise ValueError(f"{key} {one_line(value)}: is the same option as {names[name]}")
        names[name] = key
    values = {name: options[key] for name, key in names.items()}
    return run_config(config.sampling_params().model_dump() | values, names).sampling_params()


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
