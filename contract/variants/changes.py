"""Variants by order, addition and removal: workers shuffled, workers of another catalog put in, workers taken out.

Read a catalog, give a `Variant`; names stay as they are. What is added must never be right, and for workers of another
catalog only the caller can promise that: take a catalog of another domain.
"""

from __future__ import annotations

from collections.abc import Iterable

from plansmith.contract.catalog import Catalog, Schema, Worker
from plansmith.contract.errors import CatalogError, InputError
from plansmith.contract.variants.base import Variant, variant_name
from plansmith.contract.variants.lots import mixed_in, ranked
from plansmith.contract.variants.naming import changed, words_of


def shuffled(catalog: Catalog, seed: int, *, parameters: bool = True) -> Variant:
    """Workers in another order, always another one where there are two.

    Args:
        catalog: the original.
        seed: another seed gives another order.
        parameters: shuffle the parameters of each worker too, among the required ones and among the others, so that
            required ones come first where they did. Plans follow: canonical text has the catalog's order.

    """
    order = ranked(catalog.names, seed, "shuffled")
    if order == list(catalog.names):
        order = order[1:] + order[:1]
    by_name = {worker.name: worker for worker in catalog.workers}
    workers = [by_name[name] for name in order]
    if parameters:
        workers = [changed(worker, args=_shuffled_args(worker, seed)) for worker in workers]
    return Variant("shuffled", catalog, Catalog(variant_name(catalog, "shuffled"), workers))


def _shuffled_args(worker: Worker, seed: int) -> Schema:
    names = list(worker.properties)
    required = [name for name in names if name in worker.required]
    optional = [name for name in names if name not in worker.required]
    needed = iter(ranked(required, seed, "parameters", worker.name))
    others = iter(ranked(optional, seed, "parameters", worker.name))
    order = [next(needed) if name in worker.required else next(others) for name in names]
    place = {name: index for index, name in enumerate(order)}
    made = dict(worker.args)
    if "properties" in made:
        made["properties"] = {name: worker.properties[name] for name in order}
    if "required" in made:
        made["required"] = sorted(made["required"], key=lambda name: place.get(name, len(place)))
    return made


def with_distractors(catalog: Catalog, pool: Catalog, count: int, seed: int) -> Variant:
    """Workers of another catalog between the original ones, which keep their order.

    Workers of the pool whose name has the same words as one of the catalog's (whatever case and punctuation), or whose
    description is the same, may do the same work and are left out.

    Raises:
        InputError: the pool has fewer workers than asked for.

    """
    known = {_key(worker) for worker in catalog.workers}
    described = {worker.description.strip() for worker in catalog.workers} - {""}
    usable = {
        worker.name: worker
        for worker in pool.workers
        if _key(worker) not in known and worker.description.strip() not in described
    }
    if len(usable) < count:
        raise InputError(
            f"{count} distractors are asked for, but only {len(usable)} of the {len(pool.workers)} workers of catalog "
            f"{pool.name!r} can be used beside catalog {catalog.name!r}. Ask for fewer, or give a larger pool."
        )
    chosen = [(name, usable[name]) for name in ranked(usable, seed, "distractors")[:count]]
    workers = mixed_in(catalog.workers, chosen, seed)
    return Variant("distractors", catalog, Catalog(variant_name(catalog, "distractors"), workers))


def _key(worker: Worker) -> str:
    return "".join(words_of(worker.name)).casefold() or worker.name


def without(catalog: Catalog, workers: Iterable[str]) -> Variant:
    """The catalog without some workers: a plan that calls one of them becomes `[]`, the others stay.

    Raises:
        CatalogError: the catalog has no such worker.
        InputError: no worker would be left.

    """
    removed = frozenset(workers)
    unknown = sorted(removed - set(catalog.names))
    if unknown:
        raise CatalogError(f"catalog {catalog.name!r} has no worker named {', '.join(map(repr, unknown))}.")
    kept = [worker for worker in catalog.workers if worker.name not in removed]
    if not kept:
        raise InputError(f"no worker of catalog {catalog.name!r} would be left. Leave at least one.")
    return Variant("without", catalog, Catalog(variant_name(catalog, "without"), kept), removed=removed)
