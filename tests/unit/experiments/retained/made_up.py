"""Records of runs that nobody made, with round numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MACHINE = {"cpu": "made-up CPU", "cores": 2, "device": "cpu", "hostname": "here", "load": 1.5}
NUM_TOKENS = 101


def record(
    row: str,
    rate: float,
    *,
    prompt: str = "p/0",
    round: int = 0,
    case: str = "case",
    variant: str = "",
    phase: str = "measure",
    placement: str | None = "hop",
    strategy: str = "pearl",
    num_ranks: int = 4,
    mode: str = "emulated",
    pattern: tuple[int, int] = (1, 4),
    **changes: Any,
) -> dict[str, Any]:
    """A run of 101 tokens at `rate` tokens/s. placement: None: transformers made the text."""
    fill, interval = pattern
    ranks = {None: (), "hop": (3, 0), "dedicated": (4,), "": ()}[placement]
    plan = {
        "placement": {
            "name": placement,
            "target": [6] * 4,
            "replicas": [[{"rank": rank, "layers": [0, 8]}] for rank in ranks],
            "fill": fill,
            "verify_interval": interval,
            "handoff": "catchup",
        },
        "strategy": strategy,
        "starts_with": f"F = {fill}, p = {interval}, gamma 8",
        "adapts": False,
    }
    return {
        "key": {"case": case, "row": row, "variant": variant, "phase": phase, "round": round, "prompt": prompt},
        "experiment": {"name": "made_up", "title": "Made up", "digest": "d1"},
        "num_ranks": num_ranks,
        "config": {},
        "plan": None if placement is None else plan,
        "versions": {"torch": "1.0"},
        "machine": MACHINE,
        "mode": mode,
        "gamma": 8.0,
        "notes": [],
        "metrics": metrics(rate, num_ranks) if placement is not None else reference_metrics(rate),
        "num_prompt_tokens": 4,
        "token_ids": [1, 2],
        "text": "two words",
        "text_equals_oracle": True,
        "oracle": "emulated target",
        "published": None,
        "simulated_tokens_per_s": None,
        "started_at": "2026-01-02T03:04:05+00:00",
    } | changes


def reference_metrics(rate: float) -> dict[str, Any]:
    return {
        "num_output_tokens": NUM_TOKENS,
        "num_decode_tokens": NUM_TOKENS - 1,
        "decode_s": (NUM_TOKENS - 1) / rate,
        "decode_tokens_per_s": rate,
        "ttft_s": 0.5,
    }


def metrics(rate: float, num_ranks: int) -> dict[str, Any]:
    """Each rank spends 3/10 of its time on the target, 1/10 each on the draft and on messages, and 1/2 waiting."""
    total = 0.5 + (NUM_TOKENS - 1) / rate
    rank = {"target_s": 0.3 * total, "draft_s": 0.1 * total, "move_s": 0.1 * total, "wait_s": 0.5 * total}
    return reference_metrics(rate) | {
        "total_s": total,
        "num_target_passes": 50,
        "num_accepted_tokens": 60,
        "num_rejected_tokens": 20,
        "num_accepted_runs": 20,
        "handoff_bytes": 1010,
        "final_mode": "F = 1, p = 4, gamma 8",
        "per_rank": [rank | {"verify_s": 0.0}] * num_ranks,
    }


def experiment(prompts: int = 3, rounds: int = 2, **changes: Any) -> list[dict[str, Any]]:
    """`ar`, `dedicated`, `hop` at 98 % of it and `pipelined` at 120 %; prompts differ in speed, alike in every row."""
    records = []
    for round_ in range(rounds):
        for number in range(prompts):
            at: dict[str, Any] = {"prompt": f"p/{number}", "round": round_} | changes
            speed = 10.0 + number
            records += [
                record("ar", speed / 2, placement="", strategy="ar", **at),
                record("dedicated", speed, placement="dedicated", num_ranks=5, variant="gamma 8", **at),
                record("hop", 0.98 * speed, published={"retained": 94.0, "what": "MT-bench"}, **at),
                record("pipelined", 1.2 * speed, pattern=(3, 2), **at),
            ]
    return records


def trace(num_ranks: int = 2, pass_us: int = 1000, mode: str = "emulated") -> dict[str, Any]:
    """Ten chunks, one after another; every third is rejected, and the draft works on the last rank meanwhile."""

    def bar(rank: int, track: str, fate: str, start: int, length: int, **args: Any) -> dict[str, Any]:
        name = f"{track} {fate}".strip()
        return {"ph": "X", "pid": rank, "tid": 1, "name": name, "cat": track, "ts": start, "dur": length, "args": args}

    rows: list[dict[str, Any]] = [
        bar(0, "waiting", "", -3, 2),
        {"ph": "M", "pid": 0, "tid": 0, "name": "process_name", "args": {"name": "rank 0"}},
    ]
    for chunk in range(10):
        begin, fate = chunk * num_ranks * pass_us, "accepted" if chunk % 3 else "rejected"
        rows += [bar(r, "target", fate, begin + r * pass_us, pass_us, chunk=chunk) for r in range(num_ranks)]
        rows.append(bar(num_ranks - 1, "draft", "discarded", begin, pass_us // 2))
        rows.append(bar(0, "communication", "", begin + pass_us, 10))
        rows.append(bar(num_ranks - 1, "verify", "", begin + num_ranks * pass_us, 5))
    return {"traceEvents": rows, "otherData": {"mode": mode}}


def write(folder: Path, records: Iterable[dict[str, Any]]) -> Path:
    """A folder as a bench leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(one) + "\n" for one in records)
    (folder / "results.jsonl").write_text(text, encoding="utf-8")
    return folder
