"""Collects the queries that a teacher is asked: from logs, from benchmarks, and grown from the catalog.

Reads the sources of a config; writes `queries.jsonl`, `query_rejects.jsonl`, `teacher_catalog.json` and, last,
`queries.json` (the manifest) into a run directory. Every row read is a query or a reject with its reason; of equal
queries (Unicode form and white space aside) the first is kept. The same sources give the same files; more rows in a
source leave the others' ids as they were. Near duplicates are not looked for here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ValidationError, model_validator

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import check_plan
from plansmith.contract.errors import InputError, PlansmithError
from plansmith.contract.progress import Progress
from plansmith.contract.records import Query, Record, Reject
from plansmith.contract.store import file_hash, read_rows, write_rows, write_text
from plansmith.data.mix import MixRow, compare_mix
from plansmith.data.query_sources.base import DUPLICATE, Found, rejected, same_text
from plansmith.data.query_sources.grown import Grower, grow
from plansmith.data.query_sources.logs import read_log
from plansmith.data.query_sources.recorded import read_bfcl_queries, read_nestful_queries
from plansmith.data.teacher_config import (
    BfclQueries,
    GrownQueries,
    LogQueries,
    NestfulQueries,
    QueriesConfig,
    QuerySource,
)

QUERIES, QUERY_REJECTS = "queries.jsonl", "query_rejects.jsonl"
MANIFEST = "queries.json"
CATALOG = "teacher_catalog.json"


class SourceCounts(Record):
    """One source; the counts add up."""

    source: str
    licence: str
    read: int
    kept: int
    rejects: dict[str, int]
    """By reason; `duplicate` are equal to an earlier query of this or another source."""
    notes: dict[str, int]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.read != self.kept + sum(self.rejects.values()):
            raise ValueError(f"{self.read} rows of {self.source!r} were read, but kept and rejects are another number")
        return self


class QueriesManifest(Record):
    """What stands in `queries.json`."""

    version: Literal[1] = 1
    catalog_name: str
    catalog_hash: str
    queries: int
    languages: dict[str, int]
    """Queries by language; `?` where it is not known."""
    sources: list[SourceCounts]
    mix: list[MixRow]
    """The wanted mix of grown queries against what they were grown for; empty where none are grown."""
    files: dict[str, str]
    """Sha256 of each file beside it."""
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Collected:
    """What collecting came to."""

    manifest: QueriesManifest
    stopped: PlansmithError | None
    """Why not all queries are there; the caller raises it once it has told the rest."""


@dataclass(slots=True)
class _Collection:
    """Queries of all sources so far."""

    queries: list[Query] = field(default_factory=list[Query])
    rejects: list[Reject] = field(default_factory=list[Reject])
    sources: list[SourceCounts] = field(default_factory=list[SourceCounts])
    taken: set[str] = field(default_factory=set[str])
    ids: set[str] = field(default_factory=set[str])
    stopped: PlansmithError | None = None

    def add(self, found: Found, catalog: Catalog) -> None:
        """Take the rows of a source: what is new is kept."""
        kept = 0
        reasons: Counter[str] = Counter()
        for row in found.rows:
            rest = self._keep(row, catalog) if isinstance(row, Query) else row
            if rest is None:
                kept += 1
                continue
            reasons[rest.reason] += 1
            self.rejects.append(rest)
        self.sources.append(
            SourceCounts(
                source=found.source,
                licence=found.licence,
                read=kept + reasons.total(),
                kept=kept,
                rejects=dict(sorted(reasons.items())),
                notes=found.notes,
            )
        )
        self.stopped = self.stopped or found.stopped

    def _keep(self, row: Query, catalog: Catalog) -> Reject | None:
        """Keep a query, or give the reject that it is."""
        text = same_text(row.query)
        if text in self.taken:
            detail = "the same query stands earlier in this source or in one before"
            return rejected(row_id=row.id, query=row.query, source=row.source, reason=DUPLICATE, detail=detail)
        self.taken.add(text)
        if row.id in self.ids:
            row = row.model_copy(update={"id": f"{row.id}-{len(self.ids)}"})
        self.ids.add(row.id)
        if row.reference is not None and not check_plan(row.reference, catalog).valid:
            row = row.model_copy(update={"reference": None, "results": None})
        self.queries.append(row)
        return None


def collect_queries(
    config: QueriesConfig,
    catalog: Catalog | None,
    out: Path,
    progress: Progress,
    *,
    seed: int,
    grower: Grower | None = None,
) -> Collected:
    """Collect the queries of all sources and write them.

    Args:
        config: the sources.
        catalog: the workers that plans may call; None takes that of the one benchmark among the sources.
        out: the run directory; the caller sees to it that no other process works in it.
        progress: told of the work.
        seed: of what is grown.
        grower: who invents queries, where some are to be grown.

    Raises:
        InputError: a source cannot be read, there is no catalog or more than one, nobody to grow queries, or no query
            is left.
        ServiceError: a package could not be fetched.
        StorageError: the files cannot be written.

    """
    ready, catalog = _load(config.sources, catalog, progress)
    collection = _Collection()
    for source in config.sources:
        if isinstance(source, GrownQueries):
            if grower is None:
                raise InputError("queries are to be grown, but no teacher is given that could; set 'teacher'.")
            found = grow(source, catalog, grower, out, progress, seed=seed, taken=collection.taken)
        else:
            found = ready[id(source)]
        collection.add(found, catalog)
    if not collection.queries and collection.stopped is None:
        first = "; ".join(f"{row.reason}: {row.detail}" for row in collection.rejects[:3])
        raise InputError(f"no query is left of {len(collection.rejects)} rows. First reasons: {first or 'no rows'}")
    manifest = _write(config, catalog, out, collection)
    progress.note(describe_queries(manifest))
    return Collected(manifest, collection.stopped)


def _load(
    sources: Sequence[QuerySource], catalog: Catalog | None, progress: Progress
) -> tuple[dict[int, Found], Catalog]:
    """Every source but the grown ones, by its identity, and the catalog."""
    found: dict[int, Found] = {}
    for source in sources:
        if isinstance(source, LogQueries):
            found[id(source)] = read_log(source)
        elif isinstance(source, NestfulQueries):
            found[id(source)] = read_nestful_queries(source, progress)
        elif isinstance(source, BfclQueries):
            found[id(source)] = read_bfcl_queries(source, progress, own_catalog=catalog is None)
    if catalog is not None:
        return found, catalog
    own = {one.catalog.hash: (one.source, one.catalog) for one in found.values() if one.catalog is not None}
    if len(own) != 1:
        names = ", ".join(repr(name) for name, _ in own.values())
        raise InputError(
            f"the sources {names} have catalogs of their own, but queries are asked with one; give it as 'catalog'."
            if own
            else "no catalog is given, and none of the sources brings one; give it as 'catalog'."
        )
    return found, next(iter(own.values()))[1]


def _write(config: QueriesConfig, catalog: Catalog, out: Path, collection: _Collection) -> QueriesManifest:
    """Write the files, the manifest last."""
    write_text(out / CATALOG, json.dumps(catalog.to_json(), ensure_ascii=False, indent=1) + "\n")
    write_rows(out / QUERIES, collection.queries)
    write_rows(out / QUERY_REJECTS, collection.rejects)
    grown = next((source for source in config.sources if isinstance(source, GrownQueries)), None)
    languages = Counter(query.language or "?" for query in collection.queries)
    manifest = QueriesManifest(
        catalog_name=catalog.name,
        catalog_hash=catalog.hash,
        queries=len(collection.queries),
        languages=dict(sorted(languages.items())),
        sources=collection.sources,
        mix=compare_mix(grown.mix, catalog, collection.queries) if grown is not None else [],
        files={name: file_hash(out / name) for name in (CATALOG, QUERIES, QUERY_REJECTS)},
        config=config.model_dump(mode="json"),
    )
    write_text(out / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    return manifest


def describe_queries(manifest: QueriesManifest) -> str:
    """One line with every count."""
    parts: list[str] = []
    for one in manifest.sources:
        dropped = ", ".join(f"{reason} {count}" for reason, count in one.rejects.items())
        parts.append(f"{one.source} {one.kept} of {one.read}" + (f" (dropped: {dropped})" if dropped else ""))
    return f"{manifest.queries} queries: {'; '.join(parts)}"


@dataclass(frozen=True, slots=True)
class QuerySet:
    """The queries of a run directory, whose files are those that the manifest names."""

    catalog: Catalog
    queries: list[Query]
    manifest: QueriesManifest


def load_queries(out: Path) -> QuerySet:
    """Load what `collect_queries` wrote.

    Raises:
        InputError: it is not there, or a file was changed since.

    """
    path = out / MANIFEST
    try:
        manifest = QueriesManifest.model_validate_json(path.read_bytes())
        changed = [name for name, expected in manifest.files.items() if file_hash(out / name) != expected]
    except FileNotFoundError as error:
        raise InputError(
            f"{str(out)!r} holds no queries: {error.filename!r} is not there. Run plansmith data queries first."
        ) from error
    except OSError as error:
        raise InputError(f"{str(error.filename)!r} cannot be read: {error.strerror or error}.") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = "/".join(map(str, first["loc"])) or "file"
        raise InputError(f"{str(path)!r} is no manifest of queries: {where}: {first['msg']}.") from error
    if changed:
        raise InputError(
            f"{str(out / changed[0])!r} is not the file that {MANIFEST!r} names: it was changed since. Run plansmith "
            "data queries again."
        )
    return QuerySet(Catalog.load(out / CATALOG), read_rows(out / QUERIES, Query), manifest)
