"""Experiment files, evaluation sets and folders of results from anybody: they can be used, or it is one clear line."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl_pp.console import bench_retained
from pearl_pp.errors import UserError
from pearl_pp.experiments.retained.experiment import Experiment
from pearl_pp.experiments.retained.report import TABLE, write_report
from pearl_pp.experiments.retained.resolving import open_experiment
from pearl_pp.experiments.retained.results_page import page_text
from pearl_pp.experiments.retained.runner import Runner
from pearl_pp.experiments.retained.store import RESULTS, Store, read_records
from pearl_pp.experiments.retained.workloads import SETS, load_workload
from tests.fuzz.odd_values import ODD_FILES, as_yaml, changed, torn
from tests.fuzz.test_odd_files import QUICK, is_one_clear_line
from tests.unit.experiments.retained import made_up
from tests.unit.experiments.retained.fake_groups import FakeGroups, experiment_of

PROFILE = Path(__file__).resolve().parents[2] / "configs" / "profiles" / "even_c8.yaml"

EXPERIMENT: dict[str, Any] = {
    "title": "Odd",
    "num_ranks": 4,
    "rounds": 1,
    "options": {"emulate": str(PROFILE), "max_new_tokens": 16, "gamma": 3},
    "workload": {"name": "tokens", "prompt_len": 4, "num_prompts": 2},
    "rows": ["ar", "hop", {"name": "own", "like": "pipelined", "options": {"gamma": 2}, "sweep": {"fill": [1, 2]}}],
    "cases": [
        {"name": "one", "acceptance": 0.5, "published": {"retained": 94.0, "what": "MT-bench"}},
        {
            "name": "two",
            "link": {"latency_us": 10, "bandwidth_gb_s": 1},
            "num_ranks": 3,
            "rows": [{"name": "each", "each": {"gamma": [2, 3]}}],
        },
    ],
}
LINES: dict[str, dict[str, Any]] = {
    "humaneval": {"task_id": "HumanEval/0", "prompt": "def a():\n"},
    "gsm8k": {"question": "How many?", "answer": "2 + 2 = <<2+2=4>>4\n#### 4"},
    "mgsm": {"question": "Combien?", "category": "french", "question_id": 1},
    "mt_bench": {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]},
}


def open_odd(path: Path) -> None:
    try:
        experiment = open_experiment(str(path))
        with TemporaryDirectory(dir=path.parent) as folder:
            for _ in range(2):  # begun, and gone on with
                Store(Path(folder), experiment).close()
    except UserError as error:
        is_one_clear_line(str(error))


def load_odd(name: str, path: Path) -> None:
    try:
        load_workload(name, str(path))
    except UserError as error:
        is_one_clear_line(str(error))


def test_the_files_of_these_tests_are_good(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(yaml.dump(EXPERIMENT))
    assert len(open_experiment(str(tmp_path / "good.yaml")).cases) == 2
    assert LINES.keys() == SETS.keys()
    for name, line in LINES.items():
        (tmp_path / "good.jsonl").write_text(json.dumps(line))
        assert len(load_workload(name, str(tmp_path / "good.jsonl"), 1).items) == 1


@pytest.mark.parametrize("content", ODD_FILES, ids=range(len(ODD_FILES)))
def test_an_experiment_that_is_nothing_at_all(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)
    open_odd(path)


@QUICK
@given(data=st.data())
def test_an_experiment_with_odd_values_in_it(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(as_yaml(data.draw(changed(EXPERIMENT))))
    open_odd(path)


@QUICK
@given(data=st.data())
def test_an_experiment_that_is_torn(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(data.draw(torn(as_yaml(EXPERIMENT))))
    open_odd(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_prompts", 2**62), ("prompt_len", 2**62), ("prompt_len", 1_000_000)],
)
def test_more_tokens_than_memory_holds_are_one_line(key: str, value: int, tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    path.write_text(yaml.dump(EXPERIMENT | {"workload": EXPERIMENT["workload"] | {"num_prompts": 9, key: value}}))
    with pytest.raises(UserError) as caught:
        open_experiment(str(path))
    is_one_clear_line(str(caught.value))


def test_more_combinations_than_anybody_could_run_are_one_line(tmp_path: Path) -> None:
    names = ("gamma", "fill", "verify_interval", "seed", "top_k", "max_new_tokens")
    rows = [{"name": "row", "sweep": {name: list(range(1, 100)) for name in names}}]
    path = tmp_path / "huge.yaml"
    path.write_text(yaml.dump(EXPERIMENT | {"cases": [{"name": "case", "rows": rows}]}))
    with pytest.raises(UserError, match="combinations of values") as caught:
        open_experiment(str(path))
    is_one_clear_line(str(caught.value))


@pytest.mark.parametrize("key", ["json", "trace", "trust_remote_code", "trust-remote-code", "prompts"])
@pytest.mark.parametrize("where", ["file", "case", "row", "each", "sweep"])
def test_an_experiment_cannot_do_what_only_a_person_may(key: str, where: str, tmp_path: Path) -> None:
    own = {key: True if key.startswith("trust") else "/etc/x"}
    row: dict[str, Any] = {"name": "row"}
    case: dict[str, Any] = {"name": "case", "rows": [row]}
    content = EXPERIMENT | {"cases": [case]}
    if where == "file":
        content["options"] = EXPERIMENT["options"] | own
    elif where == "case":
        case["options"] = own
    else:
        row.update({"options": own} if where == "row" else {where: {key: ["true"]}})
    path = tmp_path / "odd.yaml"
    path.write_text(yaml.dump(content))
    with pytest.raises(UserError) as caught:
        open_experiment(str(path))
    is_one_clear_line(str(caught.value))


@pytest.mark.parametrize("content", ODD_FILES, ids=range(len(ODD_FILES)))
@pytest.mark.parametrize("name", LINES)
def test_a_set_that_is_nothing_at_all(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_bytes(content)
    load_odd(name, path)


@pytest.mark.parametrize("name", LINES)
@QUICK
@given(data=st.data())
def test_a_set_with_odd_values_in_it(name: str, data: st.DataObject, tmp_path: Path) -> None:
    text = json.dumps(data.draw(changed(LINES[name])), default=str).encode()
    path = tmp_path / "odd.jsonl"
    path.write_bytes(data.draw(torn(text)) if data.draw(st.booleans()) else text)
    load_odd(name, path)


# -- `pearl-pp report` reads folders that others have sent


@pytest.mark.parametrize("name", ["results.jsonl", "experiment.json", "skipped.json"])
@pytest.mark.parametrize("content", [*ODD_FILES, b"{}", b"[]", b"null", b'{"rows": 1}'], ids=range(len(ODD_FILES) + 4))
def test_results_that_are_nothing_at_all(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    try:
        write_report(tmp_path)
    except UserError as error:
        is_one_clear_line(str(error))


RECORDS = made_up.experiment(prompts=2, rounds=1)
SKIPPED = [{"case": "case", "row": "sd", "variant": "", "prompt": "p/0", "reason": "too long", "failed": False}]


def write_odd(data: st.DataObject, out: Path) -> None:
    """Records and what was skipped, changed here and there."""
    out.mkdir(exist_ok=True)
    records = data.draw(changed(RECORDS)) if data.draw(st.booleans()) else RECORDS
    (out / "results.jsonl").write_text("".join(f"{json.dumps(one, default=str)}\n" for one in records))
    (out / "skipped.json").write_text(json.dumps(data.draw(changed(SKIPPED)), default=str))


def is_plain(text: str) -> None:
    assert all(character.isprintable() or character == "\n" for character in text), "a terminal would obey it"


@settings(QUICK, max_examples=150)
@given(data=st.data())
def test_results_with_odd_values_in_them_on_a_page(data: st.DataObject, tmp_path: Path) -> None:
    write_odd(data, tmp_path / "odd")
    try:
        is_plain(page_text([tmp_path / "odd"], tmp_path / "page.md"))
    except UserError as error:
        is_one_clear_line(str(error))


@settings(QUICK, max_examples=8)
@given(data=st.data())
def test_results_with_odd_values_in_them_as_pictures(data: st.DataObject, tmp_path: Path) -> None:
    write_odd(data, tmp_path)
    (tmp_path / "traces").mkdir(exist_ok=True)
    trace = data.draw(changed(made_up.trace()))
    (tmp_path / "traces" / "case.hop.json").write_text(json.dumps(trace, default=str))
    try:
        write_report(tmp_path)
        is_plain((tmp_path / TABLE).read_text())
    except UserError as error:
        is_one_clear_line(str(error))


@pytest.mark.parametrize("name", ["x" * 1000, "\x1b[2Ja", "$\\frac{", "a|b\nc", "\U0001f469" * 300])
def test_odd_names_are_drawn_as_they_are(name: str, tmp_path: Path) -> None:
    experiment = {"name": name, "title": name, "digest": "d"}
    key = RECORDS[0]["key"] | {"case": name, "row": name}
    made_up.write(tmp_path, [RECORDS[0] | {"experiment": experiment, "key": key, "notes": [name]}])
    write_report(tmp_path)
    is_plain((tmp_path / TABLE).read_text())


# -- a bench goes on in a folder that it finds


def go_on(experiment: Experiment, out: Path) -> int:
    with Store(out, experiment) as store:
        Runner(experiment, store, FakeGroups(), one_group=False).run()
        return bench_retained._exit_code(store)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, list[dict[str, Any]]]:
    """An experiment of two turns, a sweep and an oracle, and all of its records."""
    folder = tmp_path_factory.mktemp("stopped")
    experiment = experiment_of(folder, rounds=1)
    assert go_on(experiment, folder / "out") == 0
    others = ("config", "experiment", "versions")  # of many values, none of which is looked at
    return experiment, [{k: v for k, v in one.items() if k not in others} for one in read_records(folder / "out")]


@settings(QUICK, max_examples=30)
@given(data=st.data())
def test_a_damaged_folder_is_gone_on_with_or_is_one_line(
    data: st.DataObject, stopped: tuple[Experiment, list[dict[str, Any]]], tmp_path: Path
) -> None:
    experiment, records = stopped
    with TemporaryDirectory(dir=tmp_path) as folder:
        Store(Path(folder), experiment).close()
        number = data.draw(st.integers(0, 1) | st.integers(0, len(records) - 1))  # the oracle's are first
        lines = [*records[:number], data.draw(changed(records[number])), *records[number + 2 :]]
        lines = [{"experiment": made_up.record("ar", 1.0)["experiment"], **line} for line in lines]
        text = "".join(f"{json.dumps(line, default=str)}\n" for line in lines).encode()
        (Path(folder) / RESULTS).write_bytes(data.draw(torn(text)) if data.draw(st.booleans()) else text)
        try:
            go_on(experiment, Path(folder))
        except UserError as error:
            is_one_clear_line(str(error))
