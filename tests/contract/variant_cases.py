"""Catalogs, plans and strategies that the tests of variants share."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from plansmith.contract import Catalog, Worker, check_plan
from plansmith.contract.plan import pointer_text
from plansmith.contract.variants import (
    Descriptions,
    NameStyle,
    Twist,
    Variant,
    confusable,
    renamed,
    shuffled,
    with_distractors,
)
from plansmith.contract.variants.base import Names
from plansmith.contract.variants.naming import changed

NAMES = ["a", "b", "city", "x y", "é", "type", "args", "arg_1", "arg_2", "arg_3", "arg_7", "given_city", "$no"]
"""Names of parameters, some of which a renaming would like to give itself."""
DESCRIPTIONS = ["", "Gives a. Takes b!", "Is it? Yes.", "one\ntwo", "über: „x“, e.g. y", "...", "Reads arg_1; really."]
POOL = Catalog(
    "pool",
    [
        Worker(name=name, args={"type": "object", "properties": {"city": {}}, "required": ["city"]})
        for name in ("garden_plant", "garden_water", "Fin.Get.Quote", "garden_dig")
    ],
)


def obj(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


@st.composite
def rules(draw: st.DrawFn, depth: int = 0) -> dict[str, Any]:
    """Rules over several arguments, at any place where a schema may name parameters."""
    names = st.sampled_from(NAMES[:-1])
    some = st.lists(names, max_size=2, unique=True)
    made: dict[str, Any] = {}
    if draw(st.integers(0, 3)) == 0:
        made["required"] = draw(some)
    if draw(st.integers(0, 3)) == 0:
        made["dependentRequired"] = draw(st.dictionaries(names, some, max_size=2))
    if draw(st.integers(0, 3)) == 0:
        made["properties"] = {name: {"type": "string"} for name in draw(some)}
    if draw(st.integers(0, 5)) == 0:
        made["enum"] = draw(st.lists(st.dictionaries(names, st.integers(0, 1), max_size=2), min_size=1, max_size=2))
    if depth < 2:
        inner = rules(depth + 1)
        for key in ("not", "if", "then", "else"):
            if draw(st.integers(0, 5)) == 0:
                made[key] = draw(inner)
        for key in ("allOf", "anyOf", "oneOf"):
            if draw(st.integers(0, 5)) == 0:
                made[key] = draw(st.lists(inner, min_size=1, max_size=2))
        if draw(st.integers(0, 5)) == 0:
            made["dependentSchemas"] = draw(st.dictionaries(names, inner, max_size=2))
    return made


@st.composite
def catalogs_with_rules(draw: st.DrawFn) -> Catalog:
    """Workers whose schemas name their parameters in many places; open and closed ones."""
    workers: list[Worker] = []
    for name in draw(st.lists(st.sampled_from(["w", "func_a1", "W (x)"]), min_size=1, max_size=3, unique=True)):
        declared = draw(st.lists(st.sampled_from(NAMES[:-1]), max_size=4, unique=True))
        own = {
            key: draw(st.sampled_from([{"type": "string"}, {"type": "integer"}, {"type": "object"}, True]))
            for key in declared
        }
        args = {"type": "object", **draw(rules())}
        args["properties"] = own
        if draw(st.booleans()):
            args["additionalProperties"] = draw(st.sampled_from([True, {"type": "string"}]))
        workers.append(Worker(name=name, args=args, description=draw(st.sampled_from(DESCRIPTIONS))))
    return Catalog("rules", workers)


@st.composite
def described(draw: st.DrawFn, base: st.SearchStrategy[Catalog]) -> Catalog:
    """The catalog with descriptions."""
    catalog = draw(base)
    workers = [changed(worker, description=draw(st.sampled_from(DESCRIPTIONS))) for worker in catalog.workers]
    return Catalog(catalog.name, workers)


@st.composite
def variants(
    draw: st.DrawFn, catalog: Catalog, kinds: tuple[str, ...] = ("shuffled", "renamed", "more", "near")
) -> Variant:
    """A variant that removes nothing; sometimes two changes in a row."""
    seed = draw(st.integers(0, 999))
    kind = draw(st.sampled_from(kinds))
    if kind == "shuffled":
        made = shuffled(catalog, seed, parameters=draw(st.booleans()))
    elif kind == "renamed":
        made = renamed(
            catalog,
            seed,
            worker_rate=draw(st.floats(0, 1)),
            parameter_rate=draw(st.floats(0, 1)),
            style=draw(st.sampled_from(NameStyle)),
            descriptions=draw(st.sampled_from(Descriptions)),
        )
    elif kind == "more":
        made = with_distractors(catalog, POOL, draw(st.integers(0, 3)), seed)
    else:
        most = len(catalog.workers) * len(Twist)
        made = confusable(catalog, seed, used=catalog.names, count=draw(st.integers(0, most)))
    if draw(st.integers(0, 2)) == 0:
        made = made.then(draw(variants(made.catalog, ("shuffled", "renamed"))))
    return made


def faults(plan: Any, catalog: Catalog, names: Names | None = None) -> set[tuple[str, str, int | None, str]]:
    """Findings without their words; with `names`, their paths are those of the renamed plan."""
    found: set[tuple[str, str, int | None, str]] = set()
    for finding in check_plan(plan, catalog).findings:
        tokens: list[Any] = [t.replace("~1", "/").replace("~0", "~") for t in finding.path.split("/")[1:]]
        if names is not None and len(tokens) > 2 and tokens[1] == "args":
            worker = plan[int(tokens[0])].get("type")
            own = names.parameters.get(worker, {}) if isinstance(worker, str) else {}
            tokens[2] = own.get(tokens[2], tokens[2])
        found.add((finding.fault, finding.severity, finding.step, pointer_text(*tokens)))
    return found


def is_shaped(plan: Any) -> bool:
    return isinstance(plan, list) and all(
        isinstance(step, dict)
        and step.keys() <= {"type", "args", "after"}
        and isinstance(step.get("type"), str)
        and isinstance(step.get("args"), dict)
        and isinstance(step.get("after", []), list)
        for step in plan
    )


arguments = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([0, 1, "s", {}, {"city": 1}, None]), max_size=5)


ASSISTANT = Catalog(
    "assistant",
    [
        Worker(
            name="fin_get_quote",
            description="Current price of a stock. The stock is a ticker.",
            args=obj({"stock": {"type": "string", "title": "Stock"}}, required=["stock"]),
            returns=obj({"price": {"type": "number"}, "stock": {"type": "string"}}, additionalProperties=False),
        ),
        Worker(
            name="cal_add_event",
            description="Add an event.",
            args=obj(
                {
                    "title": {"type": "string", "description": "Title of the event. As said."},
                    "time": {"type": "string"},
                    "place": obj({"title": {"type": "string"}, "time": {"type": "string"}}),
                },
                required=["title", "time"],
                dependentRequired={"place": ["time"]},
                dependentSchemas={"place": {"required": ["title"], "properties": {"time": {"minLength": 1}}}},
                allOf=[{"if": {"required": ["place"]}, "then": {"properties": {"title": {"maxLength": 9}}}}],
            ),
        ),
        Worker(name="msg_send", args=obj({"to": {}, "text": {"type": "string"}}, required=["to"])),
    ],
)
PLAN: list[dict[str, Any]] = [
    {"type": "fin_get_quote", "args": {"stock": "title"}},
    {
        "type": "cal_add_event",
        "args": {
            "title": {"$format": "{0} time", "with": [{"$from": "/0/stock"}]},
            "time": "time",
            "place": {"title": "t", "time": {"$from": "/0/stock"}},
        },
        "after": [0],
    },
    {"type": "msg_send", "args": {"to": {"$literal": {"$from": "to"}}, "text": "#E1"}},
]


def worker_of(variant: Variant, old_name: str) -> Worker:
    worker = variant.catalog.get(variant.names.worker(old_name))
    assert worker is not None
    return worker


SAID = {Twist.REHEARSAL: "software tests only", Twist.RETIRED: "switched off", Twist.AUDIT: "auditors only"}
