"""The rows of a table can be compared: what differs between them is what their names say, and nothing else."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from pearl_pp.decoding.sampling_params import SamplingParams
from pearl_pp.experiments.retained.rows import ROWS
from tests.integration.commands import Finished, command
from tests.unit.simulation.machines import save_profile

pytestmark = pytest.mark.alone

N = 2
NUM_TOKENS = 12
# Whatever decides when a text ends, and what it is.
STOP_RULE = (*SamplingParams.model_fields, "verify", "max_model_len", "dtype")
REAL_ROWS = ("ar", "sd", "dedicated", "hop", "hf")
EMULATED_ROWS = ("ar", "sd", "dedicated", "single", "hop", "auto")


def faults(records: Iterable[Mapping[str, Any]], num_ranks: int) -> list[str]:
    """Why these records of one case cannot stand in one table; nothing where they can."""
    found = []
    runs: defaultdict[str, dict[tuple[int, str], Mapping[str, Any]]] = defaultdict(dict)
    for record in records:
        key = record["key"]
        if key["phase"] == "measure":
            runs[key["row"]][key["round"], key["prompt"]] = record
    first = next(iter(runs.values()))
    for row, own in runs.items():
        if own.keys() != first.keys():
            found.append(f"{row}: other prompts")
        for key in own.keys() & first.keys():
            record = own[key]
            config = record["config"]
            if record["num_ranks"] != num_ranks + ROWS[row].extra_ranks:
                found.append(f"{row}: {record['num_ranks']} ranks")
            if record["num_prompt_tokens"] != first[key]["num_prompt_tokens"]:
                found.append(f"{row}: another prompt behind {key}")
            if record["metrics"]["num_output_tokens"] != first[key]["metrics"]["num_output_tokens"]:
                found.append(f"{row}: another number of tokens for {key}")
            if [config[name] for name in STOP_RULE] != [first[key]["config"][name] for name in STOP_RULE]:
                found.append(f"{row}: another stop rule for {key}")
            if record["text_equals_oracle"] is not True:
                found.append(f"{row}: the text of {key} is not stated to be the oracle's")
    return found


@dataclass(frozen=True)
class Bench:
    finished: Finished
    out: Path
    rows: Sequence[str]

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / "results.jsonl").read_text().splitlines()]


def bench(folder: Path, rows: Sequence[str], options: Mapping[str, Any], workload: Mapping[str, Any]) -> Bench:
    file = folder / "tiny.yaml"
    content = {"title": "tiny", "num_ranks": N, "rounds": 1, "warm_up": 0, "rows": list(rows)}
    file.write_text(yaml.safe_dump(content | {"options": dict(options), "workload": dict(workload)}))
    out = folder / "out"
    finished = command("pearl_pp.cli", "bench", "retained", "--config", str(file), "--out", str(out))
    return Bench(finished, out, rows)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    options = {"max_new_tokens": NUM_TOKENS, "gamma": 4}
    return bench(tmp_path_factory.mktemp("real"), REAL_ROWS, options, {"name": "builtin", "num_prompts": 2})


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("emulated")
    profile = save_profile(folder, target__pass_ms=8.0, draft__pass_ms=1.0)
    options = {"emulate": profile, "max_new_tokens": NUM_TOKENS}
    return bench(folder, EMULATED_ROWS, options, {"name": "tokens", "num_prompts": 2})


@pytest.mark.slow
@pytest.mark.case("H1")
@pytest.mark.parametrize("kind", ["real", "emulated"])
def test_rows_have_the_same_prompts_lengths_stop_rule_and_ranks_and_state_their_text(
    kind: str, request: pytest.FixtureRequest
) -> None:
    made: Bench = request.getfixturevalue(kind)
    assert made.finished.exit_code == 0, made.finished.stderr
    assert {record["key"]["row"] for record in made.records} >= set(made.rows)
    assert {record["mode"] for record in made.records} == {kind}
    assert faults(made.records, N) == []


@pytest.mark.slow
@pytest.mark.case("H1")
def test_the_table_states_ranks_and_text_of_every_row(real: Bench) -> None:
    lines = [line for line in (real.out / "table.md").read_text().splitlines() if line.startswith("|")]
    heading, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    shown = {cells[heading.index("row")].strip("`"): cells for cells in rows if len(cells) == len(heading)}
    assert shown.keys() >= set(real.rows)
    for row in real.rows:
        ranks = "1 process" if row == "hf" else str(N + ROWS[row].extra_ranks)
        assert shown[row][heading.index("ranks")] == ranks
        assert shown[row][heading.index("text")].startswith("equal")


TAMPERED = {
    "other prompts": lambda record: record["key"].update(prompt="builtin/99"),
    "ranks": lambda record: record.update(num_ranks=N + 5),
    "another prompt behind": lambda record: record.update(num_prompt_tokens=999),
    "another number of tokens": lambda record: record["metrics"].update(num_output_tokens=3),
    "another stop rule": lambda record: record["config"].update(ignore_eos=not record["config"]["ignore_eos"]),
    "not stated": lambda record: record.update(text_equals_oracle=None),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", TAMPERED)
def test_a_row_that_cannot_be_compared_is_found(what: str, emulated: Bench) -> None:
    records = copy.deepcopy(emulated.records)
    TAMPERED[what](records[-1])
    assert any(what in fault for fault in faults(records, N))
