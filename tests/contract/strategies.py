"""Hypothesis strategies: arbitrary JSON, random catalogs, and random valid plans over a catalog."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from plansmith.contract import Catalog, Worker
from plansmith.contract.plan import pointer_text
from plansmith.contract.schema import compatible, find_place, types_of

KEYS = st.sampled_from(["a", "b", "c", "city", "x y", "é", "d.e", "f~g", "h/i", "type", "args"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
OPERATOR_KEYS = st.sampled_from(["$from", "$format", "with", "$literal", "$x", "type", "args", "after", "a", "city"])


def json_values(max_leaves: int = 12) -> st.SearchStrategy[Any]:
    """Arbitrary JSON, with a taste for the words of plans."""
    leaves = SCALARS | st.sampled_from(["/0", "/0/a", "/1", "fin_get_quote", "#E1", "{0}", "$1"])
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(OPERATOR_KEYS, inner, max_size=4),
        max_leaves=max_leaves,
    )


@st.composite
def schemas(draw: st.DrawFn, depth: int = 0, open_objects: bool = False) -> dict[str, Any]:
    """A JSON Schema of the kinds that catalogs use."""
    kinds = ["string", "integer", "number", "boolean", "enum", "nullable"]
    kind = draw(st.sampled_from(kinds if depth >= 2 else [*kinds, "array", "object", "anyOf"]))
    if kind == "enum":
        return {"enum": draw(st.lists(st.sampled_from(["x", "y", 'q"', 1, 2.5, True, None]), min_size=1, unique=True))}
    if kind == "nullable":
        return {"type": ["string", "null"]}
    if kind == "array":
        return {"type": "array", "items": draw(schemas(depth + 1, open_objects)), "minItems": draw(st.integers(0, 2))}
    if kind == "anyOf":
        return {"anyOf": draw(st.lists(schemas(depth + 1, open_objects), min_size=1, max_size=2))}
    if kind == "object":
        return draw(object_schemas(depth + 1, open_objects))
    return {"type": kind}


@st.composite
def object_schemas(draw: st.DrawFn, depth: int = 0, open_objects: bool = False) -> dict[str, Any]:
    properties = draw(st.dictionaries(KEYS, schemas(depth, open_objects), max_size=3))
    required = [name for name in properties if draw(st.booleans())]
    closed = not (open_objects and draw(st.booleans()))
    schema = {"type": "object", "properties": properties, "required": required}
    return schema | ({"additionalProperties": False} if closed else {})


@st.composite
def catalogs(draw: st.DrawFn, max_workers: int = 4) -> Catalog:
    names = draw(
        st.lists(
            st.sampled_from(["fin_get_quote", "Get_Reviews(Tips)", "a.b", "über", 'say "hi"', "x"]),
            min_size=1,
            max_size=max_workers,
            unique=True,
        )
    )
    workers = [
        Worker(name=name, args=draw(object_schemas()), returns=draw(st.none() | object_schemas(open_objects=True)))
        for name in names
    ]
    return Catalog("random", workers)


@st.composite
def values(draw: st.DrawFn, schema: Any, root: Any, step: int, catalog: Catalog, plan: list[Any]) -> Any:
    """A value of the schema, or an operator in its place."""
    if step and draw(st.integers(0, 4)) == 0:
        reference = draw(references(schema, root, step, catalog, plan))
        if reference is not None:
            return reference
    if "anyOf" in schema:
        return draw(values(draw(st.sampled_from(schema["anyOf"])), root, step, catalog, plan))
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    kind = schema["type"]
    if isinstance(kind, list):
        kind = draw(st.sampled_from(kind))
    if kind == "string":
        return draw(texts(step))
    if kind == "array":
        inner = values(schema["items"], root, step, catalog, plan)
        return draw(st.lists(inner, min_size=schema["minItems"], max_size=schema["minItems"] + 2))
    if kind == "object":
        return draw(arguments(schema, root, step, catalog, plan))
    simple = {"integer": st.integers(-99, 99), "number": st.floats(-9, 9), "boolean": st.booleans(), "null": st.none()}
    return draw(simple[kind])


@st.composite
def texts(draw: st.DrawFn, step: int) -> Any:
    if step and draw(st.integers(0, 5)) == 0:
        with_ = [{"$from": "/0"}, draw(st.sampled_from([1, 2.5, "x", None, True]))]
        return {"$format": draw(st.sampled_from(["{0}", "{{a}} {1} é", "none", "{1}{0}"])), "with": with_}
    return draw(st.text(st.characters(codec="utf-8"), max_size=6))


@st.composite
def references(draw: st.DrawFn, schema: Any, root: Any, step: int, catalog: Catalog, plan: list[Any]) -> Any:
    """A reference to an earlier result that the checker takes without an error, or None."""
    target = draw(st.integers(0, step - 1))
    returns = catalog.get(plan[target]["type"]).returns
    tokens = draw(st.lists(KEYS, max_size=1))
    place = find_place(returns, tokens)
    wanted = types_of(schema, root)
    if place.closed and not (place.exists and compatible(place.types, wanted)):
        return None
    return {"$from": pointer_text(target, *tokens)}


@st.composite
def arguments(draw: st.DrawFn, schema: Any, root: Any, step: int, catalog: Catalog, plan: list[Any]) -> dict[str, Any]:
    names = [name for name in schema["properties"] if name in schema["required"] or draw(st.booleans())]
    names = draw(st.permutations(names))
    return {name: draw(values(schema["properties"][name], root, step, catalog, plan)) for name in names}


@st.composite
def plans(draw: st.DrawFn, catalog: Catalog, max_steps: int = 4) -> list[dict[str, Any]]:
    """A valid plan, its keys in random order."""
    made: list[dict[str, Any]] = []
    for index in range(draw(st.integers(0, max_steps))):
        worker = draw(st.sampled_from(catalog.workers))
        step = {"type": worker.name, "args": draw(arguments(worker.args, worker.args, index, catalog, made))}
        if index and draw(st.integers(0, 3)) == 0:
            step["after"] = draw(st.lists(st.integers(0, index - 1), min_size=1, max_size=2, unique=True))
        keys = draw(st.permutations(list(step)))
        made.append({key: step[key] for key in keys})
    return made


@st.composite
def catalogs_with_plans(draw: st.DrawFn) -> tuple[Catalog, list[dict[str, Any]]]:
    catalog = draw(catalogs())
    return catalog, draw(plans(catalog))


@st.composite
def mutated(draw: st.DrawFn, value: Any) -> Any:
    """The value with one place changed: replaced, removed, renamed or wrapped."""
    if isinstance(value, list) and value and draw(st.integers(0, 3)):
        index = draw(st.integers(0, len(value) - 1))
        return [*value[:index], draw(mutated(value[index])), *value[index + 1 :]]
    if isinstance(value, dict) and value and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(list(value)))
        action = draw(st.sampled_from(["inner", "inner", "inner", "drop", "rename"]))
        if action == "inner":
            return {k: draw(mutated(v)) if k == key else v for k, v in value.items()}
        kept = {k: v for k, v in value.items() if k != key}
        return kept if action == "drop" else kept | {draw(OPERATOR_KEYS): value[key]}
    return draw(json_values(4))
