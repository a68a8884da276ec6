"""What a reader of the table is told, and what a program is."""

from __future__ import annotations

import csv
import io

from pearl_pp.experiments.retained.answer import answer
from pearl_pp.experiments.retained.captions import captions
from pearl_pp.experiments.retained.figures import lines, sweeps
from pearl_pp.experiments.retained.store import Skipped
from pearl_pp.experiments.retained.tables import csv_text, markdown
from tests.unit.experiments.retained.made_up import MACHINE, experiment, record


def cells(text: str, row: str) -> dict[str, str]:
    """The first table line of a row, by heading."""
    table = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    headings = [heading.strip() for heading in table[0]]
    return dict(zip(headings, next(line for line in table if f"`{row}`" in line), strict=True))


def test_the_first_line_is_the_answer() -> None:
    text = markdown(lines(experiment(prompts=5)))
    assert text.splitlines()[0] == (
        "Emulated: `hop` on 4 ranks keeps 98.0 % [98.0, 98.0] of the tokens/s of PEARL with a rank of its own for the "
        "draft (`dedicated`, 5 ranks); `pipelined` on 4 ranks 120.0 % [120.0, 120.0]. Every text equals the oracle's."
    )


def test_over_several_cases_the_answer_says_from_where_to_where() -> None:
    slower = [r for r in experiment(case="other") if r["key"]["row"] != "hop"]
    slower += [record("hop", 0.9 * (10 + n), prompt=f"p/{n}", case="other") for n in range(3)]
    told = answer(lines([*experiment(), *slower]))
    assert "`hop` on 4 ranks keeps 90.0 % to 98.0 % of" in told
    assert "over 2 cases" in told


def test_of_a_sweep_the_answer_tells_the_best() -> None:
    rows = [record(f"single, gamma {g}", 5.0 + g) for g in (2, 4, 3)]
    told = answer(lines([*experiment(1, 1), *rows]))
    assert "`single, gamma 4` on 4 ranks 90.0 %" in told
    assert "gamma 3" not in told


def test_without_dedicated_the_answer_is_the_speed_up_and_without_ar_the_speed() -> None:
    plain = [r for r in experiment() if r["key"]["row"] != "dedicated"]
    assert "over those of plain decoding (`ar`): `hop` 1.96 times, `pipelined` 2.40 times." in answer(lines(plain))
    assert answer(lines([record("hop", 10.0)])) == "Emulated: tokens/s: `hop` 10.00. Every text equals the oracle's."
    assert answer([]) == "No run that counts has been recorded yet."


def test_a_wrong_text_is_in_the_answer_and_in_its_row() -> None:
    records = experiment()
    records[2]["text_equals_oracle"] = False
    text = markdown(lines(records))
    assert text.splitlines()[0].endswith("**NOT every text equals the oracle's: 1 of 6 of `hop` differ.**")
    assert cells(text, "hop")["text"] == "**NO, 1 of 6**"
    assert cells(text, "pipelined")["text"] == "equal"


def test_ranks_that_shared_cores_are_no_devices() -> None:
    warning = "Ranks shared 2 CPU cores"
    assert warning in answer(lines(experiment(mode="real")))
    assert warning not in answer(lines(experiment(mode="emulated")))
    assert warning not in answer(lines(experiment(mode="real", machine=MACHINE | {"cores": 8})))


def test_texts_without_an_oracle_are_no_equal_texts() -> None:
    text = markdown(lines([record("hop", 10.0, text_equals_oracle=None, oracle=None)]))
    assert "no oracle to compare" in text.splitlines()[0]
    assert cells(text, "hop")["text"] == "not comparable"


def test_every_title_says_where_numbers_come_from() -> None:
    for mode in ("real", "emulated"):
        text = markdown(lines(experiment(mode=mode)), sweeps=sweeps([record("sd", 5.0, phase="sweep", mode=mode)]))
        titles = [line for line in text.splitlines() if line.startswith("#") and "numbers are" not in line]
        assert len(titles) == 4 and all(f"({mode})" in title for title in titles)


def test_columns_of_places_are_there_where_lines_differ() -> None:
    alone = markdown(lines(experiment()))
    assert cells(alone, "hop").keys() & {"case", "machine", "mode", "experiment"} == set()
    there = experiment(machine=MACHINE | {"hostname": "there"}, mode="real")
    text = markdown(lines([*experiment(), *there]))
    assert cells(text, "hop")["machine"] == "cpu: made-up CPU, 2 cores (here)"
    assert cells(text, "hop")["mode"] == "emulated"
    assert "(emulated and real)" in text


def test_a_row_stands_in_the_table_with_its_figures() -> None:
    told = cells(markdown(lines(experiment(prompts=5))), "hop")
    assert told["**retained** [95 %]"] == "98.0 % [98.0, 98.0]"
    assert told["published"] == "94.0 % (MT-bench)"
    assert told["over `ar`"] == "1.96x"
    assert told["runs"] == "2 x 5"
    assert told["ran with"] == "F = 1, p = 4, gamma 8; draft on 3 or 0, catchup"
    assert "over `sd`" not in told and "simulated tokens/s" not in told  # nobody has such a figure
    emulated = cells(markdown(lines([record("hop", 9.0, simulated_tokens_per_s=10.0)])), "hop")
    assert emulated["simulated tokens/s"] == "10.00 (90.0 % reached)"


def test_generate_of_transformers_is_one_process() -> None:
    kinds = {"engine": "4", "hf": "1 process", "hf assisted": "1 process", "hf pipeline": "4"}
    text = markdown(lines([record(kind, 1.0, placement=None, kind=kind) for kind in kinds]))
    assert {kind: cells(text, kind)["ranks"] for kind in kinds} == kinds


def test_runs_that_lack_are_told() -> None:
    assert cells(markdown(lines(experiment()[:-1])), "pipelined")["runs"] == "2 x 3 - 1"


def test_names_cannot_break_the_table() -> None:
    text = markdown(lines([record("my | row", 1.0, case="a\nb"), record("other", 1.0, case="c|d")]))
    widths = {line.replace("\\|", "").count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 2 and "my \\| row" in text and "a b" in text  # two tables


def test_captions_tell_the_machine_its_load_the_dates_and_what_was_not_run() -> None:
    records = experiment()
    records[0]["machine"] = MACHINE | {"load": {"before": 0.5, "after": 2.0}}
    records[0]["notes"] = ["one thread"]
    skipped = [Skipped("case", "sharded", "", f"p/{n}", "does not fit") for n in range(3)]
    told = captions(records, [*skipped, Skipped("case", "hf pipeline", "", "", "no cards", failed=True)])
    assert told == [
        "cpu: made-up CPU, 2 cores; 24 runs that count over 3 prompts; 2026-01-02 03:04 to 2026-01-02 03:04; "
        "1-minute load 0.5 to 2.0, its own processes included; torch 1.0",
        "`ar`: one thread",
        "**not run with 3 prompts**: `sharded` (case): does not fit",
        "**not run**: `hf pipeline` (case), broke off: no cards",
    ]


def test_the_csv_holds_every_row_and_nothing_rounded() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(lines(experiment())))))
    assert [row["row"] for row in rows] == ["ar", "dedicated", "hop", "pipelined"]
    hop = rows[2]
    assert float(hop["retained"]) == 0.98 or abs(float(hop["retained"]) - 0.98) < 1e-12
    assert hop["over_sd"] == "" and hop["published_retained_percent"] == "94.0"
    assert (hop["mode"], hop["hostname"], hop["num_ranks"], hop["gamma"]) == ("emulated", "here", "4", "8.0")
    assert hop["num_texts_equal"] == "6" and hop["num_texts_different"] == "0"
    assert csv_text([]) == "experiment\n"
