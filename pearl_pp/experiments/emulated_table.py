"""Emulated speeds of placements beside simulated ones: `python -m pearl_pp.experiments.emulated_table`.

Each row runs several times, interleaved with all others, with the same seeds. Speeds are tokens per T (the time
of one target pass): emulated medians, then what the simulator says with free messages, and with the message cost
that plain decoding shows on this machine. `--table prefill` compares times to the first token instead.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml

from pearl_pp.config import RunConfig, read_profile
from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.experiments.emulated_rows import TABLES, Row, profile_path
from pearl_pp.experiments.emulated_run import EmulatedRun
from pearl_pp.experiments.retained.groups import Groups
from pearl_pp.experiments.retained.job import ENGINE, Job
from pearl_pp.runtime.emulation import EmulatedPair
from pearl_pp.runtime.loading import open_pair
from pearl_pp.runtime.request import Prompt
from pearl_pp.runtime.simulated import simulate
from pearl_pp.runtime.warm_up import make_schedule, with_exact_pace
from pearl_pp.simulation.costs import FREE, Overheads, ProfileCosts
from pearl_pp.simulation.expectation import simulated_cycle
from pearl_pp.simulation.timeline import Timeline

SEED = 5
LEAST_GAMMA = 4

Runs = Mapping[str, Sequence[EmulatedRun]]


class Bench:
    """Runs rows on groups of ranks that it keeps.

    Args:
        folder: for profiles with another acceptance, and placements.
    """

    def __init__(self, folder: Path, num_tokens: int) -> None:
        self._folder = folder
        self._num_tokens = num_tokens
        self._groups = Groups()

    def options(self, row: Row) -> dict[str, Any]:
        content = yaml.safe_load(profile_path(row.profile).read_text()) | {"acceptance": row.acceptance}
        options = {"emulate": self._written(f"{row.profile}_{row.acceptance:g}", content), "seed": SEED, **row.options}
        if row.placement_file is not None:
            options["placement"] = self._written(row.name.replace(" ", "_"), row.placement_file)
        return options

    def _written(self, name: str, content: dict[str, Any]) -> str:
        path = self._folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content))
        return str(path)

    def at_best_gamma(self, row: Row) -> Row:
        """`row` with the gamma, out of 4 .. 2c and the exact pace, that is expected to be fastest without overheads."""
        config = RunConfig(**self.options(row))
        pair = open_pair(config, row.num_ranks, torch.device("cpu"))
        assert isinstance(pair, EmulatedPair)
        costs = ProfileCosts(pair.profile, pair.placement)

        def expected(gamma: int | None) -> float:
            wanted = replace(pair, placement=replace(pair.placement, gamma=gamma))
            schedule = with_exact_pace(make_schedule(config, wanted), wanted, costs)
            return simulated_cycle(schedule, costs).tokens_per_s(row.acceptance)

        best = max([None, *range(LEAST_GAMMA, round(2 * pair.profile.ratio) + 1)], key=expected)
        pace = "the exact pace" if best is None else f"gamma {best}"
        print(f"{row.name}: {pace} is the best of the exact one and gamma {LEAST_GAMMA} .. 2c (simulated)", flush=True)
        others = {name: value for name, value in row.options.items() if name != "gamma"}
        return replace(row, options=others if best is None else others | {"gamma": best})

    def emulate(self, row: Row) -> EmulatedRun:
        """One run of the row, with draft passes that are scheduled as long as the profile says."""
        params = SamplingParams(max_new_tokens=row.num_tokens or self._num_tokens, seed=SEED, ignore_eos=True)
        prompt = Prompt(token_ids=(0,) * row.prompt_len, params=params)
        options = self.options(row)
        answer = self._groups.run(Job(row.num_ranks, ENGINE, options, prompt))
        return EmulatedRun.of(answer, read_profile(options["emulate"]))

    def simulate(self, row: Row, overheads: Overheads) -> Timeline:
        config = RunConfig(**self.options(row), max_new_tokens=row.num_tokens or self._num_tokens)
        return simulate(config, row.num_ranks, row.prompt_len, overheads).timeline

    def measured_overheads(self, num_ranks: int) -> Overheads:
        """What this machine adds to passes and messages, from plain decoding: N of each a token and nothing else."""
        row = Row("plain", num_ranks, "even_c8", 0.7, {"strategy": "ar"}, num_tokens=40)
        plain = self.emulate(row)
        free = self.simulate(row, FREE).decode_tokens_per_s
        assert free is not None
        pass_s = plain.pass_overhead_s
        return Overheads(max(0.0, (1 / plain.tokens_per_s - 1 / free) / num_ranks - pass_s), pass_s=pass_s)

    def close(self) -> None:
        self._groups.close()


def measure(
    rows: Sequence[Row], num_tokens: int, rounds: int, first_token: bool = False, path: str | None = None
) -> None:
    """Runs all rows `rounds` times, prints the table and writes all runs to `path`."""
    runs: dict[str, list[EmulatedRun]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        bench = Bench(Path(folder), num_tokens)
        stack.callback(bench.close)
        rows = [bench.at_best_gamma(row) if row.sweeps else row for row in rows]
        overheads = {n: bench.measured_overheads(n) for n in sorted({row.num_ranks for row in rows})}
        for number in range(rounds):
            for row in rows:
                run = bench.emulate(row)
                runs[row.name].append(run)
                print(
                    f"emulated run {number + 1} {row.name}: first token after {run.first_token_s:.3f} s, "
                    f"then {run.tokens_per_s:.3f} tokens/s",
                    flush=True,
                )
        for num_ranks, measured in overheads.items():
            costs = f"{measured.message_s * 1e3:.3f} ms a message, {measured.pass_s * 1e3:.3f} ms a pass"
            print(f"emulated plain decoding, {num_ranks} ranks: {costs}")
        simulated = {
            row.name: [bench.simulate(row, costs) for costs in (FREE, overheads[row.num_ranks])] for row in rows
        }
        print(
            "\n".join(first_token_lines(rows, runs, simulated) if first_token else speed_lines(rows, runs, simulated))
        )
        if path is not None:
            Path(path).write_text(json.dumps(record(rows, runs, simulated, overheads), indent=1) + "\n")


def speed_lines(rows: Sequence[Row], runs: Runs, simulated: Mapping[str, Sequence[Timeline]]) -> list[str]:
    """Speeds in tokens per T; percent of the reference row; percent of the two simulations."""
    lines = [f"{'':42} emulated  overrun  of reference      simulated free   simulated with message costs"]
    for row in rows:
        pass_s = _pass_s(row.profile)
        speed = _speed(runs[row.name])
        overrun = statistics.median(run.sleep_overrun_s / run.total_s for run in runs[row.name])
        cells = []
        for timeline in simulated[row.name]:
            rate = timeline.decode_tokens_per_s
            assert rate is not None
            cells.append(f"{rate * pass_s:6.3f} {100 * speed / rate:6.1f} %")
        over = f"{100 * speed / _speed(runs[row.reference]):6.1f} % {_bound(row)}" if row.reference else ""
        lines.append(f"{row.name:42} {speed * pass_s:7.3f}  {100 * overrun:5.2f} %  {over:16}  {cells[0]}   {cells[1]}")
    return lines


def first_token_lines(rows: Sequence[Row], runs: Runs, simulated: Mapping[str, Sequence[Timeline]]) -> list[str]:
    """Times to the first token in ms; percent of the reference row; percent of the two simulations."""
    lines = [f"{'ms to the first token':42} emulated  of reference      simulated free   simulated with message costs"]
    for row in rows:
        seconds = _first_token_s(runs[row.name])
        times = [timeline.verdicts[0][0] for timeline in simulated[row.name]]
        cells = [f"{1e3 * time:8.1f} {100 * seconds / time:6.1f} %" for time in times]
        over = f"{100 * seconds / _first_token_s(runs[row.reference]):6.1f} % {_bound(row)}" if row.reference else ""
        lines.append(f"{row.name:42} {1e3 * seconds:8.1f}  {over:16}  {cells[0]}   {cells[1]}")
    return lines


def record(
    rows: Sequence[Row],
    runs: Runs,
    simulated: Mapping[str, Sequence[Timeline]],
    overheads: Mapping[int, Overheads],
) -> dict[str, Any]:
    """Everything measured, as JSON holds it; simulated times are without overheads and with them."""

    def figures(timeline: Timeline) -> dict[str, Any]:
        return {"first_token_s": timeline.verdicts[0][0], "tokens_per_s": timeline.decode_tokens_per_s}

    return {
        "mode": "emulated",
        "seed": SEED,
        "overheads": {num_ranks: asdict(measured) for num_ranks, measured in overheads.items()},
        "rows": [
            asdict(row)
            | {
                "emulated": [asdict(run) | {"tokens_per_s": run.tokens_per_s} for run in runs[row.name]],
                "simulated": [figures(timeline) for timeline in simulated[row.name]],
            }
            for row in rows
        ],
    }


@cache
def _pass_s(profile: str) -> float:
    return read_profile(str(profile_path(profile))).target.one_token_ms * 1e-3


def _bound(row: Row) -> str:
    bounds = [f">= {row.least:g}"] * bool(row.least) + [f"<= {row.most:g}"] * bool(row.most)
    return f"({', '.join(bounds)})" if bounds else ""


def _speed(runs: Sequence[EmulatedRun]) -> float:
    return statistics.median(run.tokens_per_s for run in runs)


def _first_token_s(runs: Sequence[EmulatedRun]) -> float:
    return statistics.median(run.first_token_s for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description="Emulated and simulated speeds of placements.")
    parser.add_argument("--table", choices=sorted(TABLES), default="must")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="write all runs here")
    options = parser.parse_args()
    table = TABLES[options.table]
    everything = table.rows()
    rows = [row for row in everything if options.only in row.name]
    wanted = {row.reference for row in rows if row.reference} - {row.name for row in rows}
    rows = [row for row in everything if row.name in wanted] + rows
    measure(rows, options.tokens, options.rounds, table.first_token, options.json)


if __name__ == "__main__":
    main()
