"""Intervals: known values, bounds for any input, and what paired tests find."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plansmith.eval.metrics import Counts
from plansmith.eval.stats import mcnemar, micro_f1, paired_f1, paired_rate, quantile, rate, wilson

counts = st.builds(Counts, st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))


def test_wilson_gives_the_published_interval():
    low, high = wilson(38, 40)
    assert (round(low, 4), round(high, 4)) == (0.8350, 0.9862)
    assert wilson(0, 0) == (0.0, 1.0)


def test_a_rate_counts_unscored_items_apart():
    metric = rate([True, False, None, True])
    assert (metric.hits, metric.scored, metric.unscored) == (2, 3, 1)
    assert metric.value == pytest.approx(2 / 3)


def test_nothing_scored_has_no_value_and_the_widest_interval():
    for metric in (rate([]), rate([None]), micro_f1([], seed=0), micro_f1([None], seed=0)):
        assert (metric.value, metric.low, metric.high, metric.scored) == (None, 0.0, 1.0, 0)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([True, False, None]), max_size=50))
def test_a_rate_lies_within_its_interval_and_within_zero_and_one(outcomes: list[bool | None]):
    metric = rate(outcomes)
    assert 0 <= metric.low <= metric.high <= 1
    assert metric.scored + metric.unscored == len(outcomes)
    if metric.value is not None:
        assert metric.low <= metric.value <= metric.high
        assert metric.value == metric.hits / metric.scored


@settings(max_examples=40, deadline=None)
@given(st.lists(counts | st.none(), max_size=12))
def test_an_f1_lies_within_its_interval_and_within_zero_and_one(items: list[Counts | None]):
    metric = micro_f1(items, seed=3, resamples=100)
    assert 0 <= metric.low <= metric.high <= 1
    if metric.value is not None:
        assert metric.low <= metric.value <= metric.high


def test_micro_f1_is_taken_over_summed_counts_and_its_seed_decides():
    items = [Counts(1, 0, 1), Counts(3, 1, 0), Counts(0, 0, 2), Counts(2, 2, 2)]
    metric = micro_f1(items, seed=1)
    assert metric.value == pytest.approx(12 / (12 + 3 + 5))
    assert (metric.tp, metric.fp, metric.fn, metric.hits) == (6, 3, 5, 0)
    assert metric == micro_f1(items, seed=1)
    assert 0 < metric.low < metric.value < metric.high < 1


def test_one_item_says_nothing_about_the_spread():
    metric = micro_f1([Counts(1, 0, 1)], seed=0)
    assert (metric.low, metric.high) == (0.0, 1.0)
    assert paired_rate([True], [False], seed=0)[:3] == (-1.0, -1.0, 1.0)


def test_the_same_answers_show_no_difference():
    found = paired_rate([True, False] * 10, [True, False] * 10, seed=0)
    assert (found.difference, found.low, found.high, found.p_value) == (0, 0, 0, 1)


def test_a_clear_difference_is_shown_and_a_small_one_is_not():
    clear = paired_rate([False] * 20, [True] * 15 + [False] * 5, seed=0)
    assert (clear.difference, clear.only_base, clear.only_tuned) == (0.75, 0, 15)
    assert clear.low > 0
    assert clear.p_value is not None
    assert clear.p_value < 0.001
    small = paired_rate([False] * 19 + [True], [True, True] + [False] * 18, seed=0)
    assert small.low <= 0 <= small.high
    assert small.p_value == 1


def test_mcnemar_is_the_exact_test_of_the_discordant_items():
    assert mcnemar(0, 0) == 1
    assert mcnemar(1, 5) == pytest.approx(0.21875)


def test_the_paired_difference_of_an_f1_has_an_interval_around_it():
    base = [Counts(0, 2, 2), Counts(1, 1, 1), Counts(0, 1, 2)] * 4
    tuned = [Counts(2, 0, 0), Counts(2, 0, 0), Counts(1, 1, 1)] * 4
    found = paired_f1(base, tuned, seed=0)
    assert found.difference == pytest.approx(10 / 12 - 2 / 11)
    assert found.low < found.difference < found.high
    assert (found.only_base, found.only_tuned, found.p_value) == (0, 8, None)


def test_unlike_items_cannot_be_paired():
    with pytest.raises(ValueError, match="same items"):
        paired_rate([True], [True, False], seed=0)


def test_quantiles_interpolate_and_are_absent_for_no_values():
    assert quantile([1, 2, 3, 4], 0.5) == 2.5
    assert quantile([], 0.5) is None
