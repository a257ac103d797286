"""Queries of benchmarks: the four parts of IBM's NESTFUL, and BFCL v4.

Reads their packages (fetched once into the user's cache). The plans that come with them are kept beside the query as
`reference`, where they are converted and fit the catalog; the teacher never sees them. Only ComplexFuncBench and BFCL
have converted plans; the other three parts of NESTFUL give queries and a catalog.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from plansmith.contract.catalog import Catalog, Effect
from plansmith.contract.importers.nestful import from_nestful
from plansmith.contract.progress import Progress
from plansmith.contract.records import Candidate, Query, Reject
from plansmith.data.config import DataDependent, NestfulSource
from plansmith.data.packages import read_member
from plansmith.data.query_sources.base import Found, rejected
from plansmith.data.sources.bfcl import share_catalog
from plansmith.data.sources.bfcl_items import PACKAGE as BFCL
from plansmith.data.sources.bfcl_items import SOURCE as BFCL_SOURCE
from plansmith.data.sources.bfcl_items import BfclItem, bfcl_wheel, read_bfcl
from plansmith.data.sources.nestful import PACKAGE as NESTFUL
from plansmith.data.sources.nestful import load_nestful, wheel_path
from plansmith.data.teacher_config import BfclQueries, NestfulQueries, NestfulSet

_FILES = {
    NestfulSet.COMPLEXFUNCBENCH: "data_v1/complexfuncbench/complexfuncbench",
    NestfulSet.EXECUTABLE: "data_v1/executable/executable",
    NestfulSet.GLAIVE: "data_v1/non-executable/non-executable-glaive",
    NestfulSet.SGD: "data_v1/non-executable/non-executable-sgd",
}
_LANGUAGE = "en"


def read_nestful_queries(config: NestfulQueries, progress: Progress) -> Found:
    """Queries of one part of NESTFUL.

    Raises:
        ServiceError: the package could not be fetched.
        InputError: the wheel given is another file or damaged.

    """
    source = NestfulSource(kind="nestful", data_dependent=DataDependent.KEEP, wheel=config.wheel)
    wheel = wheel_path(source, progress)
    name = f"nestful/{config.part.value}"
    rows = cast("list[dict[str, Any]]", read_member(wheel, f"{_FILES[config.part]}-data.json"))
    plans: dict[str, Candidate] = {}
    if config.part is NestfulSet.COMPLEXFUNCBENCH:
        loaded = load_nestful(source, progress)
        catalog, prefix = loaded.catalog, "cfb"
        plans = {candidate.id: candidate for candidate in loaded.candidates}
    else:
        specs = read_member(wheel, f"{_FILES[config.part]}-spec.json")
        catalog, prefix = from_nestful(specs, name=config.part.value, effect=Effect.READ).catalog, config.part.value
    return Found(name, NESTFUL.licence, _nestful_rows(rows, plans, prefix, name), catalog)


def _nestful_rows(
    rows: Sequence[dict[str, Any]], plans: dict[str, Candidate], prefix: str, source: str
) -> Iterator[Query | Reject]:
    for index, row in enumerate(rows):
        row_id = f"{prefix}-{index:04d}"
        query = row.get("input")
        if not isinstance(query, str) or not query.strip():
            yield rejected(
                row_id=row_id, query="", source=source, reason="no_query", detail=f"row {index} has no text as 'input'"
            )
            continue
        known = plans.get(row_id)
        yield Query(
            id=row_id,
            query=query.strip(),
            source=source,
            language=_LANGUAGE,
            reference=known.plan if known is not None else None,
            results=known.results if known is not None else None,
        )


def read_bfcl_queries(config: BfclQueries, progress: Progress, *, own_catalog: bool) -> Found:
    """Queries of BFCL.

    Args:
        config: which categories.
        progress: told of every row.
        own_catalog: take only rows whose functions go together, and their catalog; otherwise all rows, for another
            catalog.

    Raises:
        ServiceError: the package could not be fetched.
        InputError: the wheel given is another file or damaged.

    """
    wheel = bfcl_wheel(config.wheel, progress)
    read = read_bfcl(wheel, config.categories, progress)
    items, rejects, catalog = read.items, read.rejects, None
    if own_catalog:
        shared = share_catalog(read.items, config.max_workers)
        items, rejects, catalog = shared.kept, [*read.rejects, *shared.rejects], shared.catalog
    return Found(BFCL_SOURCE, BFCL.licence, _bfcl_rows(items, rejects, catalog), catalog)


def _bfcl_rows(
    items: Sequence[BfclItem], rejects: Sequence[Reject], catalog: Catalog | None
) -> Iterator[Query | Reject]:
    for item in items:
        yield Query(
            id=item.id,
            query=item.query.strip(),
            source=f"{BFCL_SOURCE}/{item.category}",
            reference=item.plan if catalog is not None else None,
        )
    yield from rejects
