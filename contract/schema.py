"""Reading JSON Schema 2020-12 statically: which place a pointer leads to, which types it allows, property order.

Used by the checker (does a referenced place exist, can its type satisfy a parameter), by canonical text (property
order) and by the grammar. It answers "may be" where a schema does not decide; validation proper is jsonschema-rs's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

from plansmith.contract.plan import FORMAT, FROM, LITERAL, Json, pointer_text

Schema = Any
"""A JSON Schema: an object or a bool."""

ALL_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_INDEX = re.compile(r"0|[1-9][0-9]*")
_MAX_REF_DEPTH = 32
_MAX_BRANCHES = 512
_MAX_PARTS = 64


def deref(schema: Schema, root: Schema) -> Schema:
    """Follow `$ref` within `root` (`#`, `#/...` pointers); keywords beside it are kept, the reference's come first.

    A reference that cannot be followed here (an anchor, a cycle) gives True: anything may be there.
    """
    for _ in range(_MAX_REF_DEPTH):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return cast("Schema", schema)
        node = cast("dict[str, Any]", schema)
        target = _follow(node["$ref"], root)
        beside = {key: value for key, value in node.items() if key != "$ref"}
        if not beside or target is False:
            schema = target
        elif isinstance(target, dict):
            schema = {**cast("dict[str, Any]", target), **beside}
        else:
            schema = beside
    return True


def _follow(ref: Any, root: Schema) -> Schema:
    if not isinstance(ref, str) or (ref != "#" and not ref.startswith("#/")):
        return True
    node = root
    for token in ref[1:].split("/")[1:]:
        node = _member(node, token.replace("~1", "/").replace("~0", "~"))
    return node


def _member(node: Any, token: str) -> Any:
    """What a pointer token leads to; True (anything) where it leads nowhere."""
    if isinstance(node, dict):
        return cast("dict[str, Any]", node).get(token, True)
    if isinstance(node, list) and _INDEX.fullmatch(token) and int(token) < len(cast("list[Any]", node)):
        return cast("list[Any]", node)[int(token)]
    return True


def circular_reference(schema: Schema) -> str | None:
    """The first `$ref` that leads back to itself without entering a member of the value, or None.

    Such a schema says nothing, and a validator may need exponential time for it.
    """
    done: set[int] = set()
    for start in _referring(schema):
        path: list[tuple[dict[str, Any], Iterator[dict[str, Any]]]] = [(start, _in_place(start, schema))]
        open_nodes = {id(start)}
        while path and id(path[-1][0]) not in done:
            following = next(path[-1][1], None)
            if following is None:
                done.add(id(path[-1][0]))
                open_nodes.discard(id(path.pop()[0]))
            elif id(following) in open_nodes:
                return str(start["$ref"])
            elif id(following) not in done:
                open_nodes.add(id(following))
                path.append((following, _in_place(following, schema)))
    return None


def _referring(value: Any) -> Iterator[dict[str, Any]]:
    pending: list[Any] = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if isinstance(cast("dict[str, Any]", node).get("$ref"), str):
                yield cast("dict[str, Any]", node)
            pending += cast("dict[str, Any]", node).values()
        elif isinstance(node, list):
            pending += cast("list[Any]", node)


def _in_place(node: dict[str, Any], root: Schema) -> Iterator[dict[str, Any]]:
    """The schemas that judge the same value as this one; `node` may be no schema (a default that looks like one)."""
    found: list[Any] = [_follow(node["$ref"], root)] if "$ref" in node else []
    for key in ("not", "if", "then", "else", "allOf", "anyOf", "oneOf", "dependentSchemas"):
        value = node.get(key)
        if key == "dependentSchemas" and isinstance(value, dict):
            found += cast("dict[str, Any]", value).values()
        else:
            found += cast("list[Any]", value) if isinstance(value, list) else [value]
    return (cast("dict[str, Any]", item) for item in found if isinstance(item, dict))


def branches(schema: Schema, root: Schema) -> Iterator[Schema]:
    """The alternatives of a schema: itself, or those of its `anyOf`/`oneOf` with its own keywords merged in.

    Of very many (references in a circle make any number) the first ones come, then True: anything may be there.
    """
    for count, branch in enumerate(_branches(schema, root, 0)):
        if count == _MAX_BRANCHES:
            yield True
            return
        yield branch


def _branches(schema: Schema, root: Schema, depth: int) -> Iterator[Schema]:
    schema = deref(schema, root)
    if not isinstance(schema, dict) or depth > _MAX_REF_DEPTH:
        yield schema
        return
    node = cast("dict[str, Any]", schema)
    if "allOf" in node:
        many = len(cast("list[Schema]", node["allOf"])) > _MAX_PARTS
        yield from iter([True]) if many else _branches(_merge_all(node, root), root, depth + 1)
        return
    for keyword in ("anyOf", "oneOf"):
        if keyword in node:
            rest = {key: value for key, value in node.items() if key != keyword}
            for branch in cast("list[Schema]", node[keyword]):
                yield from _branches(_merge(rest, deref(branch, root)), root, depth + 1)
            return
    yield node


def _merge_all(node: dict[str, Any], root: Schema) -> Schema:
    merged: Schema = {key: value for key, value in node.items() if key != "allOf"}
    for part in cast("list[Schema]", node["allOf"]):
        merged = _merge(merged, deref(part, root))
    return merged


def _merge(a: Schema, b: Schema) -> Schema:
    """Both schemas at once, as far as places and types go."""
    if a is False or b is False:
        return False
    if not isinstance(a, dict):
        return b
    if not isinstance(b, dict):
        return cast("Schema", a)
    left, right = cast("dict[str, Any]", a), cast("dict[str, Any]", b)
    merged = {**left, **right}
    if "properties" in left and "properties" in right:
        merged["properties"] = {**left["properties"], **right["properties"]}
    if "required" in left and "required" in right:
        merged["required"] = [*left["required"], *right["required"]]
    if "type" in left and "type" in right:
        merged["type"] = sorted(_declared(left) & _declared(right) or _declared(right))
    if left.get("additionalProperties") is False and "properties" not in left:
        merged["additionalProperties"] = right.get("additionalProperties", True)
    for keyword in ("allOf", "anyOf", "oneOf"):
        if keyword in left and keyword in right:
            merged[keyword] = left[keyword] if keyword != "allOf" else [*left[keyword], *right[keyword]]
    return merged


def _declared(node: dict[str, Any]) -> frozenset[str]:
    declared = node.get("type")
    if declared is None:
        return ALL_TYPES
    names = frozenset([declared] if isinstance(declared, str) else cast("list[str]", declared))
    return names | {"integer"} if "number" in names else names


def type_name(value: Json) -> str:
    """JSON Schema type of a value; `3.0` is an integer, `true` is a boolean."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def types_of(schema: Schema, root: Schema) -> frozenset[str]:
    """Types that a value of this schema may have; `number` includes `integer`."""
    found: frozenset[str] = frozenset()
    for branch in branches(schema, root):
        if branch is False:
            continue
        if not isinstance(branch, dict):
            return ALL_TYPES
        node = cast("dict[str, Any]", branch)
        declared = _declared(node)
        if "const" in node:
            declared &= {type_name(node["const"])}
        elif isinstance(node.get("enum"), list):
            declared &= {type_name(item) for item in node["enum"]}
        found |= declared
    return found


def compatible(place: frozenset[str], wanted: frozenset[str]) -> bool:
    """Whether some value of the place's types is of the wanted types (a `number` may happen to be an integer)."""
    if "number" in place:
        place |= {"integer"}
    if "number" in wanted:
        wanted |= {"integer"}
    return bool(place & wanted)


class Place(NamedTuple):
    """Where a pointer leads in a schema."""

    exists: bool
    """False where no value of the schema has this place declared."""
    types: frozenset[str]
    """Types that the value there may have; all where the schema does not say."""
    closed: bool
    """Whether every schema on the way (the place included) says exactly what it holds."""
    missing: str | None = None
    """The first token that leads nowhere, where `exists` is False."""


def find_place(schema: Schema | None, tokens: Sequence[str]) -> Place:
    """Follow pointer tokens through a schema (None: nothing is known, every place may exist)."""
    if schema is None:
        return Place(True, ALL_TYPES, closed=False)
    current: list[Schema] = [schema]
    closed = True
    for token in tokens:
        following: list[Schema] = []
        for branch in [b for s in current for b in branches(s, schema)]:
            child, branch_closed = _child(branch, token)
            closed = closed and branch_closed
            if child is not None:
                following.append(child)
        if not following:
            return Place(False, frozenset(), closed, token)
        current = following
    types = frozenset(t for s in current for t in types_of(s, schema))
    leaves = [b for s in current for b in branches(s, schema)]
    return Place(True, types, closed and all(_is_closed(leaf) for leaf in leaves))


def _child(branch: Schema, token: str) -> tuple[Schema | None, bool]:
    """Schema below one alternative (None: it has no such place) and whether that alternative is closed."""
    if branch is False:
        return None, True
    if not isinstance(branch, dict) or not _describes_containers(cast("dict[str, Any]", branch)):
        return _child_of_untyped(branch)
    node = cast("dict[str, Any]", branch)
    types = _declared(node)
    if "object" in types and token in node.get("properties", {}):
        return node["properties"][token], _is_closed(node)
    if "object" in types:
        for pattern, child in cast("dict[str, Schema]", node.get("patternProperties", {})).items():
            if _pattern_matches(pattern, token):
                return child, _is_closed(node)
        extra = node.get("additionalProperties")
        if isinstance(extra, dict) or (extra is True):
            return cast("Schema", extra), False
        if extra is None and "properties" not in node and "patternProperties" not in node:
            return True, False
    if "array" in types and _INDEX.fullmatch(token):
        return _item_schema(node, int(token)), _is_closed(node)
    return None, _is_closed(node)


def _child_of_untyped(branch: Schema) -> tuple[Schema | None, bool]:
    node = cast("dict[str, Any]", branch) if isinstance(branch, dict) else {}
    may_nest = bool(types_of(node, node) & {"object", "array"})
    return (True, False) if may_nest else (None, True)


def _describes_containers(node: dict[str, Any]) -> bool:
    """Whether the alternative says anything about what its objects or arrays hold."""
    types = _declared(node)
    if "type" not in node and not node.keys() & {"properties", "additionalProperties", "items", "prefixItems"}:
        return False
    return bool(types & {"object", "array"})


def _item_schema(node: dict[str, Any], index: int) -> Schema | None:
    prefix = cast("list[Schema]", node.get("prefixItems", []))
    if index < len(prefix):
        return prefix[index]
    limit = node.get("maxItems")
    if isinstance(limit, int) and index >= limit:
        return None
    rest = node.get("items", True)
    return None if rest is False else rest


def _pattern_matches(pattern: str, token: str) -> bool:
    try:
        return re.search(pattern, token) is not None
    except re.error:
        return True


def _is_closed(branch: Schema) -> bool:
    """Whether an alternative says exactly which members its objects and arrays have."""
    if branch is False:
        return True
    if not isinstance(branch, dict):
        return False
    node = cast("dict[str, Any]", branch)
    types = types_of(node, node)
    if types == ALL_TYPES:
        return False
    if "object" in types and node.get("additionalProperties") is not False:
        return False
    return not ("array" in types and "items" not in node and "prefixItems" not in node)


def child_schema(schema: Schema, root: Schema, key: str | int, value: Json) -> Schema:
    """Schema of a member of `value`, which is of `schema`; of several alternatives, the one that declares most keys."""
    best: Schema = True
    best_score = -1
    keys = cast("dict[str, Json]", value) if isinstance(value, dict) else dict[str, Json]()
    for branch in branches(schema, root):
        if not isinstance(branch, dict) or type_name(value) not in types_of(branch, root):
            continue
        child, _ = _child(branch, str(key))
        score = sum(name in keys for name in cast("dict[str, Any]", branch).get("properties", {}))
        if child is not None and score > best_score:
            best, best_score = child, score
    return best


def property_order(schema: Schema, root: Schema, value: dict[str, Json]) -> list[str]:
    """Declared property names in schema order, of the alternative that declares most of the value's keys."""
    best: list[str] = []
    best_score = -1
    for branch in branches(schema, root):
        if isinstance(branch, dict):
            names = list(cast("dict[str, Any]", branch).get("properties", {}))
            score = len(set(names) & set(value))
            if score > best_score:
                best, best_score = names, score
    return best


def order_value(value: Json, schema: Schema, root: Schema) -> Json:
    """The value with object keys in schema order at every depth; operators in their own order, literals untouched."""
    if isinstance(value, list):
        items = cast("list[Json]", value)
        return [_order_member(item, schema, root, index, items) for index, item in enumerate(items)]
    if not isinstance(value, dict):
        return value
    node = cast("dict[str, Json]", value)
    if FROM in node or LITERAL in node:
        return node
    if FORMAT in node:
        return {key: node[key] for key in sorted(node, key=lambda key: key != FORMAT)}
    if not node:
        return node
    order = {name: rank for rank, name in enumerate(property_order(schema, root, node))}
    keys = sorted(node, key=lambda key: order.get(key, len(order)))
    return {key: _order_member(node[key], schema, root, key, node) for key in keys}


def _order_member(item: Json, schema: Schema, root: Schema, key: str | int, value: Json) -> Json:
    """A member of `value`, ordered; its schema is looked up only where there is something to order."""
    if not isinstance(item, dict | list) or (isinstance(item, dict) and FROM in item):
        return cast("Json", item)
    return order_value(cast("Json", item), child_schema(schema, root, key, value), root)


def schema_at(schema: Schema, tokens: Sequence[str | int], value: Json) -> Schema:
    """Schema of the place `tokens` inside `value`, which is of `schema`."""
    current, inner = schema, value
    for token in tokens:
        current = child_schema(current, schema, token, inner)
        inner = inner[token]
    return current


def pointer_of(tokens: Sequence[str | int]) -> str:
    """RFC 6901 text of a path of keys and indices."""
    return pointer_text(*tokens)
