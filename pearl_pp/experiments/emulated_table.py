"""Emulated speeds of placements beside simulated ones: `python -m pearl_pp.experiments.emulated_table`.

Each row runs several times, interleaved with all others, with the same seeds. Speeds are tokens per T (the time
of one target pass): emulated medians, then what the simulator says with free messages, and with the message cost
that plain decoding shows on this machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

from pearl_pp.config import RunConfig, read_profile
from pearl_pp.experiments.rank_group import EmulatedRun, RankGroup, pass_slots
from pearl_pp.runtime.engine import make_schedule
from pearl_pp.runtime.loading import open_pair
from pearl_pp.schedule.schedule import TICKS
from pearl_pp.simulation.costs import FREE, Overheads, ProfileCosts
from pearl_pp.simulation.simulator import Simulator
from pearl_pp.simulation.timeline import Timeline
from pearl_pp.simulation.verdicts import independent

PROFILES = Path("configs/profiles")
PROMPT_LEN = 4
SEED = 5


@dataclass(frozen=True)
class Row:
    """A configuration.

    Args:
        num_ranks: all of them, with the draft's own.
        least: percent of `reference` (another row's name) that it must reach, 0 where there is none.
    """

    name: str
    num_ranks: int
    profile: str
    acceptance: float
    options: dict[str, Any] = field(default_factory=dict)
    reference: str = ""
    least: float = 0.0


def must_rows() -> list[Row]:
    """What several windows in flight must gain over PEARL with a rank for the draft alone."""
    rows = []

    def group(num_stages: int, ratio: int, acceptance: float, others: Iterable[tuple[str, dict, float]]) -> None:
        title = f"N {num_stages} c {ratio} alpha {acceptance:g}"
        profile = f"even_c{ratio}"
        reference = f"{title} dedicated"
        rows.append(Row(reference, num_stages + 1, profile, acceptance, {"placement": "dedicated"}))
        for name, options, least in others:
            rows.append(Row(f"{title} {name}", num_stages, profile, acceptance, options, reference, least))

    hop = {"placement": "hop"}

    def pipelined(fill: int, interval: int) -> dict:
        return {"placement": "pipelined", "fill": fill, "verify_interval": interval}

    single = {"placement": "single", "fill": 4, "verify_interval": 1}
    group(
        4, 8, 0.7, [("hop", hop, 97), ("p 2", pipelined(1, 2), 112), ("F 3 p 2", pipelined(3, 2), 120),
                    ("one replica F 4 p 1", single, 114)],
    )  # fmt: skip
    group(4, 8, 0.8, [("hop", hop, 97), ("p 2", pipelined(1, 2), 110), ("F 3 p 2", pipelined(3, 2), 114)])
    group(8, 12, 0.7, [("F 7 p 2", pipelined(7, 2), 127)])
    group(3, 8, 0.7, [("F 3 p 2", pipelined(3, 2), 108)])
    group(2, 8, 0.7, [("F 2 p 2", pipelined(2, 2), 105)])
    return rows


def profile_rows() -> list[Row]:
    """Every placement on three machines: the simulator with measured message costs must agree within 5 %."""
    placements: dict[str, dict[str, Any]] = {
        "single": {"placement": "single"},
        "hop": {"placement": "hop"},
        "hop catchup": {"placement": "hop", "handoff": "catchup"},
        "pipelined": {"placement": "pipelined", "verify_interval": 2},
        "sharded": {"placement": "sharded"},
        "dedicated": {"placement": "dedicated"},
        "sd": {"strategy": "sd", "gamma": 5},
    }
    profiles = ("even_c8", "consumer_4x24gb_32b", "two_machines_10gbe_32b")
    return [
        Row(f"{profile} {name}", 4, profile, read_profile(str(PROFILES / f"{profile}.yaml")).acceptance, options)
        for profile in profiles
        for name, options in placements.items()
    ]


TABLES = {"must": must_rows, "profiles": profile_rows}


class Bench:
    """Runs rows on groups of ranks that it keeps.

    Args:
        folder: for profiles with another acceptance.
    """

    def __init__(self, folder: Path, num_tokens: int) -> None:
        self._folder = folder
        self._num_tokens = num_tokens
        self._groups: dict[int, RankGroup] = {}

    def options(self, row: Row) -> dict[str, Any]:
        content = yaml.safe_load((PROFILES / f"{row.profile}.yaml").read_text()) | {"acceptance": row.acceptance}
        path = self._folder / f"{row.profile}_{row.acceptance:g}.yaml"
        path.write_text(yaml.safe_dump(content))
        return {"emulate": str(path), "seed": SEED, **row.options}

    def emulate(self, row: Row) -> EmulatedRun:
        group = self._groups.get(row.num_ranks)
        if group is None or group.closed:
            self._groups[row.num_ranks] = RankGroup(row.num_ranks)
        return self._groups[row.num_ranks].run(self.options(row), self._num_tokens, PROMPT_LEN, _exact(row))

    def simulate(self, row: Row, overheads: Overheads) -> Timeline:
        config = RunConfig(**self.options(row))
        pair = open_pair(config, row.num_ranks, torch.device("cpu"))
        profile = read_profile(str(config.emulate))
        schedule = make_schedule(config, pair)
        if _exact(row) and schedule.replicas:
            schedule = schedule.with_pass_ticks(round(pass_slots(config, row.num_ranks) * TICKS))
        judge = independent(profile.acceptance, SEED)
        costs = ProfileCosts(profile, pair.placement, overheads)
        return Simulator(schedule, costs, judge).run(PROMPT_LEN, PROMPT_LEN + self._num_tokens)

    def measured_overheads(self, num_ranks: int) -> Overheads:
        """What this machine adds to passes and messages, from plain decoding: N of each a token and nothing else."""
        row = Row("plain", num_ranks, "even_c8", 0.7, {"strategy": "ar", "max_new_tokens": 1})
        num_tokens, self._num_tokens = self._num_tokens, 40
        plain = self.emulate(row)
        free = self.simulate(row, FREE).decode_tokens_per_s
        self._num_tokens = num_tokens
        assert free is not None
        pass_s = plain.pass_overhead_s
        return Overheads(max(0.0, (1 / plain.tokens_per_s - 1 / free) / num_ranks - pass_s), pass_s=pass_s)

    def close(self) -> None:
        for group in self._groups.values():
            group.close()


def _exact(row: Row) -> bool:
    return "gamma" not in row.options and row.options.get("strategy", "pearl") == "pearl"


def measure(rows: list[Row], num_tokens: int, rounds: int) -> None:
    """Runs all rows `rounds` times and prints the table."""
    runs: dict[str, list[EmulatedRun]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        bench = Bench(Path(folder), num_tokens)
        stack.callback(bench.close)
        overheads = {n: bench.measured_overheads(n) for n in sorted({row.num_ranks for row in rows})}
        for number in range(rounds):
            for row in rows:
                runs[row.name].append(bench.emulate(row))
                print(
                    f"emulated run {number + 1} {row.name}: {runs[row.name][-1].tokens_per_s:.3f} tokens/s", flush=True
                )
        for num_ranks, measured in overheads.items():
            costs = f"{measured.message_s * 1e3:.3f} ms a message, {measured.pass_s * 1e3:.3f} ms a pass"
            print(f"emulated plain decoding, {num_ranks} ranks: {costs}")
        print_table(rows, bench, runs, overheads)


def print_table(
    rows: list[Row], bench: Bench, runs: dict[str, list[EmulatedRun]], measured: dict[int, Overheads]
) -> None:
    """Speeds in tokens per T; percent of the reference row; percent of the two simulations."""
    print(f"{'':34} emulated  overrun  of reference      simulated free   simulated with message costs")
    for row in rows:
        pass_s = read_profile(str(PROFILES / f"{row.profile}.yaml")).target.pass_ms * 1e-3
        speed = _median(runs[row.name])
        overrun = statistics.median(run.sleep_overrun_s / run.verdict_times[-1] for run in runs[row.name])
        cells = []
        for overheads in (FREE, measured[row.num_ranks]):
            simulated = bench.simulate(row, overheads).decode_tokens_per_s
            assert simulated is not None
            cells.append(f"{simulated * pass_s:6.3f} {100 * speed / simulated:6.1f} %")
        over = ""
        if row.reference:
            over = f"{100 * speed / _median(runs[row.reference]):6.1f} % (>= {row.least:g})"
        print(f"{row.name:34} {speed * pass_s:7.3f}  {100 * overrun:5.2f} %  {over:16}  {cells[0]}   {cells[1]}")


def _median(runs: list[EmulatedRun]) -> float:
    return statistics.median(run.tokens_per_s for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description="Emulated and simulated speeds of placements.")
    parser.add_argument("--table", choices=sorted(TABLES), default="must")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = [row for row in TABLES[options.table]() if options.only in row.name or options.only == ""]
    wanted = {row.reference for row in rows if row.reference} - {row.name for row in rows}
    rows = [row for row in TABLES[options.table]() if row.name in wanted] + rows
    measure(rows, options.tokens, options.rounds)


if __name__ == "__main__":
    main()
