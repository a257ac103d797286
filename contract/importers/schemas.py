"""Foreign JSON Schemas made into what a catalog holds: JSON Schema 2020-12, `args` with their parameters at the top.

Reads schemas of draft 4 to 2020-12 and OpenAPI 3.0 as OpenAI, MCP and BFCL files hold them. Only keywords that 2020-12
reads otherwise (or not at all) are rewritten, each with a note; all else stays as it is, `$ref` and `$defs` included.
Not covered: `$recursiveRef`, `$id` scopes, and meaning that other drafts give to keywords beside a `$ref`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import jsonschema_rs

from plansmith.contract.errors import InputError
from plansmith.contract.importers.result import Notes, short
from plansmith.contract.plan import pointer_text
from plansmith.contract.schema import branches

Node = dict[str, Any]

SCHEMA_KEYS = (
    "items",
    "additionalProperties",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "unevaluatedItems",
    "unevaluatedProperties",
)
"""Keywords whose value is a schema."""
LIST_KEYS = ("allOf", "anyOf", "oneOf", "prefixItems")
"""Keywords whose value is a list of schemas."""
MAP_KEYS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value maps names to schemas."""

_NULL_MEANS_VALUE = {"const", "default"}
_COMBINED = ("$ref", "allOf", "anyOf", "oneOf")


def subschemas(node: Node) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The schemas directly inside one, each with its path from there; examples, enums and defaults are no schemas."""
    for key in SCHEMA_KEYS:
        if key in node and not isinstance(node[key], list):
            yield (key,), node[key]
    for key in (*LIST_KEYS, "items"):
        if isinstance(node.get(key), list):
            for index, child in enumerate(cast("list[Any]", node[key])):
                yield (key, str(index)), child
    for key in MAP_KEYS:
        if isinstance(node.get(key), dict):
            for name, child in cast("Node", node[key]).items():
                yield (key, name), child


def args_schema(schema: Any, worker: str, notes: Notes, *, types: Mapping[str, str] | None = None) -> Node:
    """The schema of a worker's arguments, of type object and with all parameters at its top.

    Args:
        schema: a JSON Schema; None or `{}` stands for a worker without parameters.
        worker: name for messages.
        notes: receives what was rewritten.
        types: other type names and what they mean, for sources that do not use JSON Schema's; empty text: any type.

    Raises:
        InputError: it is not an object schema.

    """
    if schema is None or schema == {}:
        return {"type": "object", "properties": {}}
    where = f"worker {worker!r}, /args"
    if not isinstance(schema, dict):
        raise InputError(f"the parameters of {worker!r} must be an object schema, found {short(schema)}")
    node = cast("Node", _rewrite(cast("Node", schema), where, notes, types or {}))
    if any(key in node for key in _COMBINED):
        node = _lift(node, where, notes)
    declared = node.get("type")
    if declared is None:
        notes.add("type 'object' added: parameters are always an object", where)
    elif isinstance(declared, list) and "object" in declared:
        notes.add(f"type {declared!r} read as 'object': parameters are always an object", where)
    elif declared != "object":
        raise InputError(f"the parameters of {worker!r} must have type 'object', found {short(declared)}")
    node = {"type": "object", **{key: value for key, value in node.items() if key != "type"}}
    _note_undeclared(node, where, notes)
    return node


def returns_schema(schema: Any, worker: str, notes: Notes, *, types: Mapping[str, str] | None = None) -> Node | None:
    """The schema of a worker's result; None where the source has none, or one that allows everything."""
    if schema is None or schema is True or schema == {}:
        return None
    if not isinstance(schema, dict):
        raise InputError(f"the result schema of {worker!r} must be an object, found {short(schema)}")
    return cast("Node", _rewrite(cast("Node", schema), f"worker {worker!r}, /returns", notes, types or {}))


def _note_undeclared(node: Node, where: str, notes: Notes) -> None:
    properties = node.get("properties", {})
    required = node.get("required", [])
    if isinstance(properties, dict) and isinstance(required, list):
        for name in cast("list[Any]", required):
            if isinstance(name, str) and name not in properties:
                notes.add(f"parameter {name!r} is required but not declared: no call can be valid", where)


def _rewrite(schema: Any, where: str, notes: Notes, types: Mapping[str, str]) -> Any:
    """The schema with everything in it in the words of 2020-12; what is no schema stays for the catalog to refuse."""
    if not isinstance(schema, dict):
        return schema
    node = _without_nulls(cast("Node", schema), where, notes)
    _rewrite_types(node, where, notes, types)
    _rewrite_old_keywords(node, where, notes)
    for key, value in node.items():
        if key in MAP_KEYS and isinstance(value, dict):
            children = cast("Node", value).items()
            node[key] = {
                name: _rewrite(child, where + pointer_text(key, name), notes, types) for name, child in children
            }
        elif key in (*LIST_KEYS, "items") and isinstance(value, list):
            parts = enumerate(cast("list[Any]", value))
            node[key] = [_rewrite(child, where + pointer_text(key, index), notes, types) for index, child in parts]
        elif key in SCHEMA_KEYS:
            node[key] = _rewrite(value, where + pointer_text(key), notes, types)
    _lift_required(node, cast("Node", schema), where, notes)
    return node


def _without_nulls(schema: Node, where: str, notes: Notes) -> Node:
    node: Node = {}
    for key, value in schema.items():
        if key == "$schema":
            notes.add("'$schema' is dropped: catalogs are JSON Schema 2020-12", where)
        elif value is None and key not in _NULL_MEANS_VALUE:
            notes.add(f"{key!r} is null and dropped", where)
        else:
            node[key] = value
    return node


def _rewrite_types(node: Node, where: str, notes: Notes, types: Mapping[str, str]) -> None:
    """Map the source's type names; a name that maps to the empty text means any type."""
    declared = node.get("type")
    names = cast("list[Any]", declared if isinstance(declared, list) else [declared])
    found = [name for name in names if isinstance(name, str) and name in types]
    for name in found:
        meaning = repr(types[name]) if types[name] else "any type"
        notes.add(f"type {name!r} read as {meaning}", where)
    if not found:
        return
    mapped = list(dict.fromkeys(types.get(name, name) if isinstance(name, str) else name for name in names))
    if "" in mapped:
        del node["type"]
    else:
        node["type"] = mapped if isinstance(declared, list) else mapped[0]


def _rewrite_old_keywords(node: Node, where: str, notes: Notes) -> None:
    """Keywords of drafts 3 to 7 and of OpenAPI 3.0 that 2020-12 refuses or passes over."""
    if isinstance(node.get("items"), list) and "prefixItems" not in node:
        notes.add("'items' with a list read as 'prefixItems'", where)
        node["prefixItems"] = node.pop("items")
        if "additionalItems" in node:
            node["items"] = node.pop("additionalItems")
        if not node["prefixItems"]:
            del node["prefixItems"]
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(node.get(exclusive), bool):
            notes.add(f"{exclusive!r} with a truth value read as in draft 4", where)
            if node.pop(exclusive) and bound in node:
                node[exclusive] = node.pop(bound)
    if isinstance(node.get("nullable"), bool):
        notes.add("'nullable' read as a type beside 'null'", where)
        if node.pop("nullable"):
            _allow_null(node)
    if isinstance(node.get("dependencies"), dict):
        notes.add("'dependencies' read as 'dependentRequired' and 'dependentSchemas'", where)
        for name, value in cast("Node", node.pop("dependencies")).items():
            key = "dependentRequired" if isinstance(value, list) else "dependentSchemas"
            if isinstance(node.setdefault(key, {}), dict):
                node[key] = {**node[key], name: value}


def _allow_null(node: Node) -> None:
    declared = node.get("type")
    if isinstance(declared, str):
        node["type"] = [declared, "null"]
    elif isinstance(declared, list) and "null" not in declared:
        node["type"] = [*cast("list[Any]", declared), "null"]
    elif declared is None and isinstance(node.get("anyOf"), list):
        node["anyOf"] = [*cast("list[Any]", node["anyOf"]), {"type": "null"}]
    elif declared is None and "$ref" in node:
        node["anyOf"] = [{"$ref": node.pop("$ref")}, {"type": "null"}]
    if isinstance(node.get("enum"), list) and None not in node["enum"]:
        node["enum"] = [*cast("list[Any]", node["enum"]), None]


def _lift_required(node: Node, source: Node, where: str, notes: Notes) -> None:
    """`required: true` and `optional: true` in a property move into the `required` list of its object."""
    properties = node.get("properties")
    if not isinstance(properties, dict):
        return
    given = source.get("required")
    required = list(cast("list[Any]", given)) if isinstance(given, list) else []
    before = list(required)
    kept: Node = {}
    for name, child in cast("Node", properties).items():
        flags = {key: child[key] for key in ("required", "optional") if _is_flag(child, key)}
        kept[name] = {key: value for key, value in child.items() if key not in flags} if flags else child
        for key in flags:
            notes.add(
                f"{key!r} inside a parameter moved into the list 'required'", where + pointer_text("properties", name)
            )
        needed = flags.get("required", name in required) and not flags.get("optional", False)
        if needed and name not in required:
            required.append(name)
        elif not needed and name in required:
            required.remove(name)
    node["properties"] = kept
    if required != before:
        node["required"] = required


def _is_flag(child: Any, key: str) -> bool:
    return isinstance(child, dict) and isinstance(cast("Node", child).get(key), bool)


def _lift(node: Node, where: str, notes: Notes) -> Node:
    """Bring parameters that stand behind a reference or in alternatives to the top, where a catalog looks for them.

    Alternatives stay beside them, so a call is still checked against each.
    """
    if not jsonschema_rs.meta.is_valid({**node, "$schema": "https://json-schema.org/draft/2020-12/schema"}):
        return node
    found: list[Node] = []
    for branch in branches(node, node):
        if isinstance(branch, dict) and "$ref" not in branch:
            found.append(cast("Node", branch))
    if not found and "$ref" in node:
        raise InputError(f"{where}: the reference {short(node['$ref'])} leads to no parameters in the same schema")
    if not found:
        return node
    variants: dict[str, list[Any]] = {}
    for branch in found:
        for name, child in cast("Node", branch.get("properties", {})).items():
            known = variants.setdefault(name, [])
            if child not in known:
                known.append(child)
    if "$ref" not in node and variants.keys() <= node.get("properties", {}).keys():
        return node
    notes.add("parameters behind '$ref', 'allOf', 'anyOf' or 'oneOf' are declared at the top as well", where)
    required = [name for name in variants if all(name in _names(b.get("required")) for b in found)]
    lifted = {key: value for key, value in node.items() if key not in ("properties", "required", "type")}
    if len(found) == 1:
        lifted = {**found[0], **lifted}
        lifted.pop("$ref", None)
    properties = {name: child[0] if len(child) == 1 else {"anyOf": child} for name, child in variants.items()}
    return {**lifted, "type": _common_type(found), "properties": properties, "required": required}


def _common_type(found: list[Node]) -> Any:
    """`object` where an alternative may be one (no type stands for every type), else what the first one says."""
    for branch in found:
        declared = branch.get("type", "object")
        if declared == "object" or (isinstance(declared, list) and "object" in declared):
            return "object"
    return found[0]["type"]


def _names(required: Any) -> list[Any]:
    return cast("list[Any]", required) if isinstance(required, list) else []
