"""Parameters of a worker inside its `args` schema: which there are, whether they can be renamed, and renaming them.

A parameter's name may stand at any place of the schema that judges the argument object itself: `properties`,
`required`, `dependentRequired`, `dependentSchemas`, whole objects in `enum` or `const`, and all of these again inside
`allOf`, `anyOf`, `oneOf`, `not`, `if`, `then` and `else`. All of them are renamed alike. Schemas of values are not
touched, so names of nested properties stay. Not covered, and named by `why_fixed`: rules about names by pattern
(`patternProperties`, `propertyNames`), and references through which one schema judges arguments and values alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from plansmith.contract.plan import Json
from plansmith.contract.schema import Schema

_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else")
_OBJECTS = ("enum", "examples")
_OBJECT = ("const", "default")
_BY_PATTERN = ("patternProperties", "propertyNames", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_DEFINITIONS = ("#/$defs/", "#/definitions/")


def declared_parameters(args: Schema) -> list[str]:
    """Names under `properties`, of the schema itself first, then of the schemas that it combines."""
    found: dict[str, None] = {}
    for node in _in_place(args):
        found.update(dict.fromkeys(cast("dict[str, Any]", node.get("properties", {}))))
    return list(found)


def mentioned_names(args: Schema) -> set[str]:
    """Every name that the schema gives to a parameter, the undeclared ones of `required` and of rules included."""
    found = set(declared_parameters(args))
    for node in _in_place(args):
        found.update(cast("list[str]", node.get("required", [])))
        found.update(cast("dict[str, Any]", node.get("dependentSchemas", {})))
        for name, others in cast("dict[str, list[str]]", node.get("dependentRequired", {})).items():
            found |= {name, *others}
        for value in (*(item for key in _OBJECTS for item in node.get(key, [])), *(node.get(key) for key in _OBJECT)):
            found.update(cast("dict[str, Json]", value) if isinstance(value, dict) else {})
    return found


def why_fixed(args: Schema) -> str | None:
    """Why the parameters cannot be renamed, or None where they can."""
    for node in _in_place(args):
        for key in _BY_PATTERN:
            if key in node:
                return f"{key!r} is a rule about parameter names"
        if any(key in node for key in _REFERENCES):
            return "a reference stands for the arguments as a whole"
    for ref in _references(args):
        if not ref.startswith(_DEFINITIONS):
            return f"the reference {ref!r} may lead to the arguments as a whole"
    return None


def rename_parameters(args: Schema, names: Mapping[str, str]) -> Schema:
    """The schema with parameters renamed, in their order; `why_fixed` says whether that is right."""
    if not isinstance(args, dict):
        return args
    return {key: _keyword(key, value, names) for key, value in cast("dict[str, Any]", args).items()}


def _keyword(key: str, value: Any, names: Mapping[str, str]) -> Any:
    if key == "properties":
        return _keys(value, names)
    if key == "required":
        return [names.get(name, name) for name in cast("list[str]", value)]
    if key == "dependentRequired":
        pairs = cast("dict[str, list[str]]", value).items()
        return {names.get(name, name): [names.get(other, other) for other in others] for name, others in pairs}
    if key == "dependentSchemas":
        pairs = cast("dict[str, Schema]", value).items()
        return {names.get(name, name): rename_parameters(schema, names) for name, schema in pairs}
    if key in _LISTS:
        return [rename_parameters(schema, names) for schema in cast("list[Schema]", value)]
    if key in _SINGLE:
        return rename_parameters(value, names)
    if key in _OBJECTS and isinstance(value, list):
        return [_keys(item, names) for item in cast("list[Json]", value)]
    return _keys(value, names) if key in _OBJECT else value


def _keys(value: Json, names: Mapping[str, str]) -> Json:
    if not isinstance(value, dict):
        return value
    return {names.get(key, key): item for key, item in cast("dict[str, Json]", value).items()}


def _in_place(schema: Schema) -> Iterator[dict[str, Any]]:
    """The schema and those that it combines: all that judge the argument object itself, references left aside."""
    if not isinstance(schema, dict):
        return
    node = cast("dict[str, Any]", schema)
    yield node
    for key in _LISTS:
        for part in cast("list[Schema]", node.get(key, [])):
            yield from _in_place(part)
    for key in _SINGLE:
        yield from _in_place(node.get(key))
    for part in cast("dict[str, Schema]", node.get("dependentSchemas", {})).values():
        yield from _in_place(part)


def _references(value: Any) -> Iterator[str]:
    """Every reference at any depth; data that looks like one counts, to be on the safe side."""
    pending: list[Any] = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            for key, item in cast("dict[str, Any]", node).items():
                if key in _REFERENCES and isinstance(item, str):
                    yield item
                pending.append(item)
        elif isinstance(node, list):
            pending += cast("list[Any]", node)
