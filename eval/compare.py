"""The gate: may a new system B take the place of an earlier system A?

Reads two sides (`sides.py`) on the same items and gives a verdict by metric. The drop is how much worse B is than A:
A minus B, or B minus A where lower is better. A metric passes where the drop is at most what is allowed and the share
of items that could not be scored is at most what is allowed; the gate passes where all its metrics do. The point value
decides, not the interval: whether a difference is shown at all is told beside it.

An item counts as not scored where only one of both was scored on it, where the request of either failed, or where A has
no answer (its misses make A look worse and hide a drop; B's count against B already). Items without a reference are
unscored on both sides and do not count. Where both sides hold items they are compared pair by pair over the items that
both were scored on: difference with a paired bootstrap interval, and McNemar's exact test for rates. Otherwise values
are subtracted. Items that only one side has, or that differ in query or right plans, are refused unless allowed, and
are then left out and counted. Not covered: whether an items file was scored against the same catalog; run directories
and candidate files know theirs, and other catalogs are refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, cast

from plansmith.contract.errors import CatalogMismatchError, InputError
from plansmith.contract.plan import Json
from plansmith.eval.columns import Answered, Columns, Value, summary
from plansmith.eval.metrics import MEANS, RATES, Counts
from plansmith.eval.sides import PrintedMetric, Side
from plansmith.eval.stats import Difference, Metric, paired_f1, paired_mean, paired_rate

LOWER_IS_BETTER = frozenset({"repaired", "abstained_wrong"})
"""Metrics in which a rise is a drop."""
TOLERANCE = 1e-9
"""A drop beyond what is allowed by less than this is rounding: 0.90 - 0.88 passes 0.02."""
SIGNIFICANT = 0.05


class Limits(NamedTuple):
    """What the gate allows."""

    max_drop: float
    """Share from 0 to 1 by which B may be worse in each metric."""
    max_unscored: float = 0.0
    """Share of items from 0 to 1 that may not be scored."""


@dataclass(frozen=True, slots=True)
class Check:
    """The verdict on one metric."""

    metric: str
    a: float | None
    """Over the items that both were scored on, where sides hold items."""
    b: float | None
    drop: float | None
    """How much worse B is; negative where it is better. None where nothing was scored."""
    low: float | None
    """Lower end of the 95% interval of the drop; None where values are compared."""
    high: float | None
    p_value: float | None
    """McNemar's exact test; None for other metrics than rates, and where values are compared."""
    only_a: int | None
    """Items that meet the metric with A alone."""
    only_b: int | None
    scored: int
    """Items behind the difference."""
    unscored: int
    """Items that count as not scored."""
    passed: bool
    reason: str
    """One sentence."""


@dataclass(frozen=True, slots=True)
class Gate:
    """The verdict."""

    a: str
    b: str
    items: int
    paired: bool
    limits: Limits
    checks: tuple[Check, ...]
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Json]:
        return {
            "passed": self.passed,
            "a": self.a,
            "b": self.b,
            "items": self.items,
            "paired": self.paired,
            "max_drop": self.limits.max_drop,
            "max_unscored": self.limits.max_unscored,
            "metrics": {check.metric: _without_name(check) for check in self.checks},
            "notes": list(self.notes),
        }


def compare(
    a: Side,
    b: Side,
    names: Sequence[str],
    limits: Limits,
    *,
    allow_different_items: bool = False,
    seed: int = 0,
    resamples: int = 2000,
) -> Gate:
    """Compare two sides.

    Args:
        a: the earlier system, baseline or teacher.
        b: the new one.
        names: metrics, all of which must pass.
        limits: what is allowed.
        allow_different_items: compare what is common where the items differ.
        seed: of the bootstrap.
        resamples: of that bootstrap.

    Raises:
        InputError: the limits are no shares, the items or catalogs differ, or neither side was scored in a metric.

    """
    require_limits(limits)
    if a.catalog_hash is not None and b.catalog_hash is not None and a.catalog_hash != b.catalog_hash:
        raise CatalogMismatchError(what=f"{b.label!r}", expected=a.catalog_hash, found=b.catalog_hash)
    notes = [*a.notes, *(note for note in b.notes if note not in a.notes)]
    if a.label == b.label:
        notes.append("A and B are the same; nothing is compared.")
    unique = tuple(dict.fromkeys(names))
    if isinstance(a.scores, Columns) and isinstance(b.scores, Columns):
        pair = _pair(a.scores, b.scores, allow_different_items)
        notes += pair.notes
        checks = tuple(_paired_check(name, pair, limits, seed=seed, resamples=resamples) for name in unique)
        items, paired = len(pair.a), True
    else:
        notes += _require_same_count(a, b, allow_different_items)
        checks = tuple(_unpaired_check(name, a, b, limits, seed=seed, resamples=resamples) for name in unique)
        items, paired = b.items, False
    return Gate(a.label, b.label, items, paired, limits, checks, tuple(notes))


class _Pair(NamedTuple):
    """Two systems on the same items, in the same order."""

    a: Columns
    b: Columns
    unsure: tuple[bool, ...]
    """For each item, whether a request failed or A has no answer."""
    notes: tuple[str, ...]


def _pair(a: Columns, b: Columns, allow: bool) -> _Pair:
    where = {item: index for index, item in enumerate(b.ids)}
    common = [(index, where[item]) for index, item in enumerate(a.ids) if item in where]
    same = [(left, right) for left, right in common if _alike(a, b, left, right)]
    counts = (len(a) - len(common), len(b) - len(common), len(common) - len(same))
    told = "{} items only in A, {} only in B, {} with another query or other right plans".format(*counts)
    if any(counts) and not allow:
        raise InputError(
            f"A and B are not on the same items: {told}; {len(same)} are the same. Score both on the same references, "
            "or compare what they share with --allow-different-items."
        )
    if not same:
        raise InputError(f"A and B have no item in common: {told}.")
    left, right = a.chosen([index for index, _ in same]), b.chosen([index for _, index in same])
    notes = [f"left out, because the items differ: {told}; compared: {len(same)} items."] if any(counts) else []
    answers = list(zip(left.answered, right.answered, strict=True))
    failed = [sum(pair[side] is Answered.FAILED for pair in answers) for side in (0, 1)]
    missing = [sum(pair[side] is Answered.MISSING for pair in answers) for side in (0, 1)]
    for side, name in enumerate("AB"):
        if failed[side]:
            notes.append(f"{failed[side]} requests of {name} failed and count as misses; ask them again.")
        if missing[side]:
            notes.append(f"{name} has no answer to {missing[side]} items; they count as misses.")
    unsure = tuple(first is not Answered.YES or second is Answered.FAILED for first, second in answers)
    return _Pair(left, right, unsure, tuple(notes))


def _alike(a: Columns, b: Columns, left: int, right: int) -> bool:
    """Whether an item is the same on both sides; a side without queries cannot differ in them."""
    ours, theirs = a.marks[left], b.marks[right]
    return ours.references == theirs.references and (ours.query == theirs.query or not (ours.query and theirs.query))


def _paired_check(name: str, pair: _Pair, limits: Limits, *, seed: int, resamples: int) -> Check:
    left, right = pair.a.values[name], pair.b.values[name]
    both = [(x, y) for x, y in zip(left, right, strict=True) if x is not None and y is not None]
    one_sided = ((x is None) != (y is None) for x, y in zip(left, right, strict=True))
    unscored = sum(alone or unsure for alone, unsure in zip(one_sided, pair.unsure, strict=True))
    _require_scored(name, bool(both) or any(x is not None for x in (*left, *right)))
    if not both:
        return _check(name, _Values(None, None, 0, None), unscored, len(left), limits)
    columns: tuple[list[Value], list[Value]] = [x for x, _ in both], [y for _, y in both]
    found = _difference(name, *columns, seed=seed, resamples=resamples)
    a, b = (summary(name, column, seed=seed, resamples=2).value for column in columns)
    return _check(name, _Values(a, b, len(both), found), unscored, len(left), limits)


def _difference(name: str, a: list[Value], b: list[Value], *, seed: int, resamples: int) -> Difference:
    if name in RATES:
        return paired_rate(cast("list[bool]", a), cast("list[bool]", b), seed=seed, resamples=resamples)
    if name in MEANS:
        return paired_mean(cast("list[float]", a), cast("list[float]", b), seed=seed, resamples=resamples)
    return paired_f1(cast("list[Counts]", a), cast("list[Counts]", b), seed=seed, resamples=resamples)


def _unpaired_check(name: str, a: Side, b: Side, limits: Limits, *, seed: int, resamples: int) -> Check:
    first, second = (_metric(side, name, seed=seed, resamples=resamples) for side in (a, b))
    _require_scored(name, bool(first.scored or second.scored))
    items = max(a.items, b.items)
    unscored = min(items, abs(first.unscored - second.unscored) + a.missing)
    values = _Values(first.value, second.value, min(first.scored, second.scored), None)
    return _check(name, values, unscored, items, limits)


def _metric(side: Side, name: str, *, seed: int, resamples: int) -> Metric | PrintedMetric:
    if isinstance(side.scores, Columns):
        return side.scores.summary(name, seed=seed, resamples=resamples)
    return side.scores.metrics[name]


class _Values(NamedTuple):
    """What was measured in one metric."""

    a: float | None
    b: float | None
    scored: int
    found: Difference | None
    """B minus A, where there are pairs."""


def _check(name: str, values: _Values, unscored: int, items: int, limits: Limits) -> Check:
    a, b, scored, found = values
    sign = 1 if name in LOWER_IS_BETTER else -1
    drop = _plus(sign * (found.difference if found is not None else b - a)) if a is not None and b is not None else None
    ends = sorted(_plus(sign * end) for end in (found.low, found.high)) if found is not None else (None, None)
    passed, reason = _verdict(name, drop, unscored, items, limits)
    return Check(
        metric=name,
        a=a,
        b=b,
        drop=drop,
        low=ends[0],
        high=ends[1],
        p_value=found.p_value if found is not None else None,
        only_a=found.only_base if found is not None else None,
        only_b=found.only_tuned if found is not None else None,
        scored=scored,
        unscored=unscored,
        passed=passed,
        reason=f"{reason}; {_shown(found)}" if found is not None else reason,
    )


def _plus(value: float) -> float:
    """The value, zero without a minus sign."""
    return value + 0.0


class _Verdict(NamedTuple):
    passed: bool
    reason: str


def _verdict(name: str, drop: float | None, unscored: int, items: int, limits: Limits) -> _Verdict:
    if drop is None:
        return _Verdict(False, "no item was scored on both sides")
    if unscored > limits.max_unscored * items + TOLERANCE:
        share = f"{unscored} of {items} items ({unscored / items:.2%})"
        return _Verdict(False, f"{share} could not be scored; {limits.max_unscored:.2%} is allowed")
    way = "rose" if name in LOWER_IS_BETTER else "dropped"
    if drop > limits.max_drop + TOLERANCE:
        return _Verdict(False, f"{way} by {drop:.4f}; {limits.max_drop:g} is allowed")
    return _Verdict(True, f"{way} by {drop:.4f}" if drop > TOLERANCE else "no worse")


def _shown(found: Difference) -> str:
    """Whether a difference is shown at all."""
    if found.p_value is not None:
        return "a difference is shown" if found.p_value < SIGNIFICANT else "no difference shown"
    return "a difference is shown" if found.low > 0 or found.high < 0 else "no difference shown"


def require_limits(limits: Limits) -> None:
    """Refuse limits that are no shares; raises `InputError`."""
    for name, value in zip(("--max-drop", "--max-unscored"), limits, strict=True):
        if not (math.isfinite(value) and 0 <= value <= 1):
            raise InputError(f"{name} must be a share from 0 to 1 (0.02 is two in a hundred), found {value!r}.")


def _require_scored(name: str, any_scored: bool) -> None:
    if not any_scored:
        raise InputError(
            f"no item could be scored in {name!r} on either side: the references do not hold what it needs."
        )


def _require_same_count(a: Side, b: Side, allow: bool) -> list[str]:
    if a.items == b.items:
        return []
    told = f"A has {a.items} items, B has {b.items}"
    if not allow:
        raise InputError(
            f"A and B are not on the same items: {told}. Compare values nevertheless: --allow-different-items."
        )
    return [f"the items differ: {told}; the values are not over the same items."]


def _without_name(check: Check) -> dict[str, Any]:
    values = asdict(check)
    del values["metric"]
    return values
