r"""Grammar: the JSON Schema under which a plan is decoded.

Gives a schema that both engines (llguidance, xgrammar) take whole: an array of `anyOf` branches, one closed object a
worker; each argument is its schema or an operator. Nothing stands beside an `anyOf`; there is no `allOf`, no
`patternProperties`, and no length, format, pattern or range of the catalog's own: those are checked after decoding,
since they cost seconds to compile or are dropped silently. What is accepted has no structural fault (`STRUCTURAL`).

What the grammar cannot write, though the checker accepts it: objects with undeclared keys, `$literal`, templates and
pointers with quotes, backslashes or control characters. `lint.py` says so for a catalog.
"""

from __future__ import annotations

from typing import Any, cast

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.findings import Fault
from plansmith.contract.plan import FORMAT, FROM, WITH, Json
from plansmith.contract.schema import Schema, branches

DEFAULT_MAX_STEPS = 8
POSITIONAL_LIMIT = 100
"""Up to this many steps x workers, each position has its own reference pattern, so that forward references cannot be
decoded; above, one pattern serves all positions and the checker catches them."""

STRUCTURAL = frozenset(Fault) - {
    Fault.TOO_LARGE,
    Fault.BAD_VALUE,
    Fault.DANGLING_REFERENCE,
    Fault.REFERENCE_TYPE,
    Fault.FORWARD_REFERENCE,
}
"""Faults that no accepted text has. `FORWARD_REFERENCE` joins them where the grammar is positional."""

_MAX_DEPTH = 5
_MAX_FORMAT_VALUES = 3
_CHARACTER = r'[^"\\/~\x00-\x1f]'
_TOKEN = rf'(?:[^"\\/~\x00-\x1f\-]|~[01])(?:{_CHARACTER}|~[01])*'
_TEXT = r'[^"\\{}\x00-\x1f]|\{\{|\}\}'
_SCALARS: list[Schema] = [{"type": name} for name in ("string", "number", "boolean", "null")]


def plan_schema(
    catalog: Catalog, *, max_steps: int = DEFAULT_MAX_STEPS, min_steps: int = 0, positional: bool | None = None
) -> dict[str, Any]:
    """The JSON Schema of every plan that may be decoded for a catalog.

    Args:
        catalog: the workers that may be called; at least one.
        max_steps: longest plan.
        min_steps: shortest plan; 0 allows `[]`.
        positional: one reference pattern a position; None decides by `POSITIONAL_LIMIT`.

    """
    if positional is None:
        positional = is_positional(catalog, max_steps)
    defs: dict[str, Any] = {}
    schema: dict[str, Any] = {"$defs": defs, "type": "array"}
    if positional:
        schema["prefixItems"] = [_Position(i, i, defs).step(catalog) for i in range(max_steps)]
        schema["items"] = False
    else:
        schema["items"] = _Position(None, max_steps, defs).step(catalog)
        schema["maxItems"] = max_steps
    if min_steps:
        schema["minItems"] = min_steps
    return schema


def is_positional(catalog: Catalog, max_steps: int) -> bool:
    """Whether `plan_schema` gives each position its own reference pattern by default."""
    return max_steps * len(catalog.workers) <= POSITIONAL_LIMIT


class _Position:
    """Builds the schema of the steps at one position (index None: any position)."""

    def __init__(self, index: int | None, targets: int, defs: dict[str, Any]) -> None:
        self.targets = targets
        """How many earlier steps can be referred to."""
        self.name = "any" if index is None else str(index)
        self.operators: list[Schema] = []
        self.formats: list[Schema] = []
        if targets:
            defs[f"from_{self.name}"] = self._from()
            self.operators = [{"$ref": f"#/$defs/from_{self.name}"}]
            for count in range(1, _MAX_FORMAT_VALUES + 1):
                defs[f"format_{count}_{self.name}"] = self._format(count)
                self.formats.append({"$ref": f"#/$defs/format_{count}_{self.name}"})
        defs[f"step_{self.name}"] = None
        self.defs = defs

    def step(self, catalog: Catalog) -> Schema:
        """A reference to the definition of the steps here."""
        made = [step for worker in catalog.workers if (step := self._call(worker)) is not None]
        self.defs[f"step_{self.name}"] = _any_of(made)
        return {"$ref": f"#/$defs/step_{self.name}"}

    def _call(self, worker: Worker) -> Schema | None:
        args = self._object(worker.args, worker.args, 0)
        if args is None:
            return None
        properties: dict[str, Any] = {"type": {"const": worker.name}, "args": args}
        if self.targets:
            indices = {"enum": list(range(self.targets))}
            properties["after"] = {"type": "array", "items": indices, "minItems": 1, "maxItems": self.targets}
        return _closed(properties, ["type", "args"])

    def _from(self) -> Schema:
        indices = "|".join(str(index) for index in range(self.targets))
        return _closed({FROM: {"type": "string", "pattern": f"^/(?:{indices})(?:/{_TOKEN})*$"}}, [FROM])

    def _format(self, count: int) -> Schema:
        fields = "|".join(str(index) for index in range(count))
        template = {"type": "string", "pattern": rf"^(?:{_TEXT}|\{{(?:{fields})\}})*$"}
        values = {"type": "array", "items": _any_of([*self.operators, *_SCALARS]), "minItems": count, "maxItems": count}
        return _closed({FORMAT: template, WITH: values}, [FORMAT, WITH])

    def _value(self, schema: Schema, root: Schema, depth: int) -> Schema | None:
        """A value of the schema or an operator in its place; None where neither can be written."""
        written = self._alternatives(schema, root, depth)
        operators = list(self.operators)
        if any(_may_be_text(item) for item in written):
            operators += self.formats
        return _any_of([*written, *operators]) if written or operators else None

    def _alternatives(self, schema: Schema, root: Schema, depth: int) -> list[Schema]:
        made: list[Schema] = []
        for branch in branches(schema, root):
            if branch is False:
                continue
            node = cast("dict[str, Any]", branch) if isinstance(branch, dict) else {}
            made += self._branch(node, root, depth)
        return [item for position, item in enumerate(made) if item not in made[:position]]

    def _branch(self, node: dict[str, Any], root: Schema, depth: int) -> list[Schema]:
        if "const" in node:
            return _constants([node["const"]])
        if isinstance(node.get("enum"), list):
            return _constants(node["enum"])
        declared = node.get("type")
        if declared is None and not node.keys() & {"properties", "items", "prefixItems"}:
            return [*_SCALARS, {"type": "array", "items": _any_of(_SCALARS)}]
        default = "object" if "properties" in node else "array"
        names = cast("list[str]", [declared] if isinstance(declared, str) else declared or [default])
        made = [self._typed(name, node, root, depth) for name in names]
        return [item for item in made if item is not None]

    def _typed(self, name: str, node: dict[str, Any], root: Schema, depth: int) -> Schema | None:
        if name == "object":
            return self._object(node, root, depth + 1)
        if name == "array":
            return self._array(node, root, depth + 1)
        return {"type": name}

    def _object(self, node: dict[str, Any], root: Schema, depth: int) -> Schema | None:
        if depth > _MAX_DEPTH:
            return None
        required = [str(name) for name in node.get("required", ())]
        declared = cast("dict[str, Schema]", node.get("properties", {}))
        names = [*declared, *(name for name in required if name not in declared)]
        properties: dict[str, Any] = {}
        for name in names:
            value = None if name.startswith("$") else self._value(declared.get(name, True), root, depth)
            if value is not None:
                properties[name] = value
            elif name in required:
                return None
        return _closed(properties, required)

    def _array(self, node: dict[str, Any], root: Schema, depth: int) -> Schema | None:
        if depth > _MAX_DEPTH:
            return None
        made: dict[str, Any] = {"type": "array"}
        prefix = [self._value(item, root, depth) for item in node.get("prefixItems", ())]
        if any(item is None for item in prefix):
            return None
        if prefix:
            made["prefixItems"] = prefix
        rest = node.get("items", True)
        made["items"] = (self._value(rest, root, depth) or False) if rest is not False else False
        for keyword in ("minItems", "maxItems"):
            if isinstance(node.get(keyword), int | float):
                made[keyword] = int(node[keyword])
        return made


def _closed(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _any_of(items: list[Schema]) -> Schema:
    return items[0] if len(items) == 1 else {"anyOf": items}


def _may_be_text(schema: Schema) -> bool:
    return isinstance(schema, dict) and cast("dict[str, Any]", schema).get("type") == "string"


def _constants(members: list[Json]) -> list[Schema]:
    """Scalars as one enum; arrays and objects written out as closed schemas of constants."""
    scalars = [member for member in members if not isinstance(member, list | dict)]
    made: list[Schema] = [{"enum": scalars}] if scalars else []
    return made + [_constant(member) for member in members if isinstance(member, list | dict)]


def _constant(value: Json) -> Schema:
    if isinstance(value, list):
        items = [_constant(item) for item in cast("list[Json]", value)]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items), "maxItems": len(items)}
    if isinstance(value, dict):
        node = cast("dict[str, Json]", value)
        return _closed({key: _constant(item) for key, item in node.items()}, list(node))
    return {"const": value}
