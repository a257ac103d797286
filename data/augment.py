"""Copies of training rows for changed catalogs: other order, other names, more workers, fewer, other values.

Reads the data set's catalog and training rows; gives variants of the catalog and, for each row, its copies. Everything
depends on the seed, the catalog and the row alone, but for exchanged values, which come from the other training rows.
No copy repeats the query of a row that is held back, and each copy's plan is checked again. The changes of a catalog
are those of `plansmith.contract.variants`, which evaluation uses too. The idea of masked names is that of Hammer (Lin
et al. 2024).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import check_plan
from plansmith.contract.records import Example
from plansmith.contract.variants import Variant, confusable, renamed, shuffled, with_distractors, without
from plansmith.contract.variants.lots import lot, picked, ranked
from plansmith.data.augment_config import AugmentConfig
from plansmith.data.substitute import Pools, substituted
from plansmith.data.verify import normalise_query

SEPARATOR = "~"
"""Between a row's id and the number of its copy: `row-3~1`."""
MADE, REPLACED, EMPTIED, MOVED = "copies", "replaced", "plans_emptied", "moved_to_another_catalog"
SUBSTITUTED, NOT_SUBSTITUTED = "values_exchanged", "no_value_to_exchange"
NO_CATALOG, REPEATS, NOT_VALID = "no_catalog_fits", "repeats_held_out_query", "copy_not_valid"


def make_variants(catalog: Catalog, pool: Catalog | None, config: AugmentConfig, *, seed: int) -> list[Variant]:
    """The variants of the catalog.

    Args:
        catalog: the data set's.
        pool: where distracting workers come from; None where the config asks for none.
        config: how many, and what changes in how many of them.
        seed: another seed gives other variants.

    Raises:
        InputError: the pool has too few workers.

    """
    removed = _removed(catalog, config, seed)
    return [
        _variant(catalog, pool, config, lot(seed, "augment", str(n)), n, removed.get(n)) for n in range(config.catalogs)
    ]


def _removed(catalog: Catalog, config: AugmentConfig, seed: int) -> dict[int, list[str]]:
    """By variant: the workers that it lacks. Together the variants lack each worker about equally often."""
    lacking = [n for n in range(config.catalogs) if _has(config.remove, n, config.catalogs, "remove")]
    total = len(catalog.names)
    if total < 2:
        return {}
    size = min(max(round(config.removed_rate * total), 1), total - 1)
    order = ranked(catalog.names, seed, "removed")
    starts = [at * total // len(lacking) for at in range(len(lacking))]
    return {n: [order[(start + i) % total] for i in range(size)] for n, start in zip(lacking, starts, strict=True)}


def _variant(
    catalog: Catalog,
    pool: Catalog | None,
    config: AugmentConfig,
    seed: int,
    number: int,
    removed: Sequence[str] | None,
) -> Variant:
    """One variant; later changes are made to what earlier ones left."""
    made = Variant("same", catalog, catalog)
    if removed is not None:
        made = made.then(without(made.catalog, removed))
    if _has(config.confuse, number, config.catalogs, "confuse"):
        near = min(config.near_copies, len(made.catalog.names))
        made = made.then(confusable(made.catalog, seed, used=made.catalog.names, count=near))
    if pool is not None and _has(config.distract, number, config.catalogs, "distract"):
        made = made.then(with_distractors(made.catalog, pool, config.distractors, seed))
    if _has(config.rename, number, config.catalogs, "rename"):
        made = made.then(
            renamed(
                made.catalog,
                seed,
                worker_rate=config.worker_rate,
                parameter_rate=config.parameter_rate,
                style=config.style,
                descriptions=config.descriptions,
            )
        )
    if _has(config.shuffle, number, config.catalogs, "shuffle"):
        made = made.then(shuffled(made.catalog, seed))
    return made


def _has(share: float, number: int, total: int, what: str) -> bool:
    """Whether a variant is among the share that has a change; which ones differs from change to change."""
    names = [str(n) for n in range(total)]
    return share > 0 and str(number) in picked(names, share, 0, what)


@dataclass
class Augmenter:
    """Makes the copies of training rows, one row after the other."""

    variants: Sequence[Variant]
    config: AugmentConfig
    seed: int
    pools: Pools
    held_out: Collection[str]
    """Normalised queries of rows for validation and testing."""
    counted: Counter[str] = field(default_factory=Counter[str])
    """What was done, by kind."""

    def copies(self, row: Example) -> Iterator[Example]:
        """The copies of a training row; what cannot be made is counted."""
        wanted = int(self.config.copies)
        wanted += lot(self.seed, "copies", row.id) / 2**64 < self.config.copies - wanted
        order = sorted(range(len(self.variants)), key=lambda n: lot(self.seed, "variant", row.id, str(n)))
        for number in range(1, wanted + 1):
            if (made := self._copy(row, number, order)) is not None:
                self.counted[MADE] += 1
                yield made

    def _copy(self, row: Example, number: int, order: Sequence[int]) -> Example | None:
        start = (number - 1) % len(order)
        for tried, at in enumerate((*order[start:], *order[:start])):
            if _serves(self.variants[at], row):
                self.counted[MOVED] += tried > 0
                return self._checked(row, number, self.variants[at])
        self.counted[NO_CATALOG] += 1
        return None

    def _checked(self, row: Example, number: int, variant: Variant) -> Example | None:
        changed = self._with_other_values(row, number)
        copy = variant.row(changed).model_copy(
            update={"id": f"{row.id}{SEPARATOR}{number}", "catalog": variant.catalog.hash}
        )
        if normalise_query(copy.query) in self.held_out:
            self.counted[REPEATS] += 1
            return None
        if not check_plan(copy.plan, variant.catalog, max_steps=max(len(copy.plan), 1)).valid:
            self.counted[NOT_VALID] += 1
            return None
        self.counted[EMPTIED] += bool(row.plan) and not copy.plan
        return copy

    def _with_other_values(self, row: Example, number: int) -> Example:
        seed = lot(self.seed, "substitute", row.id, str(number))
        if seed / 2**64 >= self.config.substitute:
            return row
        found = substituted(row, self.variants[0].origin, self.pools, seed)
        self.counted[SUBSTITUTED if found is not None else NOT_SUBSTITUTED] += 1
        return found or row


def _serves(variant: Variant, row: Example) -> bool:
    """Whether a variant has all workers of the plan, or none of them."""
    called = {str(step.get("type")) for step in row.plan}
    gone = called & variant.removed
    return not gone or gone == called
