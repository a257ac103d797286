"""API specs of IBM's NESTFUL into a catalog.

Reads `{"name","description","query_parameters","output_parameters",...}`, one or a list, in the forms of its
ComplexFuncBench, executable, glaive and SGD parts. Required parameters come first. `output_parameters` describe one
object; where recorded `sample_responses` show that the call gives a list of them, `returns` is that list. `returns`
stays open, because those specs were inferred from samples: a response may hold more. Where a call is made (host,
endpoint, url) is dropped with a note. Not covered: recorded plans (`plansmith.data.sources.nestful`).
"""

from __future__ import annotations

from typing import Any, cast

from plansmith.contract.catalog import Effect, Worker
from plansmith.contract.errors import InputError
from plansmith.contract.importers.result import (
    ImportResult,
    Notes,
    build_catalog,
    description_of,
    entries,
    make_worker,
    note_dropped,
    require_name,
    require_plain_json,
    short,
)
from plansmith.contract.importers.schemas import args_schema, returns_schema
from plansmith.contract.plan import Json

Node = dict[str, Any]

TYPES = {
    "float": "number",
    "int": "integer",
    "bool": "boolean",
    "str": "string",
    "dict": "object",
    "list": "array",
    "Date (yyyy-mm-dd)": "string",
    "file": "string",
}
"""Type names of the specs that JSON Schema does not have."""

_KEPT = ("id", "name", "description", "query_parameters", "output_parameters", "sample_responses")
_SYNONYMS = {"allowed_values": "enum", "default_value": "default"}
_EMPTY: tuple[Any, ...] = ("", [], {}, None)


def from_nestful(value: Json, *, name: str, effect: Effect = Effect.WRITE) -> ImportResult:
    """Workers of NESTFUL specs.

    Args:
        value: one spec or the list of a spec file.
        name: name of the catalog.
        effect: effect of every worker, which the specs do not say; the default is the careful guess.

    Raises:
        InputError: the value is neither.
        CatalogError: a spec cannot be used, or two have one name; the message lists every problem.

    """
    notes = Notes()
    specs = entries(value if isinstance(value, list) else [value], "NESTFUL specs")
    return build_catalog(name, specs, lambda spec: _worker(spec, effect, notes), notes)


def looks_like_nestful(value: Json) -> bool:
    """Whether the value has the form that only NESTFUL specs have: `query_parameters` as an object."""
    found = cast("list[Any]", value) if isinstance(value, list) else [value]
    return bool(found) and all(isinstance(spec, dict) and _has_parameters(cast("Node", spec)) for spec in found)


def _has_parameters(spec: Node) -> bool:
    return isinstance(spec.get("query_parameters"), dict)


def _worker(spec: dict[str, Json], effect: Effect, notes: Notes) -> Worker:
    name = require_name(spec)
    require_plain_json({key: value for key, value in spec.items() if key != "sample_responses"}, f"spec {name!r}")
    note_dropped(spec, _KEPT, name, notes)
    fields = _described(spec, "query_parameters", name)
    required = [key for key, field in fields.items() if field.get("required") is True]
    order = [*required, *(key for key in fields if key not in required)]
    args = {"type": "object", "properties": {key: _clean(fields[key]) for key in order}, "required": required}
    return make_worker(
        name=name,
        description=description_of(spec, name),
        args=args_schema(args, name, notes, types=TYPES),
        returns=returns_schema(_returns(spec, name), name, notes, types=TYPES),
        effect=effect,
        idempotent=effect is not Effect.WRITE,
    )


def _described(spec: dict[str, Json], key: str, name: str) -> dict[str, Node]:
    value: Any = spec.get(key) or {}
    if not isinstance(value, dict) or not all(isinstance(v, dict) for v in cast("Node", value).values()):
        raise InputError(f"{key!r} of {name!r} must map names to objects, found {short(value)}")
    return cast("dict[str, Node]", value)


def _clean(field: Node) -> Node:
    """A parameter or field as JSON Schema: empty entries, titles and `required` go, synonyms are renamed."""
    schema: Node = {}
    for key, value in field.items():
        key = _SYNONYMS.get(key, key)
        if key in ("required", "title") or value in _EMPTY:
            continue
        if key == "properties" and isinstance(value, dict):
            value = {name: _clean_child(child) for name, child in cast("Node", value).items()}
        elif key == "items":
            value = _clean_child(value)
        schema[key] = value
    return schema


def _clean_child(child: Any) -> Any:
    """A nested schema; some specs write a bare type name for it."""
    return _clean(cast("Node", child)) if isinstance(child, dict) else {"type": child}


def _returns(spec: dict[str, Json], name: str) -> Node | None:
    fields = _described(spec, "output_parameters", name)
    if not fields:
        return None
    one = {"type": "object", "properties": {key: _clean(field) for key, field in fields.items()}}
    many = {"type": "array", "items": one}
    samples = spec.get("sample_responses")
    given = cast("list[Any]", samples) if isinstance(samples, list) else []
    lists = any(isinstance(sample, list) for sample in given)
    objects = any(isinstance(sample, dict) for sample in given)
    if lists and objects:
        return {"anyOf": [one, many]}
    return many if lists else one
