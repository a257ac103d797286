"""BFCL v4's single-turn rows as a data set: rows whose functions can stand in one catalog.

Reads the wheel of `bfcl-eval` (`bfcl_items`), gives candidates with one shared catalog of limited size. Each row of
BFCL has functions of its own, a few of thousands; put together, they are far more than a prompt holds, and one name
often stands for different functions. So rows are chosen: in each round the list of functions that brings the most rows
for each function that it adds, as long as no name gets a second meaning and the catalog stays within its limit. Every
other row is a reject. To evaluate as BFCL does, each row with its own functions, use `bfcl_items.read_bfcl` instead: in
a shared catalog a query has more functions to choose from, and now and then another row's function would do as well.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.progress import Progress
from plansmith.contract.records import Candidate, Reject
from plansmith.data.config import BfclSource
from plansmith.data.sources.base import Loaded, family_of
from plansmith.data.sources.bfcl_items import ABSTAIN, PACKAGE, SOURCE, BfclItem, bfcl_wheel, read_bfcl

Functions = tuple[tuple[str, str], ...]
"""A row's functions in the order of their names: name, and the whole function as text."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Rows that share a catalog."""

    catalog: Catalog
    kept: list[BfclItem]
    """In the order of the source."""
    rejects: list[Reject]


def load_bfcl(config: BfclSource, progress: Progress) -> Loaded:
    """Rows of the categories that go together in one catalog.

    Raises:
        ServiceError: the package could not be fetched.
        InputError: the wheel given is another file or damaged.

    """
    wheel = bfcl_wheel(config.wheel, progress)
    progress.note(f"reading {SOURCE} from {wheel.name}")
    found = read_bfcl(wheel, config.categories, progress)
    shared = share_catalog(found.items, config.max_workers)
    candidates = [_candidate(item) for item in shared.kept]
    rejects = found.rejects + shared.rejects
    return Loaded(SOURCE, PACKAGE.licence, shared.catalog, candidates, rejects, dict(found.notes))


def share_catalog(items: list[BfclItem], limit: int) -> Shared:
    """Choose rows whose functions fit into one catalog of at most `limit` workers."""
    fitting = [item for item in items if item.category not in ABSTAIN]
    chosen = _choose(fitting, limit)
    kept = [item for item in fitting if all(chosen.get(worker.name) == worker for worker in item.catalog.workers)]
    known = {item.id for item in kept}
    rejects = [_reject(item, chosen, limit) for item in items if item.id not in known]
    return Shared(Catalog("bfcl", list(chosen.values())), kept, rejects)


def _choose(items: list[BfclItem], limit: int) -> dict[str, Worker]:
    """The shared catalog's workers by name, in the order of their choice."""
    workers = {worker.model_dump_json(): worker for item in items for worker in item.catalog.workers}
    lists: Counter[Functions] = Counter(
        tuple(sorted((worker.name, worker.model_dump_json()) for worker in item.catalog.workers)) for item in items
    )
    chosen: dict[str, str] = {}
    while lists:
        best = max(lists, key=lambda functions: _gain(functions, lists[functions], chosen, limit))
        if _gain(best, lists[best], chosen, limit) == 0:
            break
        chosen.update(best)
        del lists[best]
    return {name: workers[text] for name, text in chosen.items()}


def _gain(functions: Functions, rows: int, chosen: dict[str, str], limit: int) -> float:
    """Rows for each function that has to be added; 0 where they do not go into the catalog."""
    added = sum(name not in chosen for name, _ in functions)
    if len(chosen) + added > limit or any(chosen.get(name, text) != text for name, text in functions):
        return 0
    return rows / added if added else float("inf")


def _reject(item: BfclItem, chosen: dict[str, Worker], limit: int) -> Reject:
    reason, detail = _why_not(item, chosen, limit)
    source = f"{SOURCE}/{item.category}"
    return Reject(id=item.id, query=item.query, plan=item.plan, reason=reason, detail=detail, source=source)


def _why_not(item: BfclItem, chosen: dict[str, Worker], limit: int) -> tuple[str, str]:
    if item.category in ABSTAIN:
        return "needs_own_catalog", "No function of the row fits; in a shared catalog one of another row may."
    clash = [worker.name for worker in item.catalog.workers if chosen.get(worker.name, worker) != worker]
    if clash:
        return "other_function_of_that_name", f"The catalog has another function named {clash[0]!r}."
    missing = sum(worker.name not in chosen for worker in item.catalog.workers)
    return "catalog_full", f"It needs {missing} more functions; the catalog has {len(chosen)} of at most {limit}."


def _candidate(item: BfclItem) -> Candidate:
    return Candidate(
        id=item.id,
        query=item.query,
        plan=item.plan,
        family=family_of(item.plan),
        source=f"{SOURCE}/{item.category}",
        allowed=item.allowed,
    )
