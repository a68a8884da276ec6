"""The file of an experiment: one line for every mistake, and what rows mean."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pearl_pp.errors import UserError
from pearl_pp.experiments.retained import resolving
from pearl_pp.experiments.retained.experiment import Experiment
from pearl_pp.experiments.retained.resolving import Limits, open_experiment
from pearl_pp.experiments.retained.rows import ROWS
from tests.unit.simulation.machines import profile

PROFILE = Path(__file__).resolve().parents[4] / "configs" / "profiles" / "even_c8.yaml"
PLAIN: dict[str, Any] = {"title": "a", "num_ranks": 4, "rows": ["ar"]}
EMULATED = PLAIN | {"options": {"emulate": str(PROFILE)}, "workload": {"name": "tokens", "num_prompts": 2}}


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    def opened(content: dict[str, Any], limits: Limits | None = None) -> Experiment:
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump(content))
        return open_experiment(str(path), limits or Limits())

    return opened


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, "title: is missing"),
        ({"rounds": 0}, "rounds 0: must be greater than or equal to 1"),
        ({"rounds": True}, "rounds True: must be a whole number"),
        ({"num_ranks": "four"}, "num_ranks four: must be a whole number"),
        ({"ruonds": 3}, "ruonds: no such key; did you mean rounds?"),
        ({"rows": []}, "rows []: must have at least 1 item"),
        ({"rows": "ar"}, "rows ar: must be a list"),
        ({"rows": ["ar", "hopp"]}, "rows hopp: no such row; did you mean hop?"),
        ({"rows": ["zzz"]}, "rows zzz: no such row; there are ar, sd, dedicated"),
        ({"rows": ["ar", "ar"]}, "rows: ar is there twice"),
        ({"rows": [{"name": "x", "sweeps": {}}]}, "rows[1].sweeps: no such key; did you mean sweep?"),
        ({"rows": [{"name": "x", "options": {"gama": 3}}]}, "case mine: gama: no such option; did you mean gamma?"),
        ({"rows": [{"name": "x", "options": {"gamma": 0}}]}, "case mine, row x: gamma 0: must be"),
        ({"rows": [{"name": "x", "sweep": {"gamma": [3, -1]}}]}, "case mine, row x: gamma -1: must be"),
        ({"rows": [{"name": "x", "options": {"temperature": 1.0}}]}, "case mine: temperature: is not a row's own"),
        ({"rows": [{"name": "x", "options": {"emulate": "y.yaml"}}]}, "case mine: emulate: is not a row's own"),
        ({"rows": [{"name": "x", "each": {"max_tokens": [8, 16]}}]}, "case mine: max_new_tokens: is not a row's own"),
        ({"rows": [{"name": "x", "each": {"gamma": []}}]}, "rows[1].each.gamma []: must have at least 1 item"),
        ({"rows": None}, "case mine: has no rows"),
        ({"options": {"prompt": "x"}}, "case mine: prompt: prompts come from the workload"),
        ({"options": {"max_new_tokens": -1}}, "case mine: max_new_tokens -1: must be"),
        ({"options": {"emulate": "/nowhere.yaml"}}, "/nowhere.yaml: no such file"),
        ({"workload": {"name": "human_eval"}}, "human_eval: no such workload; did you mean humaneval?"),
        ({"workload": {"name": "gsm8k"}}, "workload gsm8k: needs the set's JSONL file"),
        ({"workload": {"name": "gsm8k", "fil": "x"}}, "workload.fil: no such key; did you mean file?"),
        ({"workload": {"name": "tokens"}}, "workload tokens has no text"),
        ({"workload": 3}, "workload 3: must hold lines of the form name: value"),
        ({"cases": [{"name": "a"}, {"name": "a"}]}, "cases: a is there twice"),
        ({"cases": [{"name": "a", "acceptance": 0.5}]}, "case a acceptance: changes a profile, and none is emulated"),
        ({"cases": [{"name": "a", "aceptance": 0.5}]}, "cases[1].aceptance: no such key; did you mean acceptance?"),
        (
            {"cases": [{"name": "a", "workload": {"naem": "x"}}]},
            "cases[1].workload.naem: no such key; did you mean name?",
        ),
    ],
)
def test_a_mistake_is_one_line(opened: Any, content: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        opened(PLAIN | content if content else {})
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"rows": ["hf"]}, "case mine hf: runs transformers on a model, and an emulated case has none"),
        ({"cases": [{"name": "a", "acceptance": 2.0}]}, "acceptance 2.0: must be less than or equal to 1"),
        ({"cases": [{"name": "a", "target": {"pass_mss": 2}}]}, "target.pass_mss: no such key; did you mean pass_ms?"),
    ],
)
def test_a_mistake_in_an_emulated_case_is_one_line(opened: Any, content: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected.replace(".", r"\.")):
        opened(EMULATED | content)


def test_a_missing_file_is_one_line() -> None:
    with pytest.raises(UserError, match=r"--config /nowhere\.yaml: no such file"):
        open_experiment("/nowhere.yaml")


def test_named_rows_run_on_n_ranks_and_the_reference_on_one_more(opened: Any) -> None:
    rows = {row.name: row for row in opened(PLAIN | {"rows": list(ROWS)}).cases[0].rows}
    assert list(rows) == list(ROWS)
    with_more = {"dedicated", "pearl", "without pre-verify", "without post-verify"}
    assert {name for name, row in rows.items() if row.num_ranks == 5} == with_more
    assert {row.num_ranks for name, row in rows.items() if name not in with_more} == {4}
    assert [variant.name for variant in rows["sd"].variants] == [f"gamma {n}" for n in (2, 3, 4, 5, 6, 8)]
    assert rows["dedicated"].variants[0].name == "gamma auto"
    assert [v.name for v in rows["pipelined"].variants] == ["F 1 p 2", "F 3 p 2", "F 1 p 3", "F 3 p 3"]
    assert [v.name for v in rows["hop"].variants] == [""]
    assert rows["hop ship"].config(rows["hop ship"].variants[0]).handoff == "ship"
    assert not rows["pipelined"].planned


def test_an_option_of_the_experiment_is_not_swept(opened: Any) -> None:
    rows = opened(PLAIN | {"options": {"gamma": 4, "fill": 2}, "rows": ["sd", "dedicated", "pipelined"]}).cases[0].rows
    assert [[v.name for v in row.variants] for row in rows] == [[""], [""], ["p 2", "p 3"]]
    assert rows[0].config(rows[0].variants[0]).gamma == 4


def test_a_row_of_ones_own(opened: Any) -> None:
    mine = {"name": "mine", "like": "hop", "num_ranks": 3, "options": {"handoff": "ship"}, "sweep": {"gamma": [3, 4]}}
    each = {"name": "all", "like": "hop", "each": {"fill": [1, 2], "verify-interval": [2]}}
    rows = opened(PLAIN | {"rows": [mine, each]}).cases[0].rows
    assert [row.name for row in rows] == ["mine", "all, F 1 p 2", "all, F 2 p 2"]
    config = rows[0].config(rows[0].variants[1])
    assert (rows[0].num_ranks, config.placement, config.handoff, config.gamma) == (3, "hop", "ship", 4)
    assert (rows[2].config(rows[2].variants[0]).fill, rows[2].num_ranks) == (2, 4)


def test_a_case_changes_the_profile_and_the_gammas_worth_trying(opened: Any) -> None:
    cases = [{"name": "as it is"}, {"name": "b", "acceptance": 0.9, "target": {"pass_ms": 30}, "num_ranks": 2}]
    first, second = opened(EMULATED | {"rows": ["sd", "pipelined"], "cases": cases}).cases
    assert first.new_profile is None and first.profile.acceptance == 0.7
    assert second.profile.acceptance == 0.9 and second.profile.ratio == 2
    assert second.new_profile["draft"] == yaml.safe_load(PROFILE.read_text())["draft"]
    assert len(first.rows[0].variants) == 16 and len(second.rows[0].variants) == 4
    assert first.rows[1].planned and second.rows[0].num_ranks == 2
    assert first.options["seed"] == 0


def test_what_decides_a_run_is_in_the_digest(opened: Any) -> None:
    base = opened(EMULATED)
    assert opened(EMULATED | {"title": "b", "rounds": 7}).digest == base.digest
    assert opened(EMULATED, Limits(rounds=2, prompts=1, rows=("ar",))).digest == base.digest
    for change in ({"rows": ["sd"]}, {"num_ranks": 3}, {"workload": {"name": "tokens", "num_prompts": 3}}):
        assert opened(EMULATED | change).digest != base.digest


def test_a_profile_that_has_changed_since_is_another_experiment(opened: Any, tmp_path: Path) -> None:
    copy = tmp_path / "machine.yaml"
    copy.write_text(PROFILE.read_text())
    content = EMULATED | {"options": {"emulate": str(copy)}}
    before = opened(content).digest
    copy.write_text(PROFILE.read_text().replace("acceptance: 0.7", "acceptance: 0.6"))
    assert opened(content).digest != before


def test_limits(opened: Any) -> None:
    limited = opened(PLAIN | {"rows": ["ar", "hop", "sd"]}, Limits(rounds=9, prompts=1, rows=("hop", "ar")))
    assert limited.rounds == 9
    assert [row.name for row in limited.cases[0].rows] == ["ar", "hop"]
    with pytest.raises(UserError, match=r"--rows hopp: no such row in .*; did you mean hop\?"):
        opened(PLAIN | {"rows": ["ar", "hop"]}, Limits(rows=("hopp",)))


def test_values_of_a_command_line_take_the_place_of_those_in_the_rows(opened: Any) -> None:
    content = PLAIN | {"rows": ["ar", {"name": "hop", "like": "hop", "each": {"gamma": [2, 3]}}]}
    given = opened(content, Limits(each={"gamma": (5,)}))
    assert [row.name for row in given.cases[0].rows] == ["ar", "hop, gamma 5"]
    assert given.digest != opened(content).digest
    with pytest.raises(UserError, match="has no row that runs with each of several values of fill"):
        opened(content, Limits(each={"fill": (1,)}))


def test_an_option_by_two_of_its_names_is_refused(opened: Any) -> None:
    with pytest.raises(UserError, match=r"max_tokens 17: is given twice, also as max_new_tokens"):
        opened(PLAIN | {"options": {"max_new_tokens": 16, "max_tokens": 17}})


def test_files_of_a_sweep_and_shapes_that_have_changed_since_are_another_experiment(
    opened: Any, tmp_path: Path
) -> None:
    configs = PROFILE.parents[1]
    placement, shape = tmp_path / "place.yaml", tmp_path / "shape.yaml"
    shape.write_text((configs / "models" / "cpu_small.yaml").read_text())
    placement.write_text((configs / "placements" / "four_gpus_hop.yaml").read_text())
    row = {"name": "x", "sweep": {"placement": [str(placement), "hop"]}}
    pair = {"target": f"synthetic:{shape}", "draft": f"synthetic:{shape}"}
    content = PLAIN | {"rows": [row], "options": pair}
    digests = [opened(content).digest]
    placement.write_text(placement.read_text().replace("fill: 1", "fill: 2"))
    digests.append(opened(content).digest)
    shape.write_text(shape.read_text().replace("seed: 0", "seed: 1"))
    digests.append(opened(content).digest)
    assert len(set(digests)) == 3


@pytest.mark.parametrize(("ratio", "number", "last"), [(0.01, 2, 2), (8, 16, 16), (32, 64, 64), (10_000, 64, 20_000)])
def test_no_more_gammas_are_tried_than_somebody_could_wait_for(ratio: float, number: int, last: int) -> None:
    gammas = resolving._gammas(profile(draft__pass_ms=40.0 / ratio))
    assert (len(gammas), gammas[-1]) == (number, last)
    assert list(gammas) == sorted(set(gammas)) and gammas[0] >= 1
