"""What a run says it is about to do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from pearl_pp.config import RunConfig
from pearl_pp.planning.memory import RankBytes
from pearl_pp.planning.presets import resolve_placement
from pearl_pp.runtime.engine import make_schedule
from pearl_pp.runtime.pair import ModelPair
from pearl_pp.runtime.plan import Plan


def plan_of(pair: ModelPair, ranks: int = 2, layers: int = 2, **options: object) -> Plan:
    """The plan of `pair` under other options, with made-up sizes."""
    config = RunConfig(**options)
    placement = resolve_placement(config, ranks, layers, 2)
    draft = pair.draft if placement.replicas else None
    changed = replace(pair, placement=placement, strategy=config.strategy, draft=draft)
    sizes = [RankBytes(target_weights=10**9 * (rank + 1)) for rank in range(ranks)]
    return Plan(changed, "cpu", make_schedule(config, changed), sizes, ["one line of note"])


def test_the_lines_say_where_everything_is(word_pair: ModelPair) -> None:
    lines = plan_of(word_pair, 4, 10, placement="hop", gamma=3, handoff="catchup").lines
    assert lines == [
        "target    llama, 2 layers, hidden 16: 2+3+3+2 layers (float32, cpu)",
        "draft     llama, 2 layers, hidden 16: rank 3 layers 0-1; rank 0 layers 0-1",
        "memory    1, 2, 3, 4 GB planned per rank",
        "strategy  pearl, placement hop, F = 1, p = 4, gamma 3 (given), hand-off catchup",
        "note      one line of note",
    ]


@pytest.mark.parametrize(
    ("options", "strategy"),
    [
        ({"strategy": "ar"}, "ar, 2 stages"),
        ({"placement": "single", "gamma": 2}, "pearl, placement single, F = 1, p = 2, gamma 2 (given)"),
        ({"strategy": "sd", "gamma": 5}, "sd, placement sd, F = 1, p = 2, gamma 5"),
        ({"gamma": 5, "no_pre_verify": True}, "pearl, placement hop, F = 1, p = 2, gamma 5, hand-off catchup"),
    ],
)
def test_the_pace_of_each_strategy(options: dict, strategy: str, word_pair: ModelPair) -> None:
    lines = plan_of(word_pair, **options).lines
    assert f"strategy  {strategy}" in lines
    assert any(line.startswith("draft") for line in lines) == (options.get("strategy") != "ar")


def test_a_sharded_replica_shows_its_shards_in_layer_order(word_pair: ModelPair) -> None:
    line = next(line for line in plan_of(word_pair, placement="sharded").lines if line.startswith("draft"))
    assert " layers 0-0 + rank " in line
    assert line.endswith("layers 1-1")


def test_a_measured_pace_says_so(word_pair: ModelPair) -> None:
    plan = plan_of(word_pair, 4, 8, placement="dedicated")
    plan = replace(plan, schedule=plan.schedule.with_pass_ticks(plan.schedule.pass_ticks // 2))
    assert any("gamma 8 (measured)" in line for line in plan.lines)
    assert plan.record()["tokens_per_interval"] == 8.0


def test_a_run_that_chooses_says_what_it_starts_with(word_pair: ModelPair) -> None:
    plan = replace(plan_of(word_pair, 4, 10), adapts=True)
    assert plan.decision_lines[0] == "strategy  pearl, placement auto: F = 1, p = 4, gamma 4, hand-off catchup"
    alone = replace(plan, schedule=replace(plan.schedule, active=()))
    assert alone.decision_lines[0].startswith("strategy  pearl, placement auto: plain decoding")
    assert (alone.record()["starts_with"], alone.record()["tokens_per_interval"]) == ("plain decoding", None)
    assert plan.lines == plan.layout_lines + plan.decision_lines


def test_the_record_is_json_with_the_keys_of_a_placement_file(word_pair: ModelPair) -> None:
    plan = plan_of(word_pair, placement="hop", gamma=4)
    record = json.loads(json.dumps(plan.record(), allow_nan=False))
    placement = record["placement"]
    assert placement["replicas"] == [[{"rank": 1, "layers": [0, 2]}], [{"rank": 0, "layers": [0, 2]}]]
    assert (record["strategy"], record["dtype"], record["device"]) == ("pearl", "float32", "cpu")
    assert [kinds["total"] for kinds in record["planned_bytes"]] == [10**9, 2 * 10**9]
    assert record["planned_bytes"][0].keys() >= {"target_weights", "draft_kv", "work_space", "reserve"}
    assert record["notes"] == ["one line of note"]
    interval = placement["verify_interval"]
    assert record["pass_slots"] * record["tokens_per_interval"] == pytest.approx(interval, rel=1e-2)


@pytest.mark.parametrize("options", [{"placement": "hop", "gamma": 4}, {"placement": "sharded"}, {"strategy": "ar"}])
def test_the_placement_of_a_record_can_be_copied_into_a_file(
    options: dict, word_pair: ModelPair, tmp_path: Path
) -> None:
    plan = plan_of(word_pair, **options)
    file = tmp_path / "copied.yaml"
    file.write_text(yaml.safe_dump(plan.record()["placement"]))
    copied = resolve_placement(RunConfig(**(options | {"placement": str(file)})), 2, 2, 2)
    assert replace(copied, name=plan.pair.placement.name) == plan.pair.placement


def test_without_a_draft_there_is_no_pace(word_pair: ModelPair) -> None:
    record = plan_of(word_pair, strategy="ar").record()
    assert record["pass_slots"] is record["tokens_per_interval"] is None
    assert record["placement"]["replicas"] == []


def test_a_half_precision_run_says_so(word_pair: ModelPair) -> None:
    plan = plan_of(replace(word_pair, dtype=torch.bfloat16), strategy="ar")
    assert plan.lines[0].endswith("(bfloat16, cpu)")
    assert plan.record()["dtype"] == "bfloat16"


def test_the_plan_says_why_the_models_run_in_their_dtype(word_pair: ModelPair) -> None:
    plan = replace(plan_of(word_pair, strategy="ar"), dtype_reason="auto on a CPU")
    assert plan.lines[1] == "dtype     float32, auto on a CPU"
    assert plan.record()["dtype_reason"] == "auto on a CPU"
