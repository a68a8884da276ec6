"""The command line of a run: a parser made from RunConfig's fields, and YAML files under the flags."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

from pearl_pp.config.reading import nearest, one_line, read_yaml
from pearl_pp.config.run_config import ALIASES, OPTIONS, RunConfig, option_name, run_config
from pearl_pp.errors import UserError

# Where a heading of --help starts: the first option under it.
HEADINGS: dict[str, str] = {
    "target": "models",
    "prompt": "prompts",
    "strategy": "schedule",
    "temperature": "sampling and stopping",
    "max_model_len": "resources",
    "json": "output",
}

# SamplingParams is the Python API's too and documents itself there; these are its one-line helps.
SAMPLING_HELP: dict[str, str] = {
    "temperature": "0 is greedy",
    "top_k": "draw from the k likeliest tokens; 0 is off",
    "top_p": "draw from the likeliest tokens that together have this probability; 1 is off",
    "min_p": "drop tokens below this share of the likeliest one's probability; 0 is off",
    "repetition_penalty": "above 1: tokens that are there already become less likely; 1 is off",
    "seed": "of all draws (default: a new one, printed)",
    "max_new_tokens": "longest answer, in tokens",
    "min_new_tokens": "nothing ends an answer before it has this many tokens",
    "stop": "a text that ends the answer and is cut off; repeatable",
    "ignore_eos": "go on after the end-of-sequence token",
    "logprobs": "record each token's log-probability in the target",
}

SHORT: dict[str, tuple[str, ...]] = {"target": ("-m",), "draft": ("-md",), "prompt": ("-p",), "seed": ("-s",)}

# Options that name a file to be written.
WRITTEN = ("json", "trace")

# torchrun's older form and DeepSpeed's launcher add this to every rank's command line.
LAUNCHER_FLAGS = ("--local-rank",)


def parse_flags(argv: Sequence[str]) -> RunConfig:
    """The RunConfig that a command line means; flags win over `--config FILE.yaml`.

    Raises UserError for anything wrong with it, and SystemExit(0) after printing `--help`.
    """
    parsed, unknown = _parser().parse_known_args([dashed(argument) for argument in argv])
    if unknown:
        _refuse(unknown[0])
    flags: dict[str, Any] = vars(parsed)
    path = flags.pop("config", None)
    options = options_in_yaml(path) if path is not None else {}
    _require_flags(path, {name: value for name, value in options.items() if name not in flags})
    names = {name: f"--config {path}: {name}" for name in options}
    names |= {name: flag_of(name) for name in flags}
    return run_config(options | flags, names)


def options_in_yaml(path: str) -> dict[str, Any]:
    """The options in a YAML file by their public names; raises UserError naming file and key."""
    options: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for key, value in read_yaml("--config", path).items():
        name = option_name(key, f"--config {path}: {key}")
        if name in keys:
            raise UserError(f"--config {path}: {key}", one_line(value), f"is the same option as {keys[name]}")
        options[name], keys[name] = value, key
    return options


def _require_flags(path: str | None, options: dict[str, Any]) -> None:
    """Raise UserError for what a file, which may come from anybody, cannot decide without a flag that repeats it."""
    if options.get("trust_remote_code") not in (None, False, "false"):
        reason = "runs code that comes with a model: give --trust-remote-code on the command line"
        raise UserError(f"--config {path}: trust_remote_code", None, reason)
    for name in WRITTEN:
        value = options.get(name)
        if isinstance(value, str) and (Path(value).is_absolute() or ".." in Path(value).parts):
            reason = f"is outside the working folder: a file there is named on the command line, with {flag_of(name)}"
            raise UserError(f"--config {path}: {name}", one_line(value), reason)


def flag_of(name: str) -> str:
    """`--max-new-tokens` for `max_new_tokens`."""
    return "--" + name.replace("_", "-")


def dashed(argument: str) -> str:
    """`--max_tokens=5` as `--max-tokens=5`: underscores are accepted in flags, as vLLM does."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


class _Parser(argparse.ArgumentParser):
    """argparse exits with its usage text; here every fault is a UserError of one line."""

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # Before Python 3.13 argparse takes the value of --stop=-- for the end of all options, and drops it.
        if action.option_strings and arg_strings == ["--"]:
            return self._get_value(action, "--") if action.nargs is None else ["--"]
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        flags, _, reason = message.removeprefix("argument ").partition(": ")
        if reason.startswith("expected one argument"):
            reason = "needs a value (one that starts with - is written with =, as in --prompt=-x)"
        raise UserError(flags.split("/")[0], None, reason or "cannot be read")


class _Help(argparse.HelpFormatter):
    """One name per option: aliases stand behind the help text."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=44, width=120)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        value = {None: f" {action.metavar}", 0: "", "?": ""}.get(action.nargs, "")
        return f"{action.option_strings[0]}{value}"

    def _expand_help(self, action: argparse.Action) -> str:
        also = action.option_strings[1:]
        return super()._expand_help(action) + (f" (also {', '.join(also)})" if also else "")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m pearl_pp.run",
        usage="torchrun --standalone --nproc-per-node N -m pearl_pp.run [options]",
        description="Pipeline-parallel speculative decoding: the draft works on the target's idle stages.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=_Help,
    )
    parser.add_argument("--config", metavar="FILE.yaml", help="options by the same names; flags win")
    for flag in LAUNCHER_FLAGS:
        parser.add_argument(flag, action=_Ignored, help=argparse.SUPPRESS)
    groups: dict[str, Any] = {}
    for name, heading in _headings().items():
        if heading not in groups:
            groups[heading] = parser.add_argument_group(heading)
        _add(groups[heading], name)
    return parser


def _headings() -> dict[str, str]:
    """Each option's heading; sampling options, which RunConfig inherits, stand after the schedule."""
    inherited = [name for name in OPTIONS if name not in RunConfig.__annotations__ and name != "json"]
    own = [name for name in OPTIONS if name not in inherited]
    cut = own.index("max_model_len")
    headings: dict[str, str] = {}
    heading = ""
    for name in [*own[:cut], *inherited, *own[cut:]]:
        heading = HEADINGS.get(name, heading)
        headings[name] = heading
    return headings


def _add(group: argparse._ArgumentGroup, name: str) -> None:
    info = RunConfig.model_fields[OPTIONS[name]]
    flags = [flag_of(name), *(flag_of(alias) for alias, option in ALIASES.items() if option == name)]
    help_text = info.description or SAMPLING_HELP[name]
    if info.annotation is bool:
        group.add_argument(*flags, dest=name, nargs="?", const=True, metavar="BOOL", help=help_text)
        return
    if info.default not in (None, ()):
        help_text += f" (default: {info.default})"
    repeatable = info.annotation == tuple[str, ...]
    group.add_argument(
        *flags,
        *SHORT.get(name, ()),
        dest=name,
        action="append" if repeatable else "store",
        metavar=_metavar(info.annotation),
        help=help_text.replace("%", "%%"),
    )


def _metavar(annotation: Any) -> str:
    """`auto|N`, `A,B,..`, `pearl|sd|ar`, `N`, `X` or `TEXT`, from a field's type."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "|".join(parts)
    if origin is Annotated:
        return _metavar(parts[0])
    if origin is tuple:
        return "TEXT" if parts[0] is str else "A,B,.."
    if origin in (UnionType, Union):
        return "|".join(_metavar(part) for part in parts if part is not type(None))
    return {int: "N", float: "X"}.get(annotation, "TEXT")


class _Ignored(argparse.Action):
    """A flag that is accepted and leaves no trace."""

    def __call__(self, *_: object, **__: object) -> None:
        return


def _refuse(argument: str) -> NoReturn:
    if not argument.startswith("-"):
        raise UserError("argument", argument, "is not an option; prompts are given with --prompt")
    flag, _, _ = argument.partition("=")
    known = [flag_of(known) for known in [*OPTIONS, *ALIASES, "config"]]
    raise UserError(flag, None, f"no such option{nearest(flag, known)}")
