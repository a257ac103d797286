"""Teacher and student: three different numbers, never mixed.

Correctness of each is against the reference. Agreement is with the teacher's own plan, right or wrong: an item agrees
where the student's plan is equivalent (`matching.py`) to the teacher's. Self-agreement is the teacher's agreement with
itself when it is sampled: the share of pairs of its samples that are equivalent, item by item; no student can be
expected to agree more. All items are in the denominators; a plan that cannot be read agrees with nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations
from typing import cast

from plansmith.contract.plan import Json, Plan
from plansmith.eval.items import ScoredItem
from plansmith.eval.matching import bijection
from plansmith.eval.stats import Metric, mean, rate


def agreement(student: Sequence[ScoredItem], teacher: Sequence[ScoredItem]) -> Metric:
    """Share of the teacher's items on which the student's plan is equivalent to the teacher's."""
    given = {item.id: item.plan for item in student if item.sample == 0}
    outcomes = [_same(given.get(item.id), item.plan) for item in teacher if item.sample == 0]
    return rate(outcomes)


def self_agreement(teacher: Sequence[ScoredItem], *, seed: int, resamples: int) -> Metric | None:
    """Mean over items of the share of equivalent pairs among the teacher's samples; None for one sample an item."""
    samples: dict[str, list[str | None]] = {}
    for item in teacher:
        samples.setdefault(item.id, []).append(item.plan)
    shares = [_pairs_alike(plans) for plans in samples.values() if len(plans) > 1]
    return mean(shares, seed=seed, resamples=resamples) if shares else None


def _pairs_alike(plans: Sequence[str | None]) -> float:
    pairs = list(combinations(plans, 2))
    return sum(_same(a, b) for a, b in pairs) / len(pairs)


def _same(left: str | None, right: str | None) -> bool:
    if left is None or right is None:
        return False
    return left == right or bijection(_plan(left), _plan(right)) is not None


def _plan(text: str) -> Plan:
    return Plan.from_json(cast("list[Json]", json.loads(text)))
