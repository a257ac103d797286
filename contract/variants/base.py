"""What a variant of a catalog is: the changed catalog, and the way of plans there and back.

Renaming is kept as a permutation of all names (`Names`): where `city` becomes `arg_3`, an `arg_3` that was there
becomes `city`. So two names never fall together, whatever a plan holds, and the way back is exact, for invalid plans
too. Only `type` and the keys of `args` are names of workers and parameters; everything below a key of `args` is a value
and stays (nested keys, references, which name fields of results, and operators). Pure; recorded results are unaffected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from plansmith.contract.catalog import Catalog
from plansmith.contract.parse import MAX_DEPTH, deeper_than
from plansmith.contract.plan import Json, canonical_json
from plansmith.contract.records import AllowedCalls, Candidate, Example

Row = TypeVar("Row", Candidate, Example)

MAX_NAME = 128
"""Longest name of a catalog or worker in characters."""


@dataclass(frozen=True, slots=True)
class Names:
    """New names for workers and parameters; names that are not listed stay."""

    workers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Old name to new name: a permutation."""
    parameters: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """For each worker, by its old name: a permutation of parameter names."""

    def inverse(self) -> Names:
        """The way back."""
        parameters = {self.worker(name): _turned(names) for name, names in self.parameters.items()}
        return Names(_turned(self.workers), parameters)

    def then(self, after: Names) -> Names:
        """Both renamings, one after the other."""
        back = _turned(self.workers)
        changed = {*self.parameters, *(back.get(name, name) for name in after.parameters)}
        parameters: dict[str, Mapping[str, str]] = {}
        for name in sorted(changed):
            following = after.parameters.get(self.worker(name), {})
            if both := _both(self.parameters.get(name, {}), following):
                parameters[name] = both
        return Names(_both(self.workers, after.workers), parameters)

    def worker(self, name: str) -> str:
        return self.workers.get(name, name)

    def plan(self, plan: Json) -> Json:
        """The plan with its names replaced; what has not the shape of a step is left as it is."""
        if not isinstance(plan, list):
            return plan
        return [self._step(step) for step in cast("list[Json]", plan)]

    def _step(self, step: Json) -> Json:
        node = cast("dict[str, Json]", step) if isinstance(step, dict) else {}
        name = node.get("type")
        if not isinstance(name, str):
            return cast("Json", step)
        changed = node | {"type": self.worker(name)}
        if isinstance(node.get("args"), dict):
            changed["args"] = self._keys(name, node["args"])
        return changed

    def _keys(self, worker: str, values: dict[str, Any]) -> dict[str, Any]:
        names = self.parameters.get(worker, {})
        return {names.get(key, key): value for key, value in values.items()}

    def allowed(self, calls: AllowedCalls) -> AllowedCalls:
        """BFCL's possible answer with its names replaced."""
        return [{self.worker(name): self._keys(name, values) for name, values in call.items()} for call in calls]


def permutation(names: Mapping[str, str]) -> dict[str, str]:
    """A permutation that contains the given renaming: each new name that is no old one leads back to the first old one.

    Raises:
        ValueError: two names have the same new name.

    """
    back = _turned(names)
    if len(back) != len(names):
        raise ValueError("two names have the same new name")
    whole = dict(names)
    for new in names.values():
        if new not in names:
            first = new
            while first in back:
                first = back[first]
            whole[new] = first
    return {old: new for old, new in whole.items() if old != new}


def _turned(names: Mapping[str, str]) -> dict[str, str]:
    return {new: old for old, new in names.items()}


def _both(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, str]:
    """A permutation after another; names that it leaves where they are do not appear."""
    both: dict[str, str] = {}
    for old in {**first, **second}:
        new = first.get(old, old)
        new = second.get(new, new)
        if new != old:
            both[old] = new
    return both


@dataclass(frozen=True, slots=True)
class Variant:
    """A changed catalog, and what becomes of plans for the original one."""

    name: str
    """What was changed: `renamed`, or `shuffled+renamed` for several changes."""
    origin: Catalog
    catalog: Catalog
    names: Names = field(default_factory=Names)
    removed: frozenset[str] = frozenset()
    """Workers of `origin` that `catalog` lacks: a plan that calls one of them becomes `[]`."""
    unchanged_parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    """Workers of `origin` whose parameters could not be renamed, with the reason."""

    def plan(self, plan: Json) -> Json:
        """A plan for `origin` as a plan for `catalog`, in canonical order where its shape is right.

        A valid plan stays valid, or becomes `[]` where it calls a removed worker. An invalid plan keeps its faults,
        unless it calls a worker that only `catalog` has.
        """
        if self.removed and _calls(plan) & self.removed:
            return []
        return _ordered(self.names.plan(plan), self.catalog)

    def restore(self, plan: Json) -> Json:
        """A plan for `catalog` in the names and the order of `origin`; a plan that became `[]` stays `[]`."""
        return _ordered(self.names.inverse().plan(plan), self.origin)

    def allowed(self, calls: AllowedCalls) -> AllowedCalls:
        """BFCL's possible answer for `catalog`; empty where it names a removed worker."""
        if any(name in self.removed for call in calls for name in call):
            return []
        return self.names.allowed(calls)

    def row(self, row: Row) -> Row:
        """A row with its plan, possible answer and recorded results for `catalog`; all else is the same."""
        dropped = bool(self.removed & _calls(row.plan))
        return row.model_copy(
            update={
                "plan": self.plan(row.plan),
                "results": [] if dropped and row.results is not None else row.results,
                "allowed": None if row.allowed is None else [] if dropped else self.allowed(row.allowed),
            }
        )

    def then(self, after: Variant) -> Variant:
        """Both changes as one variant of this one's origin.

        Raises:
            CatalogMismatchError: `after` was not made from this variant's catalog.

        """
        self.catalog.require_hash(after.origin.hash, what=f"variant {after.name!r}")
        back = self.names.inverse()
        fixed = {back.worker(name): reason for name, reason in after.unchanged_parameters.items()}
        return Variant(
            name=f"{self.name}+{after.name}",
            origin=self.origin,
            catalog=after.catalog,
            names=self.names.then(after.names),
            removed=self.removed | {back.worker(name) for name in after.removed},
            unchanged_parameters={**self.unchanged_parameters, **fixed},
        )


def variant_name(catalog: Catalog, change: str) -> str:
    """Name of the changed catalog: that of the original, `@` and the change, cut to what a catalog file takes."""
    return f"{catalog.name[: MAX_NAME - len(change) - 1]}@{change}"


def _calls(plan: Json) -> set[str]:
    """Names of the workers that a plan calls, as far as its shape is right."""
    steps = cast("list[Json]", plan) if isinstance(plan, list) else []
    names = [cast("dict[str, Json]", step).get("type") for step in steps if isinstance(step, dict)]
    return {name for name in names if isinstance(name, str)}


def _ordered(plan: Json, catalog: Catalog) -> Json:
    """The plan in canonical order, where its shape is right and it is not nested too deeply to be a plan."""
    return canonical_json(plan, catalog) if _well_shaped(plan) and not deeper_than(plan, MAX_DEPTH) else plan


def _well_shaped(plan: Json) -> bool:
    if not isinstance(plan, list):
        return False
    for step in cast("list[Json]", plan):
        node = cast("dict[str, Json]", step) if isinstance(step, dict) else {}
        if not isinstance(node.get("type"), str) or not isinstance(node.get("args"), dict):
            return False
        if not node.keys() <= {"type", "args", "after"} or not isinstance(node.get("after", []), list):
            return False
    return True
