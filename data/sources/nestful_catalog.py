"""The catalog that fits recorded NESTFUL plans: specs, with types widened and results cut down to what plans show.

The specs say `string` for a latitude that a response gives as a number, and `array` for legs without saying what a leg
is. Recorded calls were answered, so what they hold is accepted. Results declare up to sixty fields a worker; a prompt
needs those that plans refer to.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

from plansmith.contract.catalog import Catalog, Schema, Worker
from plansmith.contract.plan import Json, lookup, pointer_text
from plansmith.contract.schema import type_name
from plansmith.data.sources.nestful_plans import RecordedPlan, Tokens


def widen_args(catalog: Catalog, plans: list[RecordedPlan]) -> tuple[Catalog, int]:
    """A catalog whose parameters accept every value that the plans pass, and the number of parameters changed."""
    found: dict[tuple[str, str], list[Json]] = {}
    for plan in plans:
        for step, call in enumerate(plan.calls):
            for key, value in _passed(plan, step, call["arguments"]).items():
                found.setdefault((call["name"], key), []).append(value)
    changed = 0
    workers: list[Worker] = []
    for worker in catalog.workers:
        properties = dict(worker.properties)
        for key, schema in worker.properties.items():
            wider = _wider(schema, found.get((worker.name, key), []))
            changed += wider != schema
            properties[key] = wider
        workers.append(_changed(worker, args=worker.args | {"properties": properties}))
    return Catalog(catalog.name, workers), changed


def _changed(worker: Worker, **values: Any) -> Worker:
    """A worker built anew: a model copy would keep cached properties of the old schema."""
    return Worker.model_validate(worker.model_dump() | values)


def _passed(plan: RecordedPlan, step: int, arguments: dict[str, Json]) -> dict[str, Json]:
    """Arguments as a worker gets them: the types are those of the responses that references lead to."""
    passed = dict(arguments)
    for leaf in plan.leaves:
        if leaf.step == step and leaf.chosen is not None and len(leaf.tokens) == 1:
            place = leaf.chosen
            passed[str(leaf.tokens[0])] = lookup(pointer_text(place.step, *place.tokens), plan.results)
    return passed


def _wider(schema: Any, values: list[Json]) -> Schema:
    node: Schema = dict(cast("Schema", schema)) if isinstance(schema, dict) else {}
    declared = node.get("type")
    if declared is None or not values:
        return node
    names = [declared] if isinstance(declared, str) else list(cast("list[str]", declared))
    for name in sorted({type_name(value) for value in values}):
        if name not in names and not (name == "integer" and "number" in names):
            names.append(name)
    node["type"] = names[0] if len(names) == 1 else names
    entries = [entry for value in values if isinstance(value, list) for entry in cast("list[Json]", value)]
    if "array" in names and "items" not in node and entries:
        node["items"] = _entry_schema(entries)
    return node


def _entry_schema(entries: list[Json]) -> Schema:
    """The schema of recorded list entries; objects are closed over the keys seen."""
    names = sorted({type_name(entry) for entry in entries})
    schema: Schema = {"type": names[0] if len(names) == 1 else names}
    objects = [cast("dict[str, Json]", entry) for entry in entries if isinstance(entry, dict)]
    if objects:
        keys = list(dict.fromkeys(key for entry in objects for key in entry))
        schema["properties"] = {key: _entry_schema([e[key] for e in objects if key in e]) for key in keys}
        schema["required"] = [key for key in keys if all(key in entry for entry in objects)]
        schema["additionalProperties"] = False
    return schema


@dataclass(slots=True)
class _Shape:
    """What references show of one place in a result."""

    types: Counter[str] = field(default_factory=Counter[str])
    fields: dict[str, _Shape] = field(default_factory=dict[str, "_Shape"])
    entries: _Shape | None = None
    uses: int = 0

    def add(self, value: Json, tokens: Tokens) -> None:
        self.uses += 1
        self.types[type_name(value)] += 1
        if not tokens:
            return
        head, rest = tokens[0], tokens[1:]
        if isinstance(value, list):
            self.entries = self.entries or _Shape()
            self.entries.add(cast("list[Json]", value)[int(head)], rest)
        else:
            self.fields.setdefault(str(head), _Shape()).add(value[head], rest)

    def schema(self) -> Schema:
        names = sorted(self.types)
        schema: Schema = {"type": names[0] if len(names) == 1 else names}
        if self.fields:
            order = sorted(self.fields, key=lambda name: (-self.fields[name].uses, name))
            schema["properties"] = {name: self.fields[name].schema() for name in order}
        if self.entries is not None:
            schema["items"] = self.entries.schema()
        return schema


def show_referenced(catalog: Catalog, plans: list[RecordedPlan]) -> Catalog:
    """A catalog whose `returns` show the places that the plans refer to, and are absent where nothing is referred to.

    The schemas stay open: a response holds more.
    """
    shapes: dict[str, _Shape] = {}
    for plan in plans:
        for leaf in plan.leaves:
            if leaf.chosen is not None:
                name = cast("str", plan.calls[leaf.chosen.step]["name"])
                shape = shapes.setdefault(name, _Shape())
                shape.add(plan.results[leaf.chosen.step], leaf.chosen.tokens)
    workers = [
        _changed(worker, returns=shapes[worker.name].schema() if worker.name in shapes else None)
        for worker in catalog.workers
    ]
    return Catalog(catalog.name, workers)
