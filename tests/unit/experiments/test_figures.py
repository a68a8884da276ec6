"""Medians, ratios and the ideal, on runs with round numbers."""

import pytest

from pearl_pp.experiments.figures import headline, ideal, paired_ratio, parts, pass_figures, speed, window_figures
from tests.unit.experiments.synthetic import record, run, window


def test_speed_is_the_median_over_runs_and_the_sum_over_the_sum() -> None:
    figures = speed([run(50.0), run(100.0), run(200.0), run(None)])
    assert figures["tokens_per_s"] == 100
    assert figures["all_tokens_per_s"] == pytest.approx(400 / (2 + 1 + 0.5))
    assert figures["acceptance_rate"] == 0.5
    assert figures["tokens_per_target_pass"] == pytest.approx(101 / 50)


def test_a_ratio_is_the_median_of_the_pairs_not_the_ratio_of_the_medians() -> None:
    ours, others = [run(10.0), run(20.0), run(90.0)], [run(10.0), run(40.0), run(30.0)]
    assert paired_ratio(ours, others) == 1.0
    assert paired_ratio([run(None)], [run(3.0)]) is None


def test_the_ideal_is_the_longer_of_the_target_and_gamma_draft_passes() -> None:
    assert ideal(8.0, 5.0, 1.0) == 8.0
    assert ideal(8.0, 5.0, 2.0) == 10.0
    assert ideal(8.0, None, None) == 8.0


def test_window_beside_the_ideal() -> None:
    slow = window(30.0, num_fed=5, target_ms=12.0, draft_ms=(2.0,))
    figures = window_figures([run(1.0, [window(11.0), window(13.0)]), run(1.0, [slow])])
    assert figures is not None
    assert (figures["draft_pass_ms"], figures["draft_ms"]) == (2.0, 10.0)
    assert figures["kinds"]["all"] == {
        "num_windows": 3, "window_ms": 13.0, "target_ms": 8.0, "ideal_ms": 10.0, "excess_ms": 3.0
    }  # fmt: skip
    assert figures["kinds"]["one token fed"]["window_ms"] == 12.0
    assert figures["kinds"]["several fed"]["excess_ms"] == 18.0
    assert window_figures([run(1.0)]) is None


def test_without_a_draft_the_ideal_is_the_targets_pass_alone() -> None:
    figures = window_figures([run(1.0, [window(9.0, draft_ms=())], gamma=None)])
    assert figures is not None
    assert (figures["draft_pass_ms"], figures["kinds"]["all"]["excess_ms"]) == (None, 1.0)
    assert "several fed" not in figures["kinds"]


def test_several_windows_in_flight_divide_the_targets_pass() -> None:
    figures = window_figures([run(1.0, [window(9.0)], gamma=1.0, interval_share=0.5)])
    assert figures is not None
    assert figures["kinds"]["all"]["ideal_ms"] == 4.0
    assert figures["kinds"]["one token fed"]["ideal_ms"] == 8.0  # after a restart there is one alone


def test_a_pass_of_a_replica_is_made_of_its_shards_passes() -> None:
    figures = window_figures([run(1.0, [window(20.0)], num_shards=3)])
    assert figures is not None
    assert (figures["draft_pass_ms"], figures["kinds"]["all"]["ideal_ms"]) == (6.0, 30.0)


def test_parts_are_of_the_middle_half_and_add_up() -> None:
    figures = parts([window(ms) for ms in (500.0, 10.0, 12.0, 9.0)])
    assert figures["window_ms"] == 11.0
    assert figures["path"]["python"] == 3.0
    for numbers in (figures["path"], *figures["ranks"]):
        assert sum(numbers.values()) == pytest.approx(figures["window_ms"])


def test_passes_are_compared_side_by_side() -> None:
    passes = [(0.010, [0.004, 0.004]), (0.020, [0.011, 0.011]), (0.010, [0.003, 0.006])]
    figures = pass_figures({"1": passes}, {"1": [(0.002, [0.001])]})
    assert figures["1"]["target"]["ratio"] == pytest.approx(0.9)
    assert figures["1"]["target"]["stages_ms"] == pytest.approx([4.0, 6.0])
    assert figures["1"]["target"]["together_ms"] == pytest.approx(9.0)
    assert figures["1"]["target"]["transformers_ms"] == pytest.approx(10.0)
    assert figures["1"]["draft"]["ratio"] == pytest.approx(0.5)


def test_the_headline_holds_the_best_configurations() -> None:
    figures = headline(record())
    assert figures["hop tokens/s"] == (100.0, True)
    assert figures["hop window - ideal ms"] == (2.0, False)
    assert figures["draft pass / transformers, 1 tokens"] == (0.5, False)
    assert figures["hop/ar"] == (1.5, True)
