"""What `pearl-pp plan` prints and writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml
from rich import box
from rich.console import Console
from rich.table import Table

from pearl_pp.console.plan_question import Asked
from pearl_pp.planning.choice import Entry, Ranking
from pearl_pp.planning.memory import GB
from pearl_pp.planning.question import Question
from pearl_pp.planning.wording import is_alone
from pearl_pp.schedule.schedule import TICKS

MODE = "simulated"
WIDTH = 100  # of what is not a terminal

# Kinds of RankBytes in the order of the table, and their headings.
_KINDS = {
    "target_weights": "target",
    "draft_weights": "draft",
    "tied_copy": "tied copy",
    "target_kv": "target KV",
    "draft_kv": "draft KV",
    "work_space": "work",
    "context": "context",
    "buffers": "NCCL",
    "reserve": "reserve",
}


def report(asked: Asked, ranking: Ranking, top: int, console: Console) -> None:
    """The question in a few lines, the ranking, the first choice's memory."""
    for line in _lines(asked):
        console.print(line, soft_wrap=True)
    console.print(_ranking_table(_distinct(ranking.entries)[:top]))
    console.print(f"{MODE}  first because: {ranking.reason}", soft_wrap=True)
    console.print(_memory_table(ranking.first, asked.question))


def record(asked: Asked, ranking: Ranking) -> dict[str, Any]:
    """As JSON."""
    question = asked.question
    return {
        "mode": MODE,
        "question": {
            "num_ranks": question.num_ranks,
            "usable_bytes": [round(number) for number in question.memory],
            "context": question.max_len,
            "acceptance": question.acceptance,
            "profile": question.profile.model_dump(mode="json"),
            "notes": list(asked.notes),
        },
        "num_candidates": ranking.num_candidates,
        "fits": ranking.first.fits,
        "reason": ranking.reason,
        "first": ranking.first.record(),
        "ranking": [entry.record() for entry in ranking.entries],
    }


def placement_file(entry: Entry, ranking: Ranking) -> str:
    """The placement as `--placement FILE.yaml` of a run reads it."""
    lines = [f"# {ranking.reason}", f"# Run it with --strategy {entry.strategy} --placement and this file."]
    content = entry.placement.record()
    if content["gamma"] is None:
        content["gamma"] = "auto"
    return "\n".join(lines) + "\n" + yaml.safe_dump(content, sort_keys=False, default_flow_style=None)


def _lines(asked: Asked) -> list[str]:
    question = asked.question
    memory = ", ".join(f"{number / GB:.4g}" for number in question.memory)
    return [
        f"planned  {question.num_ranks} ranks with {memory} GB to use, context {question.max_len}",
        *(f"planned  {note}" for note in asked.notes),
    ]


_WORDS = ("strategy", "draft on", "layers", "hand-off")
_NUMBERS = ("F", "p", "gamma", "tok/s", "speed-up", "GB")
_LONG = ("draft on", "layers")


def _ranking_table(entries: Sequence[Entry]) -> Table:
    caption = (
        f"{MODE}: tok/s = expected tokens / expected time between two restarts; speed-up over plain decoding on the "
        "same ranks; planned: GB on the fullest rank, GB short on all ranks"
    )
    table = Table(box=box.SIMPLE, caption=caption, caption_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("#", *_WORDS, *_NUMBERS, "fits"):
        is_number = heading == "#" or heading in _NUMBERS
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=heading not in _LONG)
    for number, entry in enumerate(entries, 1):
        table.add_row(str(number), *_cells(entry))
    return table


def _distinct(entries: Sequence[Entry]) -> list[Entry]:
    """Of each place for the draft the best layers, F, p and gamma."""
    found: dict[tuple[object, ...], Entry] = {}
    for entry in entries:
        found.setdefault((entry.strategy, entry.fits, entry.placement.replicas), entry)
    return list(found.values())


def _cells(entry: Entry) -> tuple[str, ...]:
    placement = entry.placement
    windows = bool(entry.pass_slots) and entry.schedule.draft_limit is None
    gamma = "" if entry.pass_slots is None else str(placement.gamma or f"{_per_interval(entry):.3g}")
    return (
        entry.strategy,
        _draft_on(entry),
        _layers(placement.target),
        placement.handoff if len(placement.replicas) > 1 else "",
        str(placement.fill) if windows else "",
        str(placement.verify_interval) if windows else "",
        gamma,
        f"{entry.tokens_per_s:.2f}",
        f"{entry.speedup:.2f}x",
        f"{max(rank.total for rank in entry.memory) / GB:.1f}",
        "yes" if entry.fits else f"{sum(entry.short) / GB:.2g} short",
    )


def _per_interval(entry: Entry) -> float:
    """gamma of the exact pace."""
    return entry.schedule.verify_interval * TICKS / entry.schedule.pass_ticks


def _draft_on(entry: Entry) -> str:
    placement = entry.placement
    if is_alone(placement):
        return f"{placement.num_stages} alone"
    return ", ".join("+".join(str(shard.rank) for shard in replica) for replica in placement.replicas)


def _layers(split: Sequence[int]) -> str:
    return f"{len(split)} x {split[0]}" if len(set(split)) == 1 else "+".join(map(str, split))


def _memory_table(entry: Entry, question: Question) -> Table:
    caption = f"planned GB (10^9 bytes) of the first choice, before anything is loaded; {entry.what}"
    table = Table(box=box.SIMPLE, caption=caption, caption_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    shown = [kind for kind in _KINDS if any(getattr(rank, kind) for rank in entry.memory)]
    for heading in ("rank", *(_KINDS[kind] for kind in shown), "sum", "to use", "short"):
        table.add_column(heading, justify="right")
    for rank, (held, there, short) in enumerate(zip(entry.memory, question.memory, entry.short, strict=True)):
        cells = [_gb(number) for number in (*(getattr(held, kind) for kind in shown), held.total, there)]
        table.add_row(str(rank), *cells, _gb(short) if short else "")
    return table


def _gb(number: float) -> str:
    return f"{number / GB:.2f}"
