"""Suites: items together with the catalog that they are asked under; the plain one and one for each variant.

Reads examples and a catalog, gives `Suite`s; saves and loads them as `DIR/<name>/{catalog.json,examples.jsonl}` with an
index `DIR/suites.json`, written last. An item of a variant has its origin's id, `@` and the variant's name
(`item-3@renamed`), so its origin, and the origin's part, are found through the id; it is reported in one part a variant
(`renamed`). All items of a variant share one catalog, so that they share one prompt prefix; only `no_worker` has a few.

`no_worker` takes items of which nothing can be done: every worker that the plan calls is gone. An item of which some
steps could still be planned is left out, since a partial plan could be defended there. So are items that stay
answerable: whether a planner abstains too easily shows in the plain parts. Not covered: that no other worker of the
catalog does the work of a removed one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError
from plansmith.contract.records import Example, Record, Split
from plansmith.contract.store import file_hash, read_rows, write_rows, write_text
from plansmith.contract.variants import Twist, Variant, confusable, renamed, shuffled, with_distractors, without
from plansmith.eval.variants_config import VariantKind, VariantsConfig

PLAIN = "plain"
"""Name of the suite of unchanged items."""
SEEN_QUERIES = "seen_queries"
"""Name of the suite of training rows, so that they are never counted among test items; their part is `train`."""
INDEX = "suites.json"
_CATALOG, _EXAMPLES = "catalog.json", "examples.jsonl"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_MOST_SETS = 200
"""Most different sets of workers that are weighed for a group of `no_worker`, the commonest ones."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Items that are asked under one catalog."""

    name: str
    """Lower-case letters, digits, `_` and `-`: also the name of its folder."""
    catalog: Catalog
    examples: tuple[Example, ...]


class _Entry(Record):
    name: str
    catalog: str
    """The catalog's hash."""
    examples: str
    """Sha256 of the file of examples."""


class _Index(Record):
    version: Literal[1] = 1
    suites: tuple[_Entry, ...]


def build_suites(examples: Sequence[Example], catalog: Catalog, config: VariantsConfig, *, seed: int) -> list[Suite]:
    """The plain suite and the suites of the configured variants.

    Args:
        examples: rows of a data set. Test rows are the items; training rows are used for `seen_queries` only, and rows
            of validation not at all.
        catalog: the catalog of the rows.
        config: which variants.
        seed: another seed gives other variants.

    Returns:
        The plain suite first, then that of seen queries where there is one, then variants in the order of `kinds`;
        `no_worker` may give several.

    Raises:
        InputError: there are no test rows, ids are not unique or end like those of a variant, a part of the rows has
            the name of a variant that is asked for, no item fits a variant, or the distractor catalog cannot be used.

    """
    tests = [row for row in examples if row.split is Split.TEST]
    _require_usable(tests, examples, config)
    trained = [row for row in examples if row.split is Split.TRAIN]
    suites = [Suite(PLAIN, catalog, tuple(tests))]
    if config.seen_queries and trained:
        suites.append(Suite(SEEN_QUERIES, catalog, tuple(_chosen(trained, config.seen_queries))))
    varied = [row for row in tests if config.parts is None or row.part in config.parts]
    if config.kinds and not varied:
        raise InputError(f"no test row is in the parts {list(config.parts or ())}, so no variant can be made.")
    for kind in config.kinds:
        suites += _variant_suites(kind, varied, catalog, config, seed)
    return suites


def origin_id(item_id: str) -> str:
    """Id of the item that an item of a variant was made from; any other id comes back as it is."""
    origin, found, name = item_id.rpartition("@")
    return origin if found and name in set(VariantKind) else item_id


def _require_usable(tests: Sequence[Example], examples: Sequence[Example], config: VariantsConfig) -> None:
    if not tests:
        raise InputError(f"none of {len(examples)} rows is a test row, so there is nothing to ask.")
    twice = [row_id for row_id, count in Counter(row.id for row in examples).items() if count > 1]
    if twice:
        raise InputError(f"{len(twice)} ids stand at several rows, such as {twice[0]!r}; ids must be unique.")
    varied = [row.id for row in examples if origin_id(row.id) != row.id]
    if varied and config.kinds:
        raise InputError(f"the id {varied[0]!r} ends like that of a variant's item; give the rows other ids.")
    clash = sorted({row.part for row in tests} & {kind.value for kind in config.kinds})
    if clash:
        raise InputError(f"the rows have a part named {clash[0]!r}, which is a variant's name; rename the part.")


def _chosen(rows: Sequence[Example], limit: int | None) -> list[Example]:
    """At most `limit` rows, those with the lowest hashes of their id, in the order of the rows."""
    if limit is None or len(rows) <= limit:
        return list(rows)
    lowest = sorted(rows, key=lambda row: hashlib.sha256(row.id.encode()).digest())[:limit]
    ids = {row.id for row in lowest}
    return [row for row in rows if row.id in ids]


def _variant_suites(
    kind: VariantKind, rows: Sequence[Example], catalog: Catalog, config: VariantsConfig, seed: int
) -> list[Suite]:
    if kind is VariantKind.NO_WORKER:
        return _no_worker_suites(rows, catalog, config)
    chosen = _chosen(rows, config.limit)
    makers: Mapping[VariantKind, Callable[[], Variant]] = {
        VariantKind.SHUFFLED: partial(shuffled, catalog, seed),
        VariantKind.RENAMED: partial(_renamed, catalog, config, seed),
        VariantKind.DISTRACTORS: partial(_distractors, catalog, config, seed),
        VariantKind.CONFUSABLE: partial(_confusable, catalog, chosen, config, seed),
    }
    return [_suite(kind.value, kind, makers[kind](), chosen)]


def _suite(name: str, kind: VariantKind, variant: Variant, rows: Iterable[Example]) -> Suite:
    items = [variant.row(row).model_copy(update={"id": f"{row.id}@{kind}", "part": kind.value}) for row in rows]
    return Suite(name, variant.catalog, tuple(items))


def _renamed(catalog: Catalog, config: VariantsConfig, seed: int) -> Variant:
    return renamed(
        catalog,
        seed,
        worker_rate=config.worker_rate,
        parameter_rate=config.parameter_rate,
        style=config.name_style,
        descriptions=config.descriptions,
    )


def _distractors(catalog: Catalog, config: VariantsConfig, seed: int) -> Variant:
    if config.distractor_catalog is None:
        raise InputError("the variant 'distractors' needs a catalog file to take workers from: distractor_catalog.")
    return with_distractors(catalog, Catalog.load(config.distractor_catalog), config.distractor_count, seed)


def _confusable(catalog: Catalog, rows: Sequence[Example], config: VariantsConfig, seed: int) -> Variant:
    used = _called(rows)
    if not used:
        raise InputError("the variant 'confusable' has no item: no plan of the varied rows calls a worker.")
    return confusable(catalog, seed, used=used, count=min(config.confusable_count, len(used) * len(Twist)))


def _called(rows: Iterable[Example]) -> frozenset[str]:
    return frozenset(step["type"] for row in rows for step in row.plan)


def _no_worker_suites(rows: Sequence[Example], catalog: Catalog, config: VariantsConfig) -> list[Suite]:
    groups = _no_worker_groups(rows, catalog, config.no_worker_groups)
    if not groups:
        raise InputError(
            f"the variant 'no_worker' has no item: each catalog may lack at most half of the {len(catalog.workers)} "
            "workers, and no varied row has a plan that calls these only."
        )
    kept = {row.id for row in _chosen([row for _, members in groups for row in members], config.limit)}
    suites: list[Suite] = []
    for removed, members in groups:
        left = [row for row in members if row.id in kept]
        if left:
            name = f"{VariantKind.NO_WORKER}_{len(suites) + 1}"
            suites.append(_suite(name, VariantKind.NO_WORKER, without(catalog, removed), left))
    return suites


def _no_worker_groups(
    rows: Sequence[Example], catalog: Catalog, most: int
) -> list[tuple[frozenset[str], list[Example]]]:
    """Sets of at most half of the workers, and the rows whose plan calls removed workers only, each row once."""
    left = {row.id: (row, _called([row])) for row in rows if row.plan}
    groups: list[tuple[frozenset[str], list[Example]]] = []
    while left and len(groups) < most:
        removed = _covering([workers for _, workers in left.values()], len(catalog.workers) // 2)
        members = [row for row, workers in left.values() if workers <= removed]
        if not members:
            break
        groups.append((removed, members))
        left = {row_id: pair for row_id, pair in left.items() if not pair[1] <= removed}
    return groups


def _covering(wanted: Sequence[frozenset[str]], most: int) -> frozenset[str]:
    """At most `most` workers that contain many of the sets: again and again the set that brings most for a worker."""
    counts = Counter(wanted)
    sets = sorted(counts, key=lambda workers: (-counts[workers], sorted(workers)))[:_MOST_SETS]
    chosen: frozenset[str] = frozenset()
    while True:
        gains = {
            workers: sum(counts[other] for other in sets if other <= chosen | workers and not other <= chosen)
            / len(workers - chosen)
            for workers in sets
            if not workers <= chosen and len(chosen | workers) <= most
        }
        if not gains:
            return chosen
        chosen |= max(gains, key=lambda workers: gains[workers])


def save_suites(folder: Path, suites: Sequence[Suite]) -> None:
    """Write suites, the index last; folders of other suites stay, but are not in the index.

    Raises:
        InputError: a name cannot be a folder, or stands twice.
        StorageError: the folder cannot be written.

    """
    names = [suite.name for suite in suites]
    bad = [name for name in names if not _NAME.fullmatch(name) or names.count(name) > 1]
    if bad:
        raise InputError(f"suite {bad[0]!r}: expected unique names of lower-case letters, digits, '_' and '-'.")
    entries: list[_Entry] = []
    for suite in suites:
        own = folder / suite.name
        write_rows(own / _EXAMPLES, suite.examples)
        write_text(own / _CATALOG, json.dumps(suite.catalog.to_json(), ensure_ascii=False, indent=1) + "\n")
        entries.append(_Entry(name=suite.name, catalog=suite.catalog.hash, examples=file_hash(own / _EXAMPLES)))
    write_text(folder / INDEX, _Index(suites=tuple(entries)).model_dump_json(indent=1) + "\n")


def load_suites(folder: Path) -> list[Suite]:
    """Suites that `save_suites` wrote, in the same order.

    Raises:
        InputError: there are none, or a file was changed or is gone.
        CatalogMismatchError: a catalog is another one.

    """
    path = folder / INDEX
    try:
        index = _Index.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}. Save the suites first.") from error
    except ValidationError as error:
        raise InputError(
            f"{str(path)!r} is no index of suites: {error.errors()[0]['msg']}. Save them again."
        ) from error
    return [_load(folder / entry.name, entry) for entry in index.suites if _require_name(entry.name, path)]


def _require_name(name: str, path: Path) -> bool:
    if not _NAME.fullmatch(name):
        raise InputError(f"{str(path)!r} names the suite {name!r}, which cannot be a folder. Save the suites again.")
    return True


def _load(folder: Path, entry: _Entry) -> Suite:
    catalog = Catalog.load(folder / _CATALOG)
    catalog.require_hash(entry.catalog, what=f"suite {entry.name!r}")
    rows = read_rows(folder / _EXAMPLES, Example)
    found = file_hash(folder / _EXAMPLES)
    if found != entry.examples:
        raise InputError(
            f"{str(folder / _EXAMPLES)!r} has sha256 {found}, but {INDEX!r} says {entry.examples}: it was changed "
            "after it was saved. Save the suites again."
        )
    return Suite(entry.name, catalog, tuple(rows))
