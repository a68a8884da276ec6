"""`pearl-pp bench overhead`: what the runtime adds to the models' own time.

Groups of ranks are started once and kept; only one works at a time. In each round every prompt runs in all
configurations, one right after another, so that a drift of the machine hits all of them alike.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from pearl_pp.config import RunConfig
from pearl_pp.experiments import figures, history, tables
from pearl_pp.experiments.commands import CONTEXT, OnProgress, cpu_name, options_text, prompt_message, start_group
from pearl_pp.experiments.lines import Program
from pearl_pp.runtime.request import Prompt

REPEATS = 12
WARM_UP_TOKENS = 16

Gamma = int | str
BESIDE = ("ar", "sd", "dedicated")
SD_GAMMAS = (2, 3, 4, 5, 6, 8)  # the best gamma of sd lies below that of pearl: its target waits for all of the round


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Args:
        config: the placement and the pair that are measured, with all other run options.
        num_ranks: of the target's stages; `dedicated` gets one more for its draft.
        gammas: each is measured, with the placement and with `dedicated`; of both the best is taken.
        sd_gammas: the same for `sd`.
        beside: what is measured beside the placement, out of `BESIDE`.
        record: file to which the record is added.
    """

    config: RunConfig
    prompts: Sequence[Prompt]
    num_ranks: int
    rounds: int
    gammas: tuple[Gamma, ...]
    sd_gammas: tuple[int, ...] = SD_GAMMAS
    beside: tuple[str, ...] = BESIDE
    record: str | None = None


@dataclass
class Configuration:
    """A group of ranks with one gamma, and what it did.

    Args:
        gamma: None without a draft.
    """

    name: str
    config: RunConfig
    num_ranks: int
    gamma: Gamma | None
    runs: list[dict[str, Any]] = field(default_factory=list)


def configurations(settings: Settings) -> list[Configuration]:
    """The placement asked for with every gamma; beside it the target alone, `sd` and `dedicated` with every gamma."""
    config, num_ranks = settings.config, settings.num_ranks
    # A group of ranks starts with one gamma; only with `auto` does it measure t and T as it does.
    first = "auto" if "auto" in settings.gammas else settings.gammas[0]
    shared = {"placement": "auto", "gamma": first, "fill": "auto", "verify_interval": "auto", "handoff": "auto"}
    plain = {"no_pre_verify": False, "no_post_verify": False}
    placement = "hop" if config.placement == "auto" else config.placement
    tested = config.updated(placement=placement, gamma=first)
    alone = config.updated(**(shared | plain | {"strategy": "ar", "gamma": "auto"}))
    dedicated = config.updated(**(shared | plain | {"strategy": "pearl", "placement": "dedicated"}))
    turns = config.updated(**(shared | plain | {"strategy": "sd", "gamma": settings.sd_gammas[0]}))
    beside = {
        "ar": [Configuration("ar", alone, num_ranks, None)],
        "sd": [Configuration("sd", turns, num_ranks, gamma) for gamma in settings.sd_gammas],
        "dedicated": [Configuration("dedicated", dedicated, num_ranks + 1, gamma) for gamma in settings.gammas],
    }
    own = [Configuration(Path(placement).stem, tested, num_ranks, gamma) for gamma in settings.gammas]
    return own + [configuration for name in BESIDE if name in settings.beside for configuration in beside[name]]


class Bench:
    """The processes of a measurement: a group of ranks for each name, and transformers alone in one process."""

    def __init__(self, settings: Settings, measured: Sequence[Configuration], stack: ExitStack) -> None:
        self._settings = settings
        self.measured = measured
        groups = {c.name: c for c in measured}
        programs = {
            name: start_group(f"{name} on {c.num_ranks} ranks", c.config, c.num_ranks) for name, c in groups.items()
        }
        options = options_text(measured[0].config)
        module = ["pearl_pp.experiments.reference", options, str(settings.num_ranks)]
        self._reference = Program("transformers", module)
        for program in (*programs.values(), self._reference):
            stack.callback(program.close)
        for program in (*programs.values(), self._reference):
            stack.push(program.let_go)  # runs before the others: all end at the same time
        self.described = {name: program.answer() for name, program in programs.items()}
        self._reference.answer()
        self._programs = programs
        self.passes: dict[str, dict[str, list]] = {"target": {}, "draft": {}}

    def run(self, configuration: Configuration, prompt: Prompt) -> dict[str, Any]:
        """One prompt in one configuration."""
        gamma = configuration.config.gamma if configuration.gamma is None else configuration.gamma
        asked = {"gamma": gamma, "prompt": prompt_message(prompt)}
        return self._programs[configuration.name].ask({"run_opened": asked})

    def measure_ranks(self) -> None:
        """Passes of every group on its own ranks: what its simulated speeds are made of."""
        for program in self._programs.values():
            program.ask({"measure": {"links": False}})

    def measure_passes(self, num_tokens: Sequence[int]) -> None:
        """One round of single passes beside those of transformers."""
        answer = self._reference.ask({"passes": {"num_tokens": num_tokens, "repeats": REPEATS}})
        for name, by_number in answer.items():
            for number, passes in by_number.items():
                self.passes[name].setdefault(number, []).extend(passes)

    def oracle(self, run: dict[str, Any], prompt: Prompt) -> list[int]:
        """transformers' greedy ids after the same prompt ids."""
        params = prompt.params.model_dump(mode="json")
        return self._reference.ask({"oracle": {"prompt_token_ids": run["prompt_token_ids"], "params": params}})


def measure(settings: Settings, on_progress: OnProgress = lambda *_: None) -> dict[str, Any]:
    """Measures and returns the record.

    Raises:
        UserError: an option, a model or a placement that does not fit.
        ProgramFailed: a group of ranks ended before it had answered.
    """
    load = {"before": os.getloadavg()[0]}
    with ExitStack() as stack:
        on_progress("starting", 0, 1)
        bench = Bench(settings, configurations(settings), stack)
        for configuration in bench.measured:
            first = settings.prompts[0]
            short = first.params.model_copy(update={"max_new_tokens": WARM_UP_TOKENS})
            bench.run(configuration, replace(first, params=short))
        on_progress("passes", 0, 1)
        bench.measure_ranks()
        load["rounds_begin"] = os.getloadavg()[0]
        num_tokens = _num_tokens(bench)
        for done, (prompt_number, turn) in enumerate(_turns(settings, len(bench.measured))):
            on_progress("rounds", done, settings.rounds * len(settings.prompts))
            if prompt_number == 0:
                bench.measure_passes(num_tokens)
            for number in turn:
                configuration = bench.measured[number]
                configuration.runs.append(bench.run(configuration, settings.prompts[prompt_number]))
        load["rounds_end"] = os.getloadavg()[0]
        oracle = _oracle(bench, settings)
    return _record(settings, bench, oracle, load)


def report(record: dict[str, Any], console: Console, path: str | None) -> None:
    """Prints the tables, the comparison with the line before, and adds the record to the file."""
    tables.print_record(console, record)
    if path is None:
        return
    before = history.previous(path, record["configuration"])
    history.append(path, record)
    if before is None:
        console.print(f"{path}: the first record of this configuration")
        return
    console.print(tables.changes_table(history.changes(record, before), before["date"]))


def _turns(settings: Settings, num_configurations: int) -> Iterator[tuple[int, list[int]]]:
    """(prompt number, order of configurations); who begins changes every time."""
    for turn in range(settings.rounds * len(settings.prompts)):
        first = turn % num_configurations
        yield turn % len(settings.prompts), [(first + i) % num_configurations for i in range(num_configurations)]


def _num_tokens(bench: Bench) -> list[int]:
    """Tokens of the passes that are measured alone: 1, and every gamma."""
    gammas = [c.gamma for c in bench.measured if c.name == bench.measured[0].name]
    measured = bench.described[bench.measured[0].name]["plan"]["tokens_per_interval"] or 1
    return sorted({1, *(round(measured) if isinstance(g, str) or g is None else g for g in gammas)})


def _oracle(bench: Bench, settings: Settings) -> list[list[int] | None]:
    """Greedy ids of every prompt; None for a sampled one."""
    runs = bench.measured[0].runs
    return [
        bench.oracle(runs[number], prompt) if prompt.params.greedy else None
        for number, prompt in enumerate(settings.prompts)
    ]


def _text_is_equal(
    configuration: Configuration, oracle: Sequence[list[int] | None], prompts: Sequence[Prompt]
) -> bool | None:
    """Whether every greedy answer is the oracle's; a stop string may end it earlier. None if all were sampled."""
    answers = []
    for number, run in enumerate(configuration.runs):
        expected, params = oracle[number % len(prompts)], prompts[number % len(prompts)].params
        if expected is not None:
            ids = run["token_ids"]
            answers.append(ids == (expected[: len(ids)] if params.stop else expected))
    return all(answers) if answers else None


def _record(
    settings: Settings, bench: Bench, oracle: Sequence[list[int] | None], load: dict[str, float]
) -> dict[str, Any]:
    best = _best(bench.measured)
    tested = bench.measured[0].name
    plan = bench.described[tested]["plan"]
    cpu, cores = cpu_name(), os.cpu_count()
    entries = [
        {
            "name": c.name,
            "ranks": c.num_ranks,
            "gamma": c.gamma,
            "best": best[c.name] is c,
            "speed": figures.speed(c.runs),
            "windows": figures.window_figures(c.runs),
            "text_equals_oracle": _text_is_equal(c, oracle, settings.prompts),
        }
        for c in bench.measured
    ]
    swept = {"gamma": list(settings.gammas), "sd_gamma": list(settings.sd_gammas), "beside": list(settings.beside)}
    options = settings.config.non_default() | swept
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "bench overhead",
        "mode": "real",
        "configuration": {
            "ranks": settings.num_ranks,
            "prompts": len(settings.prompts),
            "options": options,
            "cpu": cpu,
            "cores": cores,
            "device": plan["device"],
        },
        "rounds": settings.rounds,
        "versions": bench.described[tested]["versions"],
        "machine": {"cpu": cpu, "cores": cores, "device": plan["device"], "load": load},
        "plan": plan,
        "context": CONTEXT,
        "passes": figures.pass_figures(bench.passes["target"], bench.passes["draft"]),
        "configurations": entries,
        "ratios": {
            f"{tested}/{other}": figures.paired_ratio(best[tested].runs, best[other].runs) for other in settings.beside
        },
    }


def _best(measured: Sequence[Configuration]) -> dict[str, Configuration]:
    """Of each name the configuration with the highest tokens/s."""
    best: dict[str, Configuration] = {}
    rates: dict[str, float] = {}
    for configuration in measured:
        rate = figures.speed(configuration.runs)["tokens_per_s"] or 0.0
        if configuration.name not in best or rate > rates[configuration.name]:
            best[configuration.name], rates[configuration.name] = configuration, rate
    return best
