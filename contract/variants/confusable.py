"""The confusable variant: near copies of workers that plans call, each with a purpose for which no user asks.

A near copy has a similar name and the same arguments and results. What makes it wrong is said in the first sentence of
its description, which the prompt shows, and never in its name: a planner has to read. The rule (`Twist`): the copy
gives made-up values, or is switched off, or is reserved for auditors who hold a number that it requires. A reference
plan never calls a copy. A plan that calls an audit copy in place of the original fails the checker too (`missing_arg`).

Limits: the rule is in words, so it holds for queries of users. It would not hold for a query that itself asks for test
values or for an audit. The words are English, whatever language the catalog has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.errors import CatalogError, InputError
from plansmith.contract.variants.base import MAX_NAME, Variant, variant_name
from plansmith.contract.variants.lots import mixed_in, ranked
from plansmith.contract.variants.naming import changed, cut_sentence, near_names, spoken
from plansmith.contract.variants.parameters import mentioned_names


class Twist(StrEnum):
    """Why a near copy is never the right worker."""

    REHEARSAL = "rehearsal"
    """it gives made-up values for software tests"""
    RETIRED = "retired"
    """it is switched off: every call ends in an error"""
    AUDIT = "audit"
    """it is for auditors, and requires the number of an audit that no user has"""


_SAID = {
    Twist.REHEARSAL: "with made-up values for software tests only",
    Twist.RETIRED: "but switched off: every call ends in an error",
    Twist.AUDIT: "for auditors only, under the number of an open audit",
}
_AUDIT_NUMBER = "audit_number"


def confusable(
    catalog: Catalog, seed: int, *, used: Iterable[str], count: int, twists: Sequence[Twist] = tuple(Twist)
) -> Variant:
    """Near copies of used workers between the original workers, which keep their order and their names.

    Args:
        catalog: the original.
        seed: another seed copies others, in other ways.
        used: workers that plans call; each is copied once before any is copied twice, with another twist each time.
        count: how many near copies to add.
        twists: the ways in which copies are wrong.

    Raises:
        CatalogError: a used worker is not in the catalog.
        InputError: more copies are asked for than there are used workers times twists.

    """
    names = ranked(set(used), seed, "confusable")
    unknown = sorted(set(names) - set(catalog.names))
    if unknown:
        raise CatalogError(f"catalog {catalog.name!r} has no worker named {', '.join(map(repr, unknown))}.")
    if count > len(names) * len(twists):
        raise InputError(
            f"{count} near copies are asked for, but {len(names)} used workers allow {len(names) * len(twists)}, "
            f"{len(twists)} for each. Ask for fewer."
        )
    by_name = {worker.name: worker for worker in catalog.workers}
    taken = set(catalog.names)
    copies: list[tuple[str, Worker]] = []
    for index in range(count):
        name = names[index % len(names)]
        ways = ranked([twist.value for twist in twists], seed, "twist", name)
        copy = _near_copy(by_name[name], Twist(ways[index // len(names)]), taken, seed)
        taken.add(copy.name)
        copies.append((copy.name, copy))
    workers = mixed_in(catalog.workers, copies, seed)
    return Variant("confusable", catalog, Catalog(variant_name(catalog, "confusable"), workers))


def _near_copy(worker: Worker, twist: Twist, taken: set[str], seed: int) -> Worker:
    name = next(name for name in near_names(worker.name, seed) if name not in taken and len(name) <= MAX_NAME)
    sentence, rest = cut_sentence(worker.description)
    sentence = sentence.rstrip(".!?") or spoken(worker.name)
    description = f"{sentence}, {_SAID[twist]}. {rest}".strip()
    args = _with_audit_number(worker) if twist is Twist.AUDIT else worker.args
    return changed(worker, name=name, description=description, args=args)


def _with_audit_number(worker: Worker) -> dict[str, Any]:
    """The arguments with one more that is required; it stands first, as required ones mostly do."""
    known = mentioned_names(worker.args)
    name = next(n for n in (_AUDIT_NUMBER, *(f"{_AUDIT_NUMBER}_{i}" for i in range(2, 99))) if n not in known)
    schema = {"type": "string", "description": "Number of the open audit, as given to the auditor."}
    properties = {name: schema} | worker.properties
    required = [name, *worker.args.get("required", [])]
    return worker.args | {"properties": properties, "required": required}
