"""Sums over sums, ratios of pairs, intervals and shares, on made-up runs with round numbers."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pearl_pp.experiments.retained import bootstrap
from pearl_pp.experiments.retained.bootstrap import MIN_PROMPTS, ratio_interval
from pearl_pp.experiments.retained.figures import Line, Text, lines, sweeps
from pearl_pp.experiments.retained.machines import Machine, machine_names
from tests.unit.experiments.retained.made_up import MACHINE, experiment, record


def by_name(records: list) -> dict[str, Line]:
    return {line.name: line for line in lines(records)}


def test_tokens_per_second_are_sum_over_sum_and_the_median_is_over_runs() -> None:
    row = by_name([record("hop", 10.0, prompt="a"), record("hop", 20.0, prompt="b"), record("hop", 40.0, prompt="c")])
    assert row["hop"].tokens_per_s == pytest.approx(300 / (10 + 5 + 2.5))
    assert row["hop"].median == 20
    assert row["hop"].quartiles == (15, 30)
    assert (row["hop"].num_runs, row["hop"].num_prompts, row["hop"].num_rounds) == (3, 3, 1)


def test_ratios_are_over_the_reference_rows() -> None:
    rows = by_name(experiment(prompts=MIN_PROMPTS))
    assert rows["pipelined"].retained is not None and rows["pipelined"].retained.value == pytest.approx(1.2)
    assert rows["hop"].retained is not None and rows["hop"].retained.value == pytest.approx(0.98)
    assert rows["hop"].retained.interval == pytest.approx((0.98, 0.98))  # equal in every prompt
    assert rows["hop"].retained.num_pairs == 2 * MIN_PROMPTS
    assert rows["hop"].over_plain is not None and rows["hop"].over_plain.value == pytest.approx(1.96)
    assert rows["hop"].over_speculative is None  # no such row
    assert rows["dedicated"].retained == (1.0, None, 2 * MIN_PROMPTS)


def test_only_pairs_that_both_rows_have_are_compared() -> None:
    """A stopped bench lacks runs; the prompts that one row lacks must not count in the other."""
    records = experiment(prompts=2, rounds=1)
    slow = record("dedicated", 1.0, prompt="p/9", placement="dedicated", num_ranks=5, variant="gamma 8")
    rows = by_name([*records, slow])
    assert rows["hop"].retained is not None and rows["hop"].retained.value == pytest.approx(0.98)
    assert rows["hop"].retained.num_pairs == 2


def test_the_reference_is_the_fastest_of_its_sweep_with_one_chunk_in_flight() -> None:
    def dedicated(name: str, rate: float, pattern: tuple[int, int] = (1, 4)) -> dict:
        return record(name, rate, placement="dedicated", num_ranks=5, pattern=pattern)

    records = [dedicated("dedicated, gamma 4", 5.0), dedicated("dedicated, gamma 8", 10.0), record("hop", 9.0)]
    assert by_name(records)["hop"].retained == (pytest.approx(0.9), None, 1)
    pipelined = dedicated("dedicated, verify interval 1", 20.0, (1, 1))
    assert by_name([*records, pipelined])["hop"].retained == (pytest.approx(0.9), None, 1)


def test_places_are_not_compared_with_one_another() -> None:
    other = MACHINE | {"hostname": "there"}
    dedicated = record("dedicated", 10.0, placement="dedicated", num_ranks=5)
    for changes in ({"case": "other"}, {"machine": other}, {"mode": "real"}):
        assert by_name([dedicated, record("hop", 5.0, **changes)])["hop"].retained is None
    assert by_name([dedicated, record("hop", 5.0)])["hop"].retained is not None


def test_another_title_does_not_make_it_another_experiment() -> None:
    """A title may be mended between runs of the same experiment."""
    reference = record("dedicated", 10.0, placement="dedicated", num_ranks=5)
    renamed = record("hop", 9.0) | {"experiment": {"name": "made_up", "title": "Better", "digest": "d1"}}
    assert by_name([reference, renamed])["hop"].retained == (pytest.approx(0.9), None, 1)


def test_the_load_of_a_machine_does_not_make_it_another() -> None:
    records = [record("hop", 5.0), record("hop", 5.0, round=1, machine=MACHINE | {"load": 7.0})]
    assert len(lines(records)) == 1


def test_the_number_of_a_card_does_not_either() -> None:
    records = [record("hop", 5.0, machine=MACHINE | {"device": name}) for name in ("cuda", "cuda:0")]
    assert len(lines(records)) == 1


def test_machines_of_one_kind_are_told_apart_by_their_names() -> None:
    here, there, gpu = Machine("a", "cpu", 2, "cpu"), Machine("b", "cpu", 2, "cpu"), Machine("c", "cpu", 2, "H200")
    assert machine_names([here, gpu])[here] == "cpu: cpu, 2 cores"
    assert machine_names([here, there])[there] == "cpu: cpu, 2 cores (b)"


def test_metrics_are_over_all_runs() -> None:
    line = by_name([record("hop", 10.0, prompt="a"), record("hop", 20.0, prompt="b")])["hop"]
    assert line.acceptance_rate == 0.75
    assert line.mean_accepted_tokens == 3
    assert line.tokens_per_target_pass == pytest.approx(101 / 50)
    assert line.handoff_bytes_per_token == 10
    assert line.communication == pytest.approx(0.1)
    assert line.waiting == pytest.approx(0.5)
    assert line.idle == pytest.approx((0.5,) * 4)
    assert line.ttft_s == 0.5


def test_a_reference_of_transformers_has_no_metrics_of_ranks() -> None:
    line = by_name([record("hf", 10.0, placement=None)])["hf"]
    assert line.tokens_per_s == 10
    missing = (line.acceptance_rate, line.mean_accepted_tokens, line.communication, line.handoff_bytes_per_token)
    assert missing == (None, None, None, None)
    assert line.idle == () and line.how == ""


def test_a_run_without_a_second_token_has_no_rate() -> None:
    nothing = {
        "num_decode_tokens": 0,
        "decode_s": 0.0,
        "decode_tokens_per_s": None,
        "num_output_tokens": 1,
        "ttft_s": 1,
    }
    records = [record("hf", 1.0, placement=None, metrics=nothing), record("ar", 1.0, placement="", strategy="ar")]
    line = by_name(records)["hf"]
    assert (line.tokens_per_s, line.median, line.quartiles, line.over_plain) == (None, None, None, None)


def test_texts_are_counted() -> None:
    records = [record("hop", 1.0, round=r, text_equals_oracle=equal) for r, equal in enumerate((True, False, None))]
    assert by_name(records)["hop"].text == Text(num_equal=1, num_different=1)


def test_the_published_figure_stands_at_the_papers_placement_only() -> None:
    told = {"retained": 94.0, "what": "MT-bench"}
    rows = by_name(
        [
            record("hop ship", 1.0, published=told),
            record("dedicated", 1.0, placement="dedicated", published=told),
            record("hf", 1.0, placement=None, published=told),
        ]
    )
    assert [line.name for line in rows.values() if line.published] == ["hop ship"]


def test_simulated_speeds_are_sum_over_sum_too() -> None:
    records = [record("hop", 10.0, round=r, simulated_tokens_per_s=rate) for r, rate in enumerate((10.0, 40.0))]
    assert by_name(records)["hop"].simulated_tokens_per_s == pytest.approx(200 / (10 + 2.5))


def test_sweeps_are_kept_apart_from_what_counts() -> None:
    records = [record("sd", 5.0 + g, phase="sweep", variant=f"gamma {g}") for g in (2, 3)]
    records.append(record("sd", 4.0, variant="gamma 3"))
    assert by_name(records)["sd"].tokens_per_s == 4
    assert [list(variants.items()) for variants in sweeps(records).values()] == [[("gamma 2", 7), ("gamma 3", 8)]]


def test_a_run_that_adapts_is_told_by_what_most_ended_with() -> None:
    records = [record("auto", 5.0, round=r) for r in range(3)]
    for one, mode in zip(records, ("sd, gamma 3", "sd, gamma 3", "plain decoding"), strict=True):
        one["plan"]["adapts"] = True
        one["metrics"]["final_mode"] = mode
    assert by_name(records)["auto"].how == "sd, gamma 3; draft on 3 or 0, catchup"


def test_the_interval_covers_the_ratio_as_often_as_it_says() -> None:
    """Prompts of another kind each time: 95 of 100 intervals hold the true ratio, within the noise of the count."""
    generator = random.Random(1)
    held = 0
    for _ in range(200):
        drawn = [(generator.lognormvariate(0, 0.1), generator.lognormvariate(0, 0.1)) for _ in range(30)]
        interval = ratio_interval(
            [(100, 1 / (2 * ours)) for ours, _ in drawn], [(100, 1 / other) for _, other in drawn]
        )
        assert interval is not None
        held += interval[0] <= 2 <= interval[1]
    assert 175 <= held <= 199


def test_few_prompts_have_no_interval_and_the_same_records_give_the_same() -> None:
    pairs = [(100.0, float(number)) for number in range(1, MIN_PROMPTS + 1)]
    assert ratio_interval(pairs[1:], pairs[:-1]) is None
    assert ratio_interval(pairs, pairs[::-1]) is not None
    assert ratio_interval(pairs, pairs[::-1]) == ratio_interval(pairs, pairs[::-1])


@given(st.lists(st.tuples(st.floats(1, 9), st.floats(1, 9)), min_size=MIN_PROMPTS, max_size=9))
def test_an_interval_lies_within_the_prompts_own_ratios_and_is_ordered(seconds: list[tuple[float, float]]) -> None:
    ours, others = ([(10.0, own) for own, _ in seconds], [(10.0, other) for _, other in seconds])
    interval = ratio_interval(ours, others)
    assert interval is not None
    ratios = [other / own for own, other in seconds]
    assert min(ratios) - 1e-9 <= interval[0] <= interval[1] <= max(ratios) + 1e-9


def test_prompts_are_drawn_for_both_rows_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts that differ a hundredfold in speed, alike in both rows: were rows drawn apart, the interval was wide."""
    monkeypatch.setattr(bootstrap, "NUM_RESAMPLES", 200)
    ours = [(100.0, float(s)) for s in np.logspace(0, 2, 10)]
    assert ratio_interval(ours, [(100.0, 2 * s) for _, s in ours]) == pytest.approx((2.0, 2.0))
