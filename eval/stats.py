"""Intervals and paired tests, all by scipy.

Rates have Wilson's interval. An F1 is no share of items, so Wilson's interval does not apply to it: items are resampled
(percentile bootstrap, seeded). Where all items have the same counts the bootstrap has no width; read such an interval
beside the number of items. Two systems on the same items are compared item by item: paired bootstrap of the difference
and McNemar's exact test. 95% throughout. The order of the items never matters: they are sorted before they are
resampled, so the same items and the same seed give the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from plansmith.eval.metrics import Counts

CONFIDENCE = 0.95
_BATCH = 2_000_000


class Interval(NamedTuple):
    """A 95% interval."""

    low: float
    high: float


class Metric(BaseModel):
    """A metric over items, with what it is a share of."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    value: float | None
    """Hits over scored; for a mean the mean; for an F1 the micro F1 of the summed counts. None: nothing was scored."""
    hits: int
    """Items that meet the metric; for a mean or an F1, items whose own value is 1."""
    scored: int
    """Items that were scored: all but the unscored ones."""
    unscored: int
    """Items without a reference: neither right nor wrong."""
    low: float
    """Lower end of the 95% interval; 0 where nothing was scored."""
    high: float
    """Upper end; 1 where nothing was scored."""
    tp: int | None = None
    """F1 only: matched elements over all items."""
    fp: int | None = None
    """F1 only: superfluous elements."""
    fn: int | None = None
    """F1 only: missed elements."""


class Difference(NamedTuple):
    """Tuned minus base on the same items."""

    difference: float
    low: float
    high: float
    p_value: float | None
    """McNemar's exact test; None for an F1, which has no pairs of right and wrong."""
    only_base: int
    """Items that only the base system has right."""
    only_tuned: int
    """Items that only the tuned system has right."""
    pairs: int = 0
    """Items that both were scored on: what the difference is over."""


def wilson(hits: int, scored: int) -> Interval:
    """Wilson's interval of a rate; (0, 1) where nothing was scored."""
    if scored == 0:
        return Interval(0.0, 1.0)
    result: Any = _scipy_stats().binomtest(hits, scored).proportion_ci(confidence_level=CONFIDENCE, method="wilson")
    return _holding(hits / scored, float(result.low), float(result.high))


def rate(outcomes: Sequence[bool | None]) -> Metric:
    """A rate over items; None marks an item that could not be scored."""
    scored = [outcome for outcome in outcomes if outcome is not None]
    hits = sum(scored)
    low, high = wilson(hits, len(scored))
    value = hits / len(scored) if scored else None
    return Metric(value=value, hits=hits, scored=len(scored), unscored=len(outcomes) - len(scored), low=low, high=high)


def micro_f1(counts: Sequence[Counts | None], *, seed: int, resamples: int = 2000) -> Metric:
    """Micro F1 over items with a bootstrap interval over items; None marks an item that could not be scored."""
    scored = [count for count in counts if count is not None]
    total = Counts(*(sum(count[i] for count in scored) for i in range(3)))
    value = total.f1 if scored else None
    columns = [[2 * c.tp for c in scored], [2 * c.tp + c.fp + c.fn for c in scored]]
    low, high = _bootstrap(columns, _ratio, seed=seed, resamples=resamples) or (0.0, 1.0)
    low, high = (low, high) if value is None else _holding(value, low, high)
    return Metric(
        value=value,
        hits=sum(count.f1 == 1 for count in scored),
        scored=len(scored),
        unscored=len(counts) - len(scored),
        low=low,
        high=high,
        tp=total.tp,
        fp=total.fp,
        fn=total.fn,
    )


def mean(values: Sequence[float | None], *, seed: int, resamples: int = 2000) -> Metric:
    """Mean over items of a number from 0 to 1, with a bootstrap interval; None marks an item that was not scored."""
    scored = [float(value) for value in values if value is not None]
    value = math.fsum(scored) / len(scored) if scored else None
    low, high = _bootstrap([scored], _mean, seed=seed, resamples=resamples) or (0.0, 1.0)
    low, high = (low, high) if value is None else _holding(value, low, high)
    hits, unscored = scored.count(1.0), len(values) - len(scored)
    return Metric(value=value, hits=hits, scored=len(scored), unscored=unscored, low=low, high=high)


def paired_rate(base: Sequence[bool], tuned: Sequence[bool], *, seed: int, resamples: int = 2000) -> Difference:
    """Difference of two rates on the same items, in the same order."""
    if len(base) != len(tuned) or not base:
        raise ValueError(f"paired comparison needs the same items, at least one; found {len(base)} and {len(tuned)}.")
    differences = [int(b) - int(a) for a, b in zip(base, tuned, strict=True)]
    value = sum(differences) / len(differences)
    low, high = _bootstrap([differences], _mean, seed=seed, resamples=resamples) or (-1.0, 1.0)
    only_base, only_tuned = differences.count(-1), differences.count(1)
    p_value = mcnemar(only_base, only_tuned)
    return Difference(value, *_holding(value, low, high), p_value, only_base, only_tuned, len(base))


def paired_mean(base: Sequence[float], tuned: Sequence[float], *, seed: int, resamples: int = 2000) -> Difference:
    """Difference of two means of values from 0 to 1 on the same items, in the same order; right is an item at 1."""
    if len(base) != len(tuned) or not base:
        raise ValueError(f"paired comparison needs the same items, at least one; found {len(base)} and {len(tuned)}.")
    value = (math.fsum(tuned) - math.fsum(base)) / len(base)
    differences = [b - a for a, b in zip(base, tuned, strict=True)]
    low, high = _bootstrap([differences], _mean, seed=seed, resamples=resamples) or (-1.0, 1.0)
    only_base = sum(a == 1 != b for a, b in zip(base, tuned, strict=True))
    only_tuned = sum(b == 1 != a for a, b in zip(base, tuned, strict=True))
    return Difference(value, *_holding(value, low, high), None, only_base, only_tuned, len(base))


def paired_f1(base: Sequence[Counts], tuned: Sequence[Counts], *, seed: int, resamples: int = 2000) -> Difference:
    """Difference of two micro F1 on the same items, in the same order."""
    if len(base) != len(tuned) or not base:
        raise ValueError(f"paired comparison needs the same items, at least one; found {len(base)} and {len(tuned)}.")
    columns = [[2 * c.tp for c in base], [2 * c.tp + c.fp + c.fn for c in base]]
    columns += [[2 * c.tp for c in tuned], [2 * c.tp + c.fp + c.fn for c in tuned]]
    totals = [Counts(*(sum(c[i] for c in counts) for i in range(3))).f1 for counts in (base, tuned)]
    value = totals[1] - totals[0]
    low, high = _bootstrap(columns, _ratio_difference, seed=seed, resamples=resamples) or (-1.0, 1.0)
    only_base = sum(a.f1 == 1 != b.f1 for a, b in zip(base, tuned, strict=True))
    only_tuned = sum(b.f1 == 1 != a.f1 for a, b in zip(base, tuned, strict=True))
    return Difference(value, *_holding(value, low, high), None, only_base, only_tuned, len(base))


def mcnemar(only_base: int, only_tuned: int) -> float:
    """P value of McNemar's exact test: the discordant items under a fair coin; 1 where there are none."""
    if only_base + only_tuned == 0:
        return 1.0
    result: Any = _scipy_stats().binomtest(only_tuned, only_base + only_tuned, 0.5)
    return float(result.pvalue)


def quantile(values: Sequence[float], q: float) -> float | None:
    """Quantile by linear interpolation; None for no values."""
    if not values:
        return None
    import numpy as np

    return float(np.quantile(np.asarray(values, dtype=float), q))


def _scipy_stats() -> Any:
    """`scipy.stats`, imported when it is needed (it takes seconds); it comes without types."""
    return import_module("scipy.stats")


def _holding(value: float, low: float, high: float) -> Interval:
    """The interval, widened where rounding or the percentiles leave the value outside."""
    return Interval(min(low, value), max(high, value))


def _bootstrap(
    columns: Sequence[Sequence[float]], statistic: Callable[..., Any], *, seed: int, resamples: int
) -> Interval | None:
    """Percentile bootstrap over items, sorted, their columns kept together; None for fewer than two items.

    One column goes to the statistic as it is. Several are parts and wholes of ratios in turn, and each such two go as
    one complex number, so that resampling looks up once what belongs together.
    """
    size = len(columns[0])
    if size < 2:
        return None
    import numpy as np

    data = np.asarray(columns, dtype=float)
    data = data[:, np.lexsort(data)]
    samples = (data[0],) if len(data) == 1 else tuple(data[0::2] + 1j * data[1::2])
    result: Any = _scipy_stats().bootstrap(
        samples,
        statistic,
        n_resamples=resamples,
        batch=max(1, _BATCH // size),
        vectorized=True,
        paired=len(samples) > 1,
        confidence_level=CONFIDENCE,
        method="percentile",
        random_state=np.random.default_rng(seed),
    )
    interval = result.confidence_interval
    return Interval(float(interval.low), float(interval.high))


def _mean(values: Any, axis: int = -1) -> Any:
    return values.mean(axis=axis)


def _ratio(values: Any, axis: int = -1) -> Any:
    """Micro F1 of resampled items; 1 where they hold nothing to find and nothing was put forward."""
    import numpy as np

    total = values.sum(axis=axis)
    return np.where(total.imag > 0, total.real / np.maximum(total.imag, 1), 1.0)


def _ratio_difference(values: Any, other_values: Any, axis: int = -1) -> Any:
    return _ratio(other_values, axis) - _ratio(values, axis)
