"""Intervals and tests: published values, bounds for any input, coverage, and what paired tests find.

The numbers of the published examples are facts from: R. G. Newcombe, Two-sided confidence intervals for the single
proportion, Statistics in Medicine 17 (1998), Table I, method 3; A. Agresti, Categorical Data Analysis (1990), p. 350
(approval of the president in two surveys of the same 1,600 people), its exact p value as R's package exact2x2 gives it;
P. Armitage and G. Berry, Statistical Methods in Medical Research (1994), p. 127, two culture media; M. W. Fagerland,
S. Lydersen and P. Laake, BMC Medical Research Methodology 13:91 (2013), airway reactivity before and after
transplantation; M. P. Fay, vignette "Exact McNemar's Test" of exact2x2.
"""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from plansmith.eval.metrics import Counts
from plansmith.eval.stats import mcnemar, micro_f1, paired_f1, paired_mean, paired_rate, quantile, rate, wilson

counts = st.builds(Counts, st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))
pairs_of_counts = st.lists(st.tuples(counts, counts), min_size=2, max_size=12)
AGRESTI = [(True, True)] * 794 + [(True, False)] * 150 + [(False, True)] * 86 + [(False, False)] * 570
"""Approval in the first and in the second survey."""


@pytest.mark.parametrize(
    ("hits", "scored", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_intervals_of_newcombes_table(hits: int, scored: int, low: float, high: float):
    found = wilson(hits, scored)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)


def test_wilson_says_nothing_about_no_items():
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.integers(2, 30))
def test_a_wilson_interval_is_wider_for_fewer_items_and_mirrors(share: tuple[int, int], times: int):
    hits, scored = share
    few, many = wilson(hits, scored), wilson(hits * times, scored * times)
    assert many.high - many.low < few.high - few.low
    mirrored = wilson(scored - hits, scored)
    assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx(few, abs=1e-12)


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
    items = [Counts(1, 0, 1), Counts(3, 1, 0), Counts(0, 0, 2), Counts(2, 2, 2)] * 5
    assert paired_f1(items, items, seed=0)[:3] == (0, 0, 0)  # items that are resampled apart would differ


def test_a_clear_difference_is_shown_and_a_small_one_is_not():
    clear = paired_rate([False] * 20, [True] * 15 + [False] * 5, seed=0)
    assert (clear.difference, clear.only_base, clear.only_tuned) == (0.75, 0, 15)
    assert clear.low > 0
    assert clear.p_value is not None
    assert clear.p_value < 0.001
    small = paired_rate([False] * 19 + [True], [True, True] + [False] * 18, seed=0)
    assert small.low <= 0 <= small.high
    assert small.p_value == 1


@pytest.mark.parametrize(
    ("only_first", "only_second", "p_value"),
    [(150, 86, 3.716e-05), (12, 2, 0.0129), (1, 7, 0.0703), (9, 2, 0.06543), (1, 5, 0.21875), (0, 0, 1.0)],
    ids=["agresti", "armitage-berry", "fagerland", "fay", "by hand: 2 x 7 / 64", "no discordant items"],
)
def test_mcnemar_gives_the_published_exact_p_values(only_first: int, only_second: int, p_value: float):
    assert mcnemar(only_first, only_second) == pytest.approx(p_value, rel=4e-3)
    assert mcnemar(only_second, only_first) == mcnemar(only_first, only_second)


def test_the_paired_bootstrap_gives_agrestis_interval_of_the_approval_ratings():
    found = paired_rate([a for a, _ in AGRESTI], [b for _, b in AGRESTI], seed=0)
    assert (found.difference, found.only_base, found.only_tuned, found.pairs) == (-0.04, 150, 86, 1600)
    assert (round(found.low, 2), round(found.high, 2)) == (-0.06, -0.02)
    error = math.sqrt((150 + 86) - (150 - 86) ** 2 / 1600) / 1600  # Agresti's standard error, 0.0095
    assert (found.low, found.high) == pytest.approx((-0.04 - 1.96 * error, -0.04 + 1.96 * error), abs=1.5e-3)
    assert found.p_value == pytest.approx(3.716e-05, rel=1e-3)


def test_the_paired_bootstrap_covers_the_true_difference_about_95_times_in_100():
    rng = random.Random(5)
    cells = [(True, True), (True, False), (False, True), (False, False)]
    covered = 0
    for seed in range(300):
        drawn = rng.choices(cells, weights=(50, 20, 10, 20), k=120)  # true difference: 0.10 - 0.20
        found = paired_rate([a for a, _ in drawn], [b for _, b in drawn], seed=seed, resamples=400)
        covered += found.low <= -0.1 <= found.high
    assert 0.91 <= covered / 300 <= 0.98


def test_the_bootstrap_of_an_f1_agrees_with_the_interval_of_its_linearised_ratio():
    rng = random.Random(1)
    items = [Counts(rng.randint(0, 3), rng.randint(0, 2), rng.randint(0, 2)) for _ in range(2000)]
    part, whole = [2 * c.tp for c in items], [2 * c.tp + c.fp + c.fn for c in items]
    value = sum(part) / sum(whole)
    error = math.sqrt(sum((p - value * w) ** 2 for p, w in zip(part, whole, strict=True))) / sum(whole)
    found = micro_f1(items, seed=0)
    assert (found.low, found.high) == pytest.approx((value - 1.96 * error, value + 1.96 * error), abs=2e-3)


@settings(max_examples=25, deadline=None, phases=(Phase.explicit, Phase.generate))  # shrinking takes minutes here
@given(pairs_of_counts, st.randoms(use_true_random=False))
def test_no_interval_depends_on_the_order_of_the_items(items: list[tuple[Counts, Counts]], rng: random.Random):
    shuffled = rng.sample(items, len(items))
    first, second = ([[a for a, _ in pairs], [b for _, b in pairs]] for pairs in (items, shuffled))
    assert paired_f1(*first, seed=2, resamples=50) == paired_f1(*second, seed=2, resamples=50)
    assert micro_f1(first[0], seed=2, resamples=50) == micro_f1(second[0], seed=2, resamples=50)
    rates = ([[c.f1 == 1 for c in column] for column in columns] for columns in (first, second))
    found = [paired_rate(*columns, seed=2, resamples=50) for columns in rates]
    assert found[0] == found[1]


@settings(max_examples=25, deadline=None)
@given(pairs_of_counts)
def test_a_paired_interval_holds_the_difference_and_turns_with_the_systems(items: list[tuple[Counts, Counts]]):
    left, right = [a for a, _ in items], [b for _, b in items]
    found, turned = paired_f1(left, right, seed=1, resamples=50), paired_f1(right, left, seed=1, resamples=50)
    assert -1 <= found.low <= found.difference <= found.high <= 1
    assert turned.difference == pytest.approx(-found.difference)
    means = paired_mean([c.f1 for c in left], [c.f1 for c in right], seed=1, resamples=50)
    assert -1 <= means.low <= means.difference <= means.high <= 1
    assert (means.only_base, means.only_tuned) == (found.only_base, found.only_tuned)


def test_a_paired_interval_is_wider_for_fewer_items():
    some = [(True, True), (True, False), (False, True), (False, False)] * 3
    few, many = (paired_rate([a for a, _ in p], [b for _, b in p], seed=0) for p in (some, some * 25))
    assert few.high - few.low > 3 * (many.high - many.low) > 0


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
