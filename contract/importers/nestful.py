"""NESTFUL specs as workers.

Reads the API specs of IBM's NESTFUL (`{"name","description","query_parameters","output_parameters",...}`, the forms of
its ComplexFuncBench, executable, glaive and SGD parts); gives `Worker` and `Catalog`. `output_parameters` describe one
object; where the recorded `sample_responses` (or an `output_parser`) show that the call gives a list of them, `returns`
is that list. `returns` stays open: the specs were inferred from samples, so a response may hold more. Not covered:
recorded plans (`plansmith.data.sources.nestful`).
"""

from __future__ import annotations

from typing import Any, cast

from plansmith.contract.catalog import Catalog, Effect, Schema, Worker
from plansmith.contract.errors import CatalogError
from plansmith.contract.plan import Json

_TYPES = {
    "str": "string",
    "text": "string",
    "date (yyyy-mm-dd)": "string",
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "dict": "object",
    "list": "array",
    "tuple": "array",
}
_JSON_TYPES = frozenset({"string", "integer", "number", "boolean", "object", "array", "null"})


def from_nestful(specs: Json, *, name: str = "nestful", effect: Effect = Effect.WRITE) -> Catalog:
    """A catalog of NESTFUL specs.

    Args:
        specs: the JSON of a spec file, a list of objects.
        name: name of the catalog.
        effect: effect of every worker; the specs do not say it.

    Raises:
        CatalogError: not a list of specs, or the workers cannot form a catalog.

    """
    if not isinstance(specs, list):
        raise CatalogError(f"NESTFUL specs must be a list of objects, found {type(specs).__name__}.")
    return Catalog(name, [nestful_worker(spec, effect=effect) for spec in cast("list[Json]", specs)])


def nestful_worker(spec: Json, *, effect: Effect = Effect.WRITE) -> Worker:
    """One spec as a worker; required parameters come first.

    Raises:
        CatalogError: the spec has no name, or its parameters are not objects.

    """
    if not isinstance(spec, dict) or not isinstance(cast("dict[str, Json]", spec).get("name"), str):
        raise CatalogError(f"a NESTFUL spec must be an object with a 'name', found {spec!r:.80}.")
    node = cast("dict[str, Json]", spec)
    name: str = node["name"]
    parameters = _described(node, "query_parameters")
    required = [key for key, value in parameters.items() if value.get("required") is True]
    optional = [key for key in parameters if key not in required]
    args: Schema = {
        "type": "object",
        "properties": {key: _schema(parameters[key], name, key) for key in (*required, *optional)},
        "required": required,
        "additionalProperties": False,
    }
    return Worker(
        name=name,
        description=str(node.get("description") or ""),
        args=args,
        returns=_returns(node),
        effect=effect,
        idempotent=effect is not Effect.WRITE,
    )


def _described(spec: dict[str, Json], key: str) -> dict[str, dict[str, Json]]:
    value = spec.get(key) or {}
    if not isinstance(value, dict) or not all(isinstance(v, dict) for v in cast("dict[str, Json]", value).values()):
        raise CatalogError(f"{key!r} of {spec['name']!r} must map names to objects, found {value!r:.80}.")
    return cast("dict[str, dict[str, Json]]", value)


def _schema(component: dict[str, Json], worker: str, where: str) -> Schema:
    """A parameter or field as JSON Schema; a missing type stays open."""
    schema: Schema = {}
    declared = component.get("type")
    if declared:
        names = [_type(t, worker, where) for t in (declared if isinstance(declared, list) else [declared])]
        schema["type"] = names[0] if len(names) == 1 else sorted(set(names))
    if component.get("description"):
        schema["description"] = str(component["description"])
    values = component.get("enum") or component.get("allowed_values")
    if isinstance(values, list) and values:
        schema["enum"] = values
    for key in ("default", "default_value"):
        if component.get(key) is not None:
            schema["default"] = component[key]
    properties = component.get("properties")
    if isinstance(properties, dict) and properties:
        schema["properties"] = {k: _schema(v, worker, k) for k, v in cast("dict[str, Any]", properties).items()}
    if isinstance(component.get("items"), dict):
        schema["items"] = _schema(component["items"], worker, where)
    return schema


def _type(declared: Json, worker: str, where: str) -> str:
    text = str(declared).strip()
    name = _TYPES.get(text.lower(), text.lower())
    if name not in _JSON_TYPES:
        raise CatalogError(f"{where!r} of {worker!r} has the unknown type {declared!r}; expected a JSON Schema type.")
    return name


def _returns(spec: dict[str, Json]) -> Schema | None:
    fields = _described(spec, "output_parameters")
    if not fields:
        return None
    one: Schema = {
        "type": "object",
        "properties": {key: _schema(value, spec["name"], key) for key, value in fields.items()},
    }
    many: Schema = {"type": "array", "items": one}
    samples = spec.get("sample_responses")
    kinds = {type(sample) for sample in cast("list[Json]", samples)} & {list, dict} if isinstance(samples, list) else {}
    if kinds == {list}:
        return many
    return {"anyOf": [one, many]} if kinds == {list, dict} else one
