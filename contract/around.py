"""Validators for argument values: plain ones, and ones that check around operators.

A value such as `["a@b.org", {"$from": "/0/address"}]` cannot be validated as it stands, since the operator is not yet a
value. The second kind of validator treats each operator as "may be anything", checks what `$literal` holds, and keeps
every other rule that does not depend on the operator's value. Validation itself is jsonschema-rs's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import jsonschema_rs

from plansmith.contract.plan import LITERAL
from plansmith.contract.schema import Schema, types_of

_IS_OPERATOR = {"type": "object", "not": {"propertyNames": {"pattern": "^([^$]|$)"}}}
_ID = "urn:plansmith:args"

_ONE_SCHEMA = ("items", "contains", "additionalProperties", "unevaluatedItems", "unevaluatedProperties")
_MANY_SCHEMAS = ("anyOf", "allOf", "prefixItems")
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
_UNDECIDED = ("not", "if", "then", "else", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties")
"""Keywords whose verdict could turn once an operator has its value: not applied around operators."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of one worker, with its validators compiled on first use."""

    schema: Schema
    root: dict[str, Any]
    """The worker's `args`, in which references are looked up."""
    pointer: tuple[str, ...]
    """Tokens of `schema` below `root`."""

    @cached_property
    def types(self) -> frozenset[str]:
        return types_of(self.schema, self.root)

    @cached_property
    def plain(self) -> jsonschema_rs.Draft202012Validator:
        """For values without operators."""
        return subschema_validator(self.root, self.pointer)

    @cached_property
    def around(self) -> jsonschema_rs.Draft202012Validator:
        """For values that hold operators (or are one)."""
        return subschema_validator(around_operators(self.root), self.pointer)


def subschema_validator(root: dict[str, Any], pointer: tuple[str, ...]) -> jsonschema_rs.Draft202012Validator:
    """A validator for the schema at `pointer`; its `#/...` references still lead into `root`."""
    text = "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in pointer)
    fragment = "".join(c if c.isascii() and (c.isalnum() or c in "/~-._") else _percent(c) for c in text)
    resource = {key: value for key, value in root.items() if key not in ("$schema", "$id")}
    wrapper = {"$defs": {"args": {"$id": _ID, **resource}}, "$ref": f"{_ID}#{fragment}"}
    return jsonschema_rs.Draft202012Validator(wrapper, retriever=_refuse)


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _refuse(uri: str) -> Any:
    raise ValueError(f"reference {uri!r} leads outside the schema")


def around_operators(schema: Schema) -> Schema:
    """The schema's root with every value below it allowed to be an operator."""
    if not isinstance(schema, dict):
        return schema
    return _inside(cast("dict[str, Any]", schema))


def _value(schema: Schema) -> Schema:
    """A place where an operator may stand instead of a value; what a literal holds is checked like the value."""
    if not isinstance(schema, dict):
        return schema
    node = cast("dict[str, Any]", schema)
    literal = {"properties": {LITERAL: node}}
    return {"if": _IS_OPERATOR, "then": literal, "else": _inside(node)}


def _inside(node: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    also: list[Schema] = []
    for key, value in node.items():
        if key in _UNDECIDED:
            continue
        if key in _ONE_SCHEMA:
            made[key] = _value(value)
        elif key in _MANY_SCHEMAS:
            made[key] = [_value(item) for item in value]
        elif key in _NAMED_SCHEMAS:
            made[key] = {name: _value(item) for name, item in value.items()}
        elif key == "oneOf":  # two alternatives may both hold until the operator has its value
            also.append({"anyOf": [_value(item) for item in value]})
        elif key in ("enum", "const"):
            also.append(_enum(value if key == "enum" else [value]))
        else:
            made[key] = _moved(value) if key == "$ref" else value
    return made | {"allOf": [*made.get("allOf", []), *also]} if also else made


def _moved(ref: str) -> str:
    """Where a `#/...` reference leads once every value on its way stands under `else`."""
    if not ref.startswith("#/"):
        return ref
    tokens = ref[2:].split("/")
    made: list[str] = []
    while tokens:
        taken = 2 if tokens[0] in (*_NAMED_SCHEMAS, *_MANY_SCHEMAS) else 1
        made += tokens[:taken]
        tokens = tokens[taken:]
        if tokens:
            made.append("else")
    return "#/" + "/".join(made)


def _enum(members: list[Any]) -> Schema:
    """Scalars must be members; an array or object may become one once its operators have values."""
    containers = {"array" if isinstance(member, list) else "object" for member in members if _is_container(member)}
    return {"anyOf": [{"enum": members}, {"type": sorted(containers)}]} if containers else {"enum": members}


def _is_container(value: Any) -> bool:
    return isinstance(value, list | dict)
