"""`pearl-pp bench retained`, `ablation`, `sweep` and `report`: command lines, exit codes, progress."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pearl_pp import cli
from pearl_pp.console import bench_retained
from pearl_pp.console.bench_retained import settings
from pearl_pp.errors import UserError
from pearl_pp.experiments.lines import ProgramFailed
from pearl_pp.experiments.retained import groups
from pearl_pp.experiments.retained.job import Job
from pearl_pp.experiments.retained.store import read_records

CONTENT = {
    "title": "A title",
    "num_ranks": 2,
    "rounds": 1,
    "options": {"max_new_tokens": 3},
    "workload": {"name": "builtin", "num_prompts": 2},
    "rows": ["ar", {"name": "dedicated", "like": "dedicated", "options": {"gamma": 3}}],
}
METRICS = {
    "num_output_tokens": 3, "num_decode_tokens": 2, "decode_s": 1.0, "decode_tokens_per_s": 2.0, "ttft_s": 0.1,
}  # fmt: skip
PLAN = {"starts_with": "as it does", "adapts": False, "strategy": "pearl"}
PLACEMENT = {
    "name": "dedicated",
    "replicas": [],
    "handoff": "catchup",
    "fill": 1,
    "verify_interval": 2,
    "target": [1, 1],
}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command with groups that answer at once, or do what `fault` does."""

    def bench(*options: str, fault: Callable[[Job, dict[str, Any]], None] = lambda job, answer: None) -> int:
        class Fake(groups.Groups):
            def run(self, job: Job) -> dict[str, Any]:
                answer: dict[str, Any] = {
                    "token_ids": [1, 2, 3], "prompt_token_ids": [1], "text": "x", "finish_reason": "length",
                    "metrics": dict(METRICS), "plan": {**PLAN, "placement": PLACEMENT}, "versions": {},
                    "machine": {"cpu": "a", "cores": 2, "device": "cpu", "hostname": "h", "load": 0.5},
                    "mode": "real", "gamma": None, "notes": [], "trace": None,
                }  # fmt: skip
                fault(job, answer)
                return answer

        monkeypatch.setattr(groups, "Groups", Fake)
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(CONTENT))
        config = ["--config", str(tmp_path / "mine.yaml"), "--out", str(tmp_path / "out")]
        return cli.main(["bench", "retained", *config, *options])

    return bench


def test_it_prints_the_answer_and_leaves_the_records(
    bench: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench() == 0
    printed = capsys.readouterr().out
    assert "A title" in printed and "`dedicated`" in printed and "table.md" in printed
    assert len(read_records(tmp_path / "out")) == 2 + 2 * 2
    assert bench("--rounds", "3", "--prompts-limit", "1", "--rows", "ar") == 0
    assert len(read_records(tmp_path / "out")) == 6 + 2
    assert cli.main(["report", str(tmp_path / "out"), "--out", str(tmp_path / "merged")]) == 0
    assert (tmp_path / "merged" / "table.csv").exists()


def test_a_text_that_differs_ends_with_1(bench: Callable[..., int], tmp_path: Path) -> None:
    def differs(job: Job, answer: dict[str, Any]) -> None:
        if job.num_ranks == 3:
            answer["token_ids"] = [1, 2, 4]

    assert bench(fault=differs) == 1
    assert "NOT every text" in (tmp_path / "out" / "table.md").read_text()
    assert bench() == 1, "what differed still does"


def test_a_row_that_breaks_off_ends_with_1_until_it_has_run(bench: Callable[..., int], tmp_path: Path) -> None:
    def breaks(job: Job, answer: dict[str, Any]) -> None:
        if job.num_ranks == 3:
            raise ProgramFailed("3 ranks: out of memory")

    assert bench(fault=breaks) == 1
    assert "3 ranks: out of memory" in (tmp_path / "out" / "table.md").read_text()
    assert bench() == 0
    assert json.loads((tmp_path / "out" / "skipped.json").read_text()) == []


def test_where_every_row_is_refused_the_reason_is_told_and_the_code_is_2(
    bench: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses(job: Job, answer: dict[str, Any]) -> None:
        if job.kind == "engine":
            raise UserError("--memory-gb", "1", "too little")

    assert bench(fault=refuses) == 2, "what the oracle has said is no result"
    assert "error: nothing has been recorded: --memory-gb 1: too little\n" in capsys.readouterr().err


def test_stopped_it_shows_what_there_is(
    bench: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stops(job: Job, answer: dict[str, Any]) -> None:
        if job.num_ranks == 3:
            raise KeyboardInterrupt

    assert bench(fault=stops) == 130
    assert (tmp_path / "out" / "table.md").exists()
    assert "the same command goes on" in capsys.readouterr().err
    assert bench() == 0


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["bench", "retained"], "--out: say where results go"),
        (["bench", "retained", "--out", "x"], "--config: say which experiment"),
        (["bench", "retained", "--out", "x", "--config", "/nowhere.yaml"], "--config /nowhere.yaml: no such file"),
        (["bench", "retained", "--out", "x", "--cofnig", "y"], "--cofnig: no such option; did you mean --config?"),
        (["bench", "retained", "--out", "x", "--config", "y", "--rounds", "0"], "--rounds 0: must be a whole number"),
        (["bench", "retained", "--out", "x", "--config", "y", "--gammas", "1"], "--gammas: no such option"),
        (["bench", "sweep", "--out", "x", "--gammas", "1,y"], "--gammas y: must be a whole number, at least 1"),
        (["bench", "ablation"], "--out: say where results go"),
        (["bench", "retained", "--out", "", "--config", "y"], "--out: say where results go"),
        (["report", "--out", "x"], "pearl-pp report: say which folders"),
        (["report", ""], "folder: needs a name"),
        (["report", "a", "--out", ""], "--out: needs a name"),
        (["report", "a", "--page="], "--page: needs a name"),
        (["report", "/nowhere", "/nowhere2"], "--out: say where the table of several folders goes"),
        (["report", "/nowhere", "--page", "a", "--out", "b"], "--page a: takes the place of --out"),
        (["report", "/nowhere", "--pgae", "a"], "--pgae: no such option; did you mean --page?"),
    ],
)
def test_a_mistake_is_one_line(argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {expected}") and err.count("\n") == 1


@pytest.mark.parametrize(
    "argv", [["bench", name, "-h"] for name in ("retained", "ablation", "sweep")] + [["report", "-h"]]
)
def test_help(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 0
    assert capsys.readouterr().out.startswith("usage: pearl-pp ")


def test_ablation_and_sweep_have_experiments_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bench_retained.Settings] = []
    monkeypatch.setattr(bench_retained, "_run", lambda chosen: seen.append(chosen) or 0)
    cli.main(["bench", "ablation", "--out", "x"])
    cli.main(["bench", "sweep", "--out", "x", "--gammas", "2,5"])
    cli.main(["bench", "sweep", "--out", "x", "--intervals", "1,2"])
    assert [Path(chosen.config).name for chosen in seen] == ["ablation.yaml", "gamma_sweep.yaml", "p_sweep.yaml"]
    for chosen in seen:
        bench_retained.open_experiment(chosen.config, chosen.limits)
    assert [dict(chosen.limits.each) for chosen in seen] == [{}, {"gamma": (2, 5)}, {"verify_interval": (1, 2)}]


def test_without_a_terminal_there_is_a_line_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 1.0, 30.0, 61.0])
    show = bench_retained._Lines(lambda: next(times))
    for done in (0, 1, 6):
        show("hop", done, 12)
    assert capsys.readouterr().err == "0 of 12 runs: hop\n6 of 12 runs, about 1 min left: hop\n"


def test_rows_may_have_spaces_around_them() -> None:
    chosen = settings(["--out", "x", "--config", "y", "--rows", "hop ship, ar"], "retained")
    assert chosen.limits.rows == ("hop ship", "ar")


def test_an_installed_package_has_no_experiments_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pearl_pp.console.bench_retained.SHIPPED", tmp_path)
    assert cli.main(["bench", "ablation", "--out", "x"]) == 2
    assert capsys.readouterr().err.startswith("error: --config: say which experiment, as in ")
