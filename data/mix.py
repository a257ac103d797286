"""The wanted mix of grown queries against what came out: of the queries as they were asked for, and of their plans.

A teacher that is asked for a query of three steps may write one that needs two. So three numbers stand beside each
other: the share that was wanted, the share of the queries that were grown for it, and the share of the plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from plansmith.contract.catalog import Catalog
from plansmith.contract.records import PlanJson, Query, Record
from plansmith.data.teacher_config import Mix

_Name = TypeVar("_Name", str, int)


class MixRow(Record):
    """One kind of query; all shares are of grown queries (or of their calls, for workers)."""

    what: str
    """`steps` (0: no worker fits), `worker` or `language`."""
    name: str
    wanted: float
    queries: float | None
    """Of the queries, by what they were grown for; None where there are none."""
    plans: float | None
    """Of those queries that have a plan, by that plan; None where there are none."""


def compare_mix(
    mix: Mix, catalog: Catalog, queries: Sequence[Query], plans: Mapping[str, PlanJson] | None = None
) -> list[MixRow]:
    """Compare the mix with what came out; queries that were not grown are left out.

    Args:
        mix: what was wanted.
        catalog: the workers it is about.
        queries: all queries.
        plans: the plan of each query, by the query's id, as far as there are any.

    """
    grown = [query for query in queries if query.wanted is not None]
    planned = [(query, plans[query.id]) for query in grown if query.id in plans] if plans else []
    return [
        *_rows(
            "steps",
            {str(length): share for length, share in _steps(mix).items()},
            Counter(str(query.wanted.steps) for query in grown if query.wanted is not None),
            Counter(str(len(plan)) for _, plan in planned),
        ),
        *_rows(
            "worker",
            _shares({name: mix.workers.get(name, 1.0) for name in catalog.names}),
            Counter(name for query in grown if query.wanted is not None for name in query.wanted.workers),
            Counter(_worker(step) for _, plan in planned for step in plan),
        ),
        *_rows(
            "language",
            _shares(mix.languages),
            Counter(query.language or "" for query in grown),
            Counter(query.language or "" for query, _ in planned),
        ),
    ]


def _steps(mix: Mix) -> dict[int, float]:
    return {0: mix.abstain} | {
        length: share * (1 - mix.abstain) for length, share in sorted(_shares(mix.steps).items())
    }


def _shares(weights: Mapping[_Name, float]) -> dict[_Name, float]:
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def _worker(step: dict[str, Any]) -> str:
    return str(step.get("type"))


def _rows(what: str, wanted: Mapping[str, float], queries: Counter[str], plans: Counter[str]) -> list[MixRow]:
    """One row for each name that was wanted or came out."""
    names = dict.fromkeys((*wanted, *sorted(queries), *sorted(plans)))
    return [
        MixRow(
            what=what,
            name=name,
            wanted=round(wanted.get(name, 0.0), 4),
            queries=_share(queries, name),
            plans=_share(plans, name),
        )
        for name in names
    ]


def _share(counts: Counter[str], name: str) -> float | None:
    total = counts.total()
    return round(counts[name] / total, 4) if total else None
