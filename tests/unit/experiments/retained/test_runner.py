"""In which order runs are made, what is recorded of them, and that nothing is lost whenever it ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl_pp.errors import UserError
from pearl_pp.experiments.lines import ProgramFailed
from pearl_pp.experiments.retained import choosing
from pearl_pp.experiments.retained import store as store_module
from pearl_pp.experiments.retained.experiment import Experiment
from pearl_pp.experiments.retained.job import ENGINE, HF, Job, Key
from pearl_pp.experiments.retained.resolving import Limits
from pearl_pp.experiments.retained.rows import Variant
from pearl_pp.experiments.retained.store import read_records, read_skipped
from tests.unit.experiments.retained.fake_groups import FakeGroups, experiment_of, keys, run

PROFILE = Path(__file__).resolve().parents[4] / "configs" / "profiles" / "even_c8.yaml"


class Killed(BaseException):
    """Stands for SIGKILL."""


def test_rows_run_in_turn_and_each_run_is_recorded_once(tmp_path: Path) -> None:
    groups = FakeGroups()
    run(experiment_of(tmp_path), tmp_path / "out", groups)
    names = [(key.round, key.prompt, key.row, key.variant) for key in keys(tmp_path / "out")]
    rows = [("ar", ""), ("sd", "gamma 4"), ("dedicated", ""), ("hf", "")]
    assert names == [(n, f"builtin/{p}", *row) for n in (0, 1) for p in (0, 1) for row in rows]
    swept = [(key.prompt, key.variant) for key in keys(tmp_path / "out", "sweep")]
    assert swept == [(f"builtin/{p}", f"gamma {gamma}") for p in (0, 1) for gamma in (3, 4, 5)]
    assert [key.prompt for key in keys(tmp_path / "out", "oracle")] == ["builtin/0", "builtin/1"]
    num_warm_ups = len(rows) + 1  # the sweep's first run, too
    assert len(groups.jobs) == len(names) + len(swept) + 2 + num_warm_ups
    assert {job.num_ranks for job in groups.jobs} == {2, 3}


def test_on_gpus_groups_take_turns_within_a_round(tmp_path: Path) -> None:
    run(experiment_of(tmp_path), tmp_path / "out", FakeGroups(), one_group=True)
    order = [(key.round, key.row) for key in keys(tmp_path / "out")]
    rows = ["ar", "sd", "ar", "sd", "dedicated", "dedicated", "hf", "hf"]
    assert order == [(number, row) for number in (0, 1) for row in rows]


def test_a_record_says_what_ran_and_whether_the_text_is_the_oracles(tmp_path: Path) -> None:
    def differs(job: Job, answer: dict[str, Any]) -> None:
        if job.num_ranks == 3:
            answer["token_ids"] = [*answer["token_ids"][:-1], 9]

    experiment = experiment_of(tmp_path)
    run(experiment, tmp_path / "out", FakeGroups(differs))
    for record in read_records(tmp_path / "out"):
        row = record["key"]["row"]
        if record["key"]["phase"] == "oracle":
            assert record["text_equals_oracle"] is None
            continue
        assert record["text_equals_oracle"] is (row != "dedicated")
        assert record["oracle"] == "generate" and record["experiment"]["digest"] == experiment.digest
        assert record["config"]["gamma"] == {"ar": "auto", "hf": "auto", "dedicated": 3}.get(
            row, record["config"]["gamma"]
        )
        assert record["num_prompt_tokens"] == 3 and record["simulated_tokens_per_s"] is None


def test_one_run_of_each_row_of_ours_is_traced_and_none_that_counts(tmp_path: Path) -> None:
    groups = FakeGroups()
    run(experiment_of(tmp_path), tmp_path / "out", groups)
    traced = [job for job in groups.jobs if job.trace]
    assert len(traced) == 3 and all(job.kind == ENGINE for job in traced)
    files = sorted(path.name for path in (tmp_path / "out" / "traces").iterdir())
    assert files == ["mine.ar.json", "mine.dedicated.json", "mine.sd.json"]
    run(experiment_of(tmp_path, rounds=3), tmp_path / "out", again := FakeGroups())
    assert not any(job.trace for job in again.jobs)


def test_without_a_warm_up_the_first_run_is_traced(tmp_path: Path) -> None:
    run(experiment_of(tmp_path, warm_up=0), tmp_path / "out", groups := FakeGroups())
    assert sum(job.trace for job in groups.jobs) == 3


def test_a_warm_up_is_short(tmp_path: Path) -> None:
    options = {"max_new_tokens": 400, "min_new_tokens": 300}
    run(experiment_of(tmp_path, options=options, rounds=1), tmp_path / "out", groups := FakeGroups())
    assert sum(job.prompt.params.max_new_tokens == 32 for job in groups.jobs) == 5
    assert len(read_records(tmp_path / "out")[-1]["token_ids"]) == 400


def test_what_is_refused_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    def refuses(job: Job, answer: dict[str, Any]) -> None:
        if job.num_ranks == 3:
            raise UserError("--placement", "dedicated", "does not fit")
        if job.options.get("gamma") == 4:
            raise ProgramFailed("2 ranks: crashed")

    run(experiment_of(tmp_path), tmp_path / "out", groups := FakeGroups(refuses))
    assert {(key.row, key.variant) for key in keys(tmp_path / "out")} == {("ar", ""), ("sd", "gamma 3"), ("hf", "")}
    found = [(s.row, s.variant, s.prompt, s.reason, s.failed) for s in read_skipped(tmp_path / "out")]
    assert found == [
        ("sd", "gamma 4", "", "2 ranks: crashed", True),
        ("dedicated", "", "", "--placement dedicated: does not fit", False),
    ]
    assert sum(job.num_ranks == 3 for job in groups.jobs) == 1, "it is not tried again and again"


def test_a_prompt_that_is_refused_is_left_out_alone(tmp_path: Path) -> None:
    def refuses(job: Job, answer: dict[str, Any]) -> None:
        if job.kind == ENGINE and job.prompt.text == first:
            raise UserError("prompt", None, "is too long")

    experiment = experiment_of(tmp_path, warm_up=0)
    first = experiment.cases[0].workload.items[0].turns[0]
    run(experiment, tmp_path / "out", FakeGroups(refuses))
    assert {key.prompt for key in keys(tmp_path / "out") if key.row == "ar"} == {"builtin/1"}
    assert {s.prompt for s in read_skipped(tmp_path / "out")} == {"builtin/0"}
    rows = {(key.row, key.variant) for key in keys(tmp_path / "out")}
    assert ("sd", "gamma 4") in rows, "a sweep chooses by what could be run"


def test_after_a_crash_every_row_is_warmed_up_again(tmp_path: Path) -> None:
    def crashes(job: Job, answer: dict[str, Any]) -> None:
        if job.options.get("placement") == "hop":
            raise ProgramFailed("2 ranks: crashed")

    experiment = experiment_of(tmp_path, options={"max_new_tokens": 40}, rows=["ar", "hop"], rounds=1)
    run(experiment, tmp_path / "out", groups := FakeGroups(crashes))
    lengths = [job.prompt.params.max_new_tokens for job in groups.jobs if job.options.get("strategy") == "ar"]
    assert lengths == [32, 40, 32, 40]


def test_sampled_text_has_no_oracle_but_with_the_same_noise_it_has(tmp_path: Path) -> None:
    sampled = {"max_new_tokens": 4, "temperature": 1.0}
    run(experiment_of(tmp_path, options=sampled), tmp_path / "a", groups := FakeGroups())
    assert not any(job.kind == HF and job.options["temperature"] == 0 for job in groups.jobs)
    assert {record["text_equals_oracle"] for record in read_records(tmp_path / "a")} == {None}
    run(experiment_of(tmp_path, options=sampled | {"verify": "coupled"}), tmp_path / "b", FakeGroups())
    measured = [record for record in read_records(tmp_path / "b") if record["key"]["phase"] == "measure"]
    assert {(record["text_equals_oracle"], record["oracle"]) for record in measured} == {(True, "ar")}


def test_emulated_rows_are_chosen_by_the_simulator_and_compared_with_the_emulated_target(tmp_path: Path) -> None:
    emulated = {
        "options": {"emulate": str(PROFILE), "max_new_tokens": 4},
        "workload": {"name": "tokens", "num_prompts": 1},
        "rows": ["ar", "sd", "pipelined"],
        "cases": [{"name": "a b", "acceptance": 0.6, "num_ranks": 4}],
    }
    experiment = experiment_of(tmp_path, **emulated)

    def answers(job: Job, answer: dict[str, Any]) -> None:
        answer["token_ids"] = [right] * 4 if job.options.get("strategy") != "sd" else [right] * 3

    right = _right_id(experiment)
    run(experiment, tmp_path / "out", groups := FakeGroups(answers))
    records = {record["key"]["row"]: record for record in read_records(tmp_path / "out")}
    assert {row: record["text_equals_oracle"] for row, record in records.items()} == {
        "ar": True, "sd": False, "pipelined": True,
    }  # fmt: skip
    assert {record["oracle"] for record in records.values()} == {"emulated target"}
    assert records["sd"]["key"]["variant"].startswith("gamma ") and not keys(tmp_path / "out", "sweep")
    assert records["pipelined"]["key"]["variant"] == "F 4 p 2" and records["pipelined"]["simulated_tokens_per_s"] > 1
    placement = yaml.safe_load(Path(records["pipelined"]["config"]["placement"]).read_text())
    assert len(placement["replicas"]) > 1 and placement["verify_interval"] == 2
    profile = yaml.safe_load(Path(groups.jobs[0].options["emulate"]).read_text())
    assert profile["acceptance"] == 0.6 and Path(groups.jobs[0].options["emulate"]).parent.name == "profiles"


def _right_id(experiment: Experiment) -> int:
    import torch

    from pearl_pp.runtime.loading import open_pair

    pair: Any = open_pair(
        experiment.cases[0].rows[0].config(experiment.cases[0].rows[0].variants[0]), 2, torch.device("cpu")
    )
    return pair.right_id


def test_a_planned_row_keeps_its_placement_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a variant of the row has the same name as what the planner chose."""
    plan = choosing.planned

    def planned(*args: Any) -> Variant:
        variant = plan(*args)
        assert variant is not None
        return Variant("F 3 p 2", variant.options)

    monkeypatch.setattr(choosing, "planned", planned)
    content = {
        "num_ranks": 4,
        "options": {"emulate": str(PROFILE), "max_new_tokens": 4},
        "workload": {"name": "tokens", "num_prompts": 1},
        "rows": ["pipelined"],
    }
    used = []
    for rounds in (1, 2):
        groups = FakeGroups()
        run(experiment_of(tmp_path, Limits(rounds=rounds), **content), tmp_path / "out", groups)
        used += [(job.options["placement"], job.options.get("fill")) for job in groups.jobs]
    assert len(set(used)) == 1 and used[0][0].endswith(".yaml") and len(keys(tmp_path / "out")) == 2


def test_a_second_turn_holds_the_oracles_first_answer(tmp_path: Path) -> None:
    file = tmp_path / "mt.jsonl"
    file.write_text('{"question_id": 81, "category": "writing", "turns": ["First?", "Second?"]}\n')
    workload = {"name": "mt_bench", "file": str(file), "chat": False}
    run(experiment_of(tmp_path, workload=workload, rows=["ar"]), tmp_path / "out", groups := FakeGroups())
    assert [key.prompt for key in keys(tmp_path / "out")] == ["mt_bench/81/1", "mt_bench/81/2"] * 2
    second = [job.prompt.text or "" for job in groups.jobs if "Second?" in (job.prompt.text or "")]
    assert len(second) == 3 and len(set(second)) == 1 and "a text" in second[0]


def test_without_an_oracle_there_is_no_second_turn(tmp_path: Path) -> None:
    """Another time its prompt, of the same name, would be another."""

    def refuses(job: Job, answer: dict[str, Any]) -> None:
        if job.kind == HF or job.options.get("strategy") == "ar":
            raise UserError("hf", None, "does not fit")

    file = tmp_path / "mt.jsonl"
    file.write_text('{"question_id": 81, "category": "writing", "turns": ["First?", "Second?"]}\n')
    workload = {"name": "mt_bench", "file": str(file), "chat": False}
    run(experiment_of(tmp_path, workload=workload, rows=["hop"], rounds=1), tmp_path / "out", FakeGroups(refuses))
    assert [key.prompt for key in keys(tmp_path / "out")] == ["mt_bench/81/1"]


def test_plain_decoding_says_the_text_where_the_target_fits_no_single_device(tmp_path: Path) -> None:
    def refuses(job: Job, answer: dict[str, Any]) -> None:
        if job.kind == HF:
            raise UserError("hf", None, "does not fit")

    run(experiment_of(tmp_path, rows=["hop"], rounds=1), tmp_path / "out", FakeGroups(refuses))
    records = read_records(tmp_path / "out")
    assert {record["oracle"] for record in records if record["key"]["phase"] == "measure"} == {"ar"}
    assert {record["key"]["row"] for record in records if record["key"]["phase"] == "oracle"} == {"ar"}
    assert {record["text_equals_oracle"] for record in records if record["key"]["phase"] == "measure"} == {True}


@contextmanager
def killed_at(event: int, share: float) -> Iterator[FakeGroups]:
    """Everything ends at the so-manieth run or write, a write after `share` of its bytes."""
    left = event
    write = store_module.os.write

    def count() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    def torn(handle: int, content: bytes) -> int:
        if count():
            write(handle, content[: int(share * len(content))])
            raise Killed
        return write(handle, content)

    def stops(*_: object) -> None:
        if count():
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module.os, "write", torn)
        yield FakeGroups(stops)


def without_times(out: Path) -> dict[Key, dict[str, Any]]:
    records = {Key.of(record["key"]): record for record in read_records(out)}
    return {key: {n: v for n, v in record.items() if n != "started_at"} for key, record in records.items()}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.floats(0, 1)), max_size=5))
def test_killed_at_any_moment_it_ends_up_with_the_same_records(kills: list[tuple[int, float]]) -> None:
    with TemporaryDirectory() as folder:
        tmp_path = Path(folder)
        experiment = experiment_of(tmp_path)
        run(experiment, tmp_path / "undisturbed", FakeGroups())
        for event, share in kills:
            with killed_at(event, share) as groups:
                try:
                    run(experiment, tmp_path / "killed", groups)
                except Killed:
                    continue
        run(experiment, tmp_path / "killed", FakeGroups())
        assert len(read_records(tmp_path / "killed")) == len(without_times(tmp_path / "killed"))
        assert without_times(tmp_path / "killed") == without_times(tmp_path / "undisturbed")
        run(experiment, tmp_path / "killed", again := FakeGroups())
        assert again.jobs == []
