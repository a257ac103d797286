"""Exchanges values of a row for others, in query and plan alike.

A value may be exchanged where nothing is guessed: it is a text or a number that stands in the query exactly once, word
for word; every literal of the plan can be known from the query; and the new value was given for the same parameter in
another training row, has the same type, and does not stand in the query. A text is exchanged at all places of the plan
that hold it, a number only where one place does. Recorded results belong to the old values and are left out. Not
covered: parts of longer texts, dates and times in other words than the plan's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, cast

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import check_plan
from plansmith.contract.grounding import Query, as_date, invented
from plansmith.contract.plan import FORMAT, FROM, LITERAL, Json, Plan, canonical_json, dumps
from plansmith.contract.records import Example, PlanJson
from plansmith.contract.variants.lots import lot

_MOST_VALUES = 256
"""Values that a pool keeps, those with the lowest lots: which they are does not depend on the order of the rows."""
_LONGEST = 80
OPERATORS = frozenset({FROM, FORMAT, LITERAL})
Scalar = str | int | float


class _Place(NamedTuple):
    worker: str
    parameter: str


class Pools:
    """Values that training rows give, by worker, parameter and type."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._values: dict[tuple[_Place, str], dict[str, tuple[int, Scalar]]] = {}

    def add(self, row: Example) -> None:
        """Take up the values of a training row."""
        for place, value in _values(row.plan):
            pool = self._values.setdefault((place, type(value).__name__), {})
            key = dumps(value)
            if key in pool:
                continue
            pool[key] = (lot(self._seed, "pool", *place, key), value)
            if len(pool) > _MOST_VALUES:
                del pool[max(pool, key=lambda name: pool[name][0])]

    def others(self, place: _Place, value: Scalar) -> list[Scalar]:
        """Values of the same type that other rows give for a parameter, in an order of their own."""
        pool = self._values.get((place, type(value).__name__), {})
        return [other for _, other in sorted(pool.values(), key=lambda pair: pair[0]) if other != value]


def _values(plan: PlanJson) -> Iterator[tuple[_Place, Scalar]]:
    """Texts and numbers that stand as a whole argument."""
    for step in plan:
        for name, value in cast("dict[str, Json]", step.get("args", {})).items():
            if isinstance(value, str | int | float) and not isinstance(value, bool) and 0 < len(str(value)) <= _LONGEST:
                yield _Place(str(step.get("type")), name), value


def substituted(row: Example, catalog: Catalog, pools: Pools, seed: int) -> Example | None:
    """The row with one or two values exchanged; None where none can be.

    Args:
        row: a training row for `catalog`.
        catalog: the data set's catalog.
        pools: values of all training rows.
        seed: decides which values, and for what.

    """
    if not row.plan or invented(Plan.from_json(row.plan), Query(row.query), catalog):
        return None
    found = row
    changes = 0
    for place, value in sorted(_values(row.plan), key=lambda item: lot(seed, *item[0], dumps(item[1]))):
        changed = _exchanged(found, place, value, catalog, pools, seed)
        if changed is not None:
            found, changes = changed, changes + 1
        if changes == 1 + seed % 2:
            break
    return found if changes else None


def _exchanged(row: Example, place: _Place, value: Scalar, catalog: Catalog, pools: Pools, seed: int) -> Example | None:
    text = str(value)
    if as_date(value) is not None or _mentions(row.query, text) != 1 or not _is_alone(row.plan, value):
        return None
    others = [other for other in pools.others(place, value) if not _mentions(row.query, str(other))]
    if not others:
        return None
    new = others[lot(seed, *place, text) % len(others)]
    query = _pattern(text).sub(lambda _: str(new), row.query)
    plan = [step | {"args": _replaced(step["args"], value, new)} for step in row.plan]
    if not check_plan(plan, catalog, max_steps=len(plan)).valid or invented(
        Plan.from_json(plan), Query(query), catalog
    ):
        return None
    return row.model_copy(
        update={"query": query, "plan": canonical_json(plan, catalog), "results": None, "allowed": None}
    )


def _pattern(text: str) -> re.Pattern[str]:
    """The text as whole words, as it is written."""
    return re.compile(rf"(?<![\w.,:/-]){re.escape(text)}(?![\w/-]|[.,:]\w)")


def _mentions(query: str, text: str) -> int:
    """How often a text stands in the query, in any case; as a part of words or numbers it counts too."""
    exact = len(_pattern(text).findall(query))
    loose = query.casefold().count(text.casefold())
    return exact if exact == loose else loose + 1


def _is_alone(plan: PlanJson, value: Scalar) -> bool:
    """Whether the plan holds the value only where it can be exchanged: no operator and no other text has it inside."""
    same = 0
    for leaf, in_operator in (pair for step in plan for pair in _leaves(step.get("args"))):
        if type(leaf) is type(value) and leaf == value and not in_operator:
            same += 1
        elif _holds(leaf, value):
            return False
    return same == 1 or (isinstance(value, str) and same > 1)


def _holds(leaf: Json, value: Scalar) -> bool:
    if isinstance(leaf, str):
        return str(value).casefold() in leaf.casefold()
    return not isinstance(value, str) and isinstance(leaf, int | float) and leaf == value


def _leaves(value: Json, *, in_operator: bool = False) -> Iterator[tuple[Json, bool]]:
    """Scalars of a plan's arguments, and whether an operator has them inside."""
    if isinstance(value, dict):
        node = cast("dict[str, Json]", value)
        inside = in_operator or bool(node.keys() & OPERATORS)
        for key, item in node.items():
            if key != FROM:
                yield from _leaves(item, in_operator=inside)
    elif isinstance(value, list):
        for item in cast("list[Json]", value):
            yield from _leaves(item, in_operator=in_operator)
    else:
        yield value, in_operator


def _replaced(value: Json, old: Scalar, new: Scalar) -> Json:
    """A copy with equal scalars exchanged, outside operators."""
    if isinstance(value, dict):
        node = cast("dict[str, Json]", value)
        if node.keys() & OPERATORS:
            return node
        return {key: _replaced(item, old, new) for key, item in node.items()}
    if isinstance(value, list):
        return [_replaced(item, old, new) for item in cast("list[Json]", value)]
    return new if type(value) is type(old) and value == old else value
