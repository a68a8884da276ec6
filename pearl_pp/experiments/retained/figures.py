"""From records of runs to the figures of the tables: one line for each row of each case. Pure arithmetic.

Records are what `results.jsonl` holds. Only runs that count are looked at (phase "measure"); what a sweep measured to
choose from is kept apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from pearl_pp.experiments.retained.comparison import (
    DEDICATED,
    PLAIN,
    SPECULATIVE,
    Ratio,
    Record,
    compared,
    family_of,
    fastest,
    ratio,
    speed,
)
from pearl_pp.experiments.retained.job import ENGINE, HF, HF_ASSISTED, MEASURE, SWEEP
from pearl_pp.experiments.retained.machines import Machine, machine_of

PAPERS_PLACEMENT = "hop"
"""What the published retained figures were measured with (Section 4.5 and Appendix G)."""


@dataclass(frozen=True, order=True)
class Place:
    """Runs are compared with one another within one place only.

    Args:
        digest: of the experiment.
        title: what people call it, which may change between runs of the same experiment.
    """

    digest: str
    title: str = field(compare=False)
    case: str
    machine: Machine
    mode: str


@dataclass(frozen=True)
class Text:
    """How many answers equal the oracle's, and how many do not; both 0: there is nothing to compare with."""

    num_equal: int
    num_different: int


@dataclass(frozen=True)
class Line:
    """The figures of one row; None where there is no such figure.

    Args:
        name: that of its row, with the variant where several count.
        kind: who makes the text (`job.ENGINE`, `job.HF`, ..).
        how: pattern, gamma, ranks of the draft and hand-off that it ran with.
        gamma: tokens drafted in p slots (a round of `sd`).
        num_prompts: different ones; `num_runs` counts every round of each.
        tokens_per_s: sum over sum, of decoding: (tokens - 1) / time after the first one.
        median, quartiles: over runs.
        over_plain, over_speculative, retained: tokens_per_s over that of `ar`, `sd` and `dedicated`, both over the
            pairs of runs with the same prompt and round that both have.
        published: percent retained, where somebody measured this case and this placement.
        acceptance_rate, mean_accepted_tokens, tokens_per_target_pass: DESIGN section 9, over all runs.
        communication, waiting: shares of all ranks' time, posting messages and waiting for one.
        idle: of each rank, the share of its time in which it neither computes nor moves messages.
        ttft_s: median.
        simulated_tokens_per_s: of the simulator, for the same runs.
    """

    place: Place
    name: str
    row: str
    variant: str
    num_ranks: int
    kind: str
    how: str
    gamma: float | None
    num_prompts: int
    num_rounds: int
    num_runs: int
    tokens_per_s: float | None
    median: float | None
    quartiles: tuple[float, float] | None
    ttft_s: float | None
    acceptance_rate: float | None
    mean_accepted_tokens: float | None
    tokens_per_target_pass: float | None
    communication: float | None
    waiting: float | None
    idle: tuple[float, ...]
    handoff_bytes_per_token: float | None
    simulated_tokens_per_s: float | None
    text: Text
    published: Mapping[str, Any] | None = None
    over_plain: Ratio | None = None
    over_speculative: Ratio | None = None
    retained: Ratio | None = None

    @property
    def family(self) -> str:
        return family_of(self.row)

    @property
    def ranks(self) -> str:
        """How many processes work on a request; transformers' `generate` is one, whatever the row is beside."""
        return "1 process" if self.kind in (HF, HF_ASSISTED) else str(self.num_ranks)

    @property
    def published_percent(self) -> float | None:
        return None if self.published is None else self.published.get("retained")

    @property
    def of_simulated(self) -> float | None:
        return ratio(self.tokens_per_s or 0.0, self.simulated_tokens_per_s or 0.0)


def lines(records: Iterable[Record]) -> list[Line]:
    """A line for each row (and each variant of it that was measured) of each place, in the order of the records."""
    rows: dict[Place, dict[tuple[str, str], list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record["key"]["phase"] == MEASURE:
            rows[place_of(record)][record["key"]["row"], record["key"]["variant"]].append(record)
    result = []
    for place, runs_of in rows.items():
        best = {name: fastest(runs_of, name) for name in (PLAIN, SPECULATIVE, DEDICATED)}
        rows_of_variants = [row for row, _ in runs_of]
        for (row, variant), runs in runs_of.items():
            result.append(
                replace(
                    _line(place, row if rows_of_variants.count(row) == 1 else f"{row} {variant}".strip(), runs),
                    over_plain=compared(runs, best[PLAIN]),
                    over_speculative=compared(runs, best[SPECULATIVE]),
                    retained=compared(runs, best[DEDICATED]),
                )
            )
    return result


def sweeps(records: Iterable[Record]) -> dict[tuple[Place, str], dict[str, float | None]]:
    """Tokens/s (sum over sum) of each variant that a row was chosen from by measuring, by place and row."""
    runs: dict[tuple[Place, str], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record["key"]["phase"] == SWEEP:
            runs[place_of(record), record["key"]["row"]][record["key"]["variant"]].append(record)
    return {row: {name: speed(of) for name, of in variants.items()} for row, variants in runs.items()}


def place_of(record: Record) -> Place:
    experiment = record["experiment"]
    title = experiment.get("title") or experiment["name"]
    return Place(experiment["digest"], title, record["key"]["case"], machine_of(record["machine"]), record["mode"])


def _line(place: Place, name: str, runs: Sequence[Record]) -> Line:
    metrics = [run["metrics"] for run in runs]
    rates = [m["decode_tokens_per_s"] for m in metrics if m["decode_tokens_per_s"] is not None]
    first_tokens = [m["ttft_s"] for m in metrics if m["ttft_s"] is not None]
    last = runs[-1]
    accepted, rejected = (_sum(metrics, f"num_{fate}_tokens") for fate in ("accepted", "rejected"))
    return Line(
        place=place,
        name=name,
        row=last["key"]["row"],
        variant=last["key"]["variant"],
        num_ranks=last["num_ranks"],
        kind=last.get("kind", ENGINE),
        how=_how(runs),
        gamma=last.get("gamma"),
        num_prompts=len({run["key"]["prompt"] for run in runs}),
        num_rounds=len({run["key"]["round"] for run in runs}),
        num_runs=len(runs),
        tokens_per_s=speed(runs),
        median=median(rates) if rates else None,
        quartiles=_quartiles(rates),
        ttft_s=median(first_tokens) if first_tokens else None,
        acceptance_rate=ratio(accepted, accepted + rejected),
        mean_accepted_tokens=ratio(accepted, _sum(metrics, "num_accepted_runs")),
        tokens_per_target_pass=ratio(_sum(metrics, "num_output_tokens"), _sum(metrics, "num_target_passes")),
        communication=_share(metrics, "move_s"),
        waiting=_share(metrics, "wait_s"),
        idle=_idle(metrics),
        handoff_bytes_per_token=_handoff_bytes_per_token(metrics),
        simulated_tokens_per_s=_simulated(runs),
        text=_text(runs),
        published=_published(last),
    )


def _how(runs: Sequence[Record]) -> str:
    """Pattern, gamma, ranks of the draft, hand-off; where a run may change them, what most ended with."""
    last = runs[-1]
    plan = last.get("plan")
    if not plan:
        return ""
    words = plan["starts_with"]
    if plan["adapts"]:
        ends = [run["metrics"]["final_mode"] for run in runs if run["metrics"].get("final_mode")]
        words = max(sorted(set(ends)), key=ends.count) if ends else words
    replicas = plan["placement"]["replicas"]
    if replicas and plan["strategy"] != "ar":
        words += f"; draft on {' or '.join(_ranks(replica) for replica in replicas)}"
    if len(replicas) > 1:
        words += f", {plan['placement']['handoff']}"
    return words


def _ranks(replica: Sequence[Mapping[str, Any]]) -> str:
    """`3`, or `1+2` of a replica in two shards."""
    return "+".join(str(shard["rank"]) for shard in replica)


def _published(record: Record) -> Mapping[str, Any] | None:
    plan, published = record.get("plan"), record.get("published")
    if not plan or not published or plan["strategy"] != "pearl":
        return None
    return published if plan["placement"]["name"] == PAPERS_PLACEMENT else None


def _share(metrics: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Of all ranks' time: each has the request's from start to end."""
    spent = sum(rank[name] for m in metrics for rank in m.get("per_rank") or ())
    return ratio(spent, sum(m["total_s"] * len(m["per_rank"]) for m in metrics if m.get("per_rank")))


def _idle(metrics: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    measured = [m for m in metrics if m.get("per_rank")]
    total = sum(m["total_s"] for m in measured)
    busy = [
        sum(rank[f"{name}_s"] for rank in ranks for name in ("target", "draft", "verify", "move"))
        for ranks in zip(*(m["per_rank"] for m in measured), strict=False)
    ]
    return tuple(max(0.0, 1 - seconds / total) for seconds in busy) if total else ()


def _handoff_bytes_per_token(metrics: Sequence[Mapping[str, Any]]) -> float | None:
    if not any("handoff_bytes" in m for m in metrics):
        return None
    return ratio(_sum(metrics, "handoff_bytes"), _sum(metrics, "num_output_tokens"))


def _simulated(runs: Sequence[Record]) -> float | None:
    """Sum over sum, too: the simulator's seconds for the tokens of each run."""
    known = [run for run in runs if run.get("simulated_tokens_per_s") and run["metrics"]["num_decode_tokens"]]
    seconds = sum(run["metrics"]["num_decode_tokens"] / run["simulated_tokens_per_s"] for run in known)
    return ratio(sum(run["metrics"]["num_decode_tokens"] for run in known), seconds)


def _text(runs: Sequence[Record]) -> Text:
    states = [run.get("text_equals_oracle") for run in runs]
    return Text(states.count(True), states.count(False))


def _quartiles(values: Sequence[float]) -> tuple[float, float] | None:
    if not values:
        return None
    low, high = np.percentile(values, [25, 75])
    return float(low), float(high)


def _sum(metrics: Iterable[Mapping[str, Any]], name: str) -> float:
    return sum(m.get(name) or 0 for m in metrics)
