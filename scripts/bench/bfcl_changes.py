"""Changes of right plans, and made-up rows, for the comparison with BFCL's checker (`bfcl_verdicts`).

Everything is drawn from the generator that is given. A change of a plan gives the changed plan (it may change the one
it is given), or None where it does not apply. Made-up rows hold what BFCL's rows happen not to: every type of parameter
with every type of allowed value, `""` and null among them, and calls that a step can be right for in several ways.
"""

from __future__ import annotations

import copy
import json
import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from plansmith.contract.importers.bfcl import from_bfcl
from plansmith.data.config import BfclCategory
from plansmith.data.sources.bfcl_items import BfclItem
from plansmith.data.sources.bfcl_plans import UnanswerableError, plan_of

Json = Any
Plan = list[dict[str, Json]]
SKIP = object()
"""What a change of a value gives where it does not apply."""


@dataclass(frozen=True)
class Case:
    """A row as an item of ours, and its function docs as BFCL's file has them."""

    item: BfclItem
    docs: list[dict[str, Json]]

    def required(self, function: str) -> list[str]:
        return next(doc for doc in self.docs if doc["name"] == function)["parameters"]["required"]

    def parameters(self, function: str) -> list[str]:
        return list(next(doc for doc in self.docs if doc["name"] == function)["parameters"]["properties"])


Change = Callable[[random.Random, Case, Plan], "Plan | None"]
ValueChange = Callable[[random.Random, Json], Json]


def places(value: Json, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place of a value, itself included."""
    yield at
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*at, key))


def change_value(rng: random.Random, plan: Plan, change: ValueChange) -> Plan | None:
    """Change a value somewhere in the arguments, at any depth; the first place in random order where it applies."""
    spots = [(i, path) for i, step in enumerate(plan) for path in places(step["args"]) if path]
    rng.shuffle(spots)
    for index, path in spots:
        holder = plan[index]["args"]
        for key in path[:-1]:
            holder = holder[key]
        new = change(rng, holder[path[-1]])
        if new is not SKIP:
            holder[path[-1]] = new
            return plan
    return None


def other_value(rng: random.Random, value: Json) -> Json:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + rng.choice([1, -1, 10, 0.5])
    if isinstance(value, str):
        return rng.choice([value + "x", value[1:], value[::-1], "", "other"])
    if isinstance(value, list) and value:
        return rng.choice([value[1:], value + value[:1], value[::-1], []])
    return {} if isinstance(value, dict) else SKIP


def with_mark(rng: random.Random, value: Json) -> Json:
    """Put a character in that BFCL passes over (or one that it does not)."""
    if not isinstance(value, str):
        return SKIP
    at = rng.randint(0, len(value))
    return value[:at] + rng.choice(" ,./-_*^'\";:!?()\t\n~") + value[at:]


def without_marks(rng: random.Random, value: Json) -> Json:
    found = [c for c in string.punctuation + string.whitespace if isinstance(value, str) and c in value]
    return value.replace(rng.choice(found), "") if found else SKIP


def other_case(rng: random.Random, value: Json) -> Json:
    return rng.choice([value.upper(), value.lower(), value.swapcase()]) if isinstance(value, str) else SKIP


def other_quotes(rng: random.Random, value: Json) -> Json:
    if not isinstance(value, str) or not set(value) & {"'", '"'}:
        return SKIP
    return value.translate(str.maketrans("'\"", "\"'")) if rng.random() < 0.5 else value.replace('"', "'")


def other_number_type(rng: random.Random, value: Json) -> Json:
    if isinstance(value, bool):
        return SKIP
    if isinstance(value, int):
        return float(value)
    return int(value) if isinstance(value, float) else SKIP


def other_type(rng: random.Random, value: Json) -> Json:
    """Texts, numbers, truth values, lists, objects and null in each other's place."""
    options: list[Json] = [None, True, json.dumps(value), str(value), [value], {"value": value}]
    if isinstance(value, bool | int | float):
        options += [int(value), float(value), bool(value), str(value).lower()]
    elif isinstance(value, str):
        options += [len(value), list(value), value.split()]
        options += [float(value)] if value.isdecimal() else []
    elif isinstance(value, list):
        options += [{str(index): item for index, item in enumerate(value)}, ", ".join(map(str, value))]
    elif isinstance(value, dict):
        options += [list(value), list(value.values()), [list(pair) for pair in value.items()]]
    return rng.choice(options)


def wrapped(rng: random.Random, value: Json) -> Json:
    return rng.choice([[value], [value, value], {"value": value}])


def unwrapped(rng: random.Random, value: Json) -> Json:
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return rng.choice(inside) if inside else SKIP


def emptied(rng: random.Random, value: Json) -> Json:
    return rng.choice(["", [], {}, None, 0, False])


def inside_object(rng: random.Random, value: Json) -> Json:
    """A key of an object dropped, renamed or added."""
    if not isinstance(value, dict):
        return SKIP
    kept = dict(value)
    if kept and rng.random() < 0.7:
        key = rng.choice(sorted(kept))
        gone = kept.pop(key)
        return {**kept, key + "_x": gone} if rng.random() < 0.3 else kept
    return {**kept, "unknown": rng.choice(["x", 1, []])}


def values_by(change: ValueChange) -> Change:
    return lambda rng, case, plan: change_value(rng, plan, change)


def drop_call(rng: random.Random, case: Case, plan: Plan) -> Plan | None:
    plan.pop(rng.randrange(len(plan)))
    return plan


def repeat_call(rng: random.Random, case: Case, plan: Plan) -> Plan | None:
    plan.insert(rng.randint(0, len(plan)), copy.deepcopy(rng.choice(plan)))
    return plan


def copy_over_call(rng: random.Random, case: Case, plan: Plan) -> Plan | None:
    if len(plan) < 2:
        return None
    first, second = rng.sample(range(len(plan)), 2)
    plan[first] = copy.deepcopy(plan[second])
    return plan


def reorder(rng: random.Random, case: Case, plan: Plan) -> Plan | None:
    if len(plan) < 2:
        return None
    rng.shuffle(plan)
    return plan


def no_call(rng: random.Random, case: Case, plan: Plan) -> Plan | None:
    return []


def rename_function(rng: random.Random, case: Case, plan: Plan) -> Plan | None:
    step = rng.choice(plan)
    others = [name for name in case.item.catalog.names if name != step["type"]]
    step["type"] = rng.choice([*others, step["type"] + "_", step["type"].upper(), ""])
    return plan


def dots_to_underscores(rng: random.Random, case: Case, plan: Plan) -> Plan | None:
    if not any("." in step["type"] for step in plan):
        return None
    return [step | {"type": step["type"].replace(".", "_")} for step in plan]


def drop_parameter(required: bool) -> Change:
    def change(rng: random.Random, case: Case, plan: Plan) -> Plan | None:
        found = [
            (step, key) for step in plan for key in step["args"] if (key in case.required(step["type"])) is required
        ]
        if not found:
            return None
        step, key = rng.choice(found)
        del step["args"][key]
        return plan

    return change


def add_parameter(rng: random.Random, case: Case, plan: Plan) -> Plan | None:
    rng.choice(plan)["args"]["unknown_parameter"] = rng.choice(["x", 1, None, ""])
    return plan


def add_optional(rng: random.Random, case: Case, plan: Plan) -> Plan | None:
    """Give a parameter that was left out: an allowed value, or another."""
    found = [
        (step, key, answer[step["type"]].get(key, []))
        for step, answer in zip(plan, case.item.allowed, strict=True)
        for key in case.parameters(step["type"])
        if key not in step["args"]
    ]
    if not found:
        return None
    step, key, allowed = rng.choice(found)
    step["args"][key] = copy.deepcopy(rng.choice([*allowed, "", None, 1, "x", True]))
    return plan


def allowed_values(rng: random.Random, case: Case, plan: Plan) -> Plan | None:
    """Every argument becomes one of its allowed values as they stand, `""` included; steps in any order."""
    for step, answer in zip(plan, case.item.allowed, strict=True):
        for key in step["args"]:
            step["args"][key] = copy.deepcopy(rng.choice(answer[step["type"]][key]))
    rng.shuffle(plan)
    return plan


def value_of_other_call(rng: random.Random, case: Case, plan: Plan) -> Plan | None:
    """Two calls of one function exchange an argument."""
    pairs = [
        (a, b, key)
        for i, a in enumerate(plan)
        for b in plan[i + 1 :]
        if a["type"] == b["type"]
        for key in a["args"].keys() & b["args"].keys()
    ]
    if not pairs:
        return None
    pairs.sort(key=lambda pair: pair[2])
    a, b, key = rng.choice(pairs)
    a["args"][key], b["args"][key] = b["args"][key], a["args"][key]
    return plan


def several(rng: random.Random, case: Case, plan: Plan) -> Plan | None:
    """Other allowed values, and one or two changed values besides."""
    changes = [other_case, with_mark, without_marks, other_value, other_type, other_number_type, wrapped, inside_object]
    found = allowed_values(rng, case, plan)
    for _ in range(rng.randint(1, 2)):
        found = found and change_value(rng, found, rng.choice(changes))
    return found


UNCHANGED = "none: the right plan"
CHANGES: dict[str, Change] = {
    "a call dropped": drop_call,
    "a call repeated": repeat_call,
    "a call in another's place": copy_over_call,
    "calls in another order": reorder,
    "an argument exchanged between calls": value_of_other_call,
    "no call": no_call,
    "another function": rename_function,
    "dots in names as underscores": dots_to_underscores,
    "a required parameter dropped": drop_parameter(True),
    "an optional parameter dropped": drop_parameter(False),
    "an optional parameter added": add_optional,
    "an unknown parameter added": add_parameter,
    "other allowed values": allowed_values,
    "another value": values_by(other_value),
    "another case": values_by(other_case),
    "a character put in": values_by(with_mark),
    "a character taken out": values_by(without_marks),
    "other quotes": values_by(other_quotes),
    "int as float, float as int": values_by(other_number_type),
    "another type": values_by(other_type),
    "wrapped": values_by(wrapped),
    "unwrapped": values_by(unwrapped),
    "empty": values_by(emptied),
    "an object's keys": values_by(inside_object),
    "several at once": several,
}


def changed_plans(rng: random.Random, case: Case, rounds: int) -> Iterator[tuple[str, Plan]]:
    """The right plan, then up to `rounds` other plans of every kind of change."""
    yield UNCHANGED, copy.deepcopy(case.item.plan)
    before = json.dumps(case.item.plan)
    for name, change in CHANGES.items():
        for _ in range(rounds):
            plan = change(rng, case, copy.deepcopy(case.item.plan))
            if plan is not None and json.dumps(plan) != before:
                yield name, plan


_VALUES: dict[str, list[Json]] = {
    "string": ["a", "A", "a b", "A.b", "it's", 'it"s', "1", " ", "true"],
    "integer": [0, 1, 2, -1],
    "float": [0.0, 1.0, 0.5, 1, 2],
    "boolean": [True, False],
    "any": ["a", "B", 1, True, [1], {"x": 1}],
}


def made_up_cases(rng: random.Random, count: int) -> list[Case]:
    """Rows of one or two functions with up to four calls."""
    cases: list[Case] = []
    while len(cases) < count:
        docs = [_doc(rng, name) for name in ("f", "g.h")[: rng.randint(1, 2)]]
        called = [rng.choice(docs) for _ in range(rng.randint(1, 4))]
        row = {"id": f"made-up-{len(cases)}", "question": [], "function": docs}
        catalog = from_bfcl(row, name=row["id"]).catalog
        allowed = [{doc["name"]: _allowed(rng, doc)} for doc in called]
        try:
            plan = plan_of(allowed, catalog)
        except UnanswerableError:
            continue
        item = BfclItem(row["id"], BfclCategory.PARALLEL_MULTIPLE, "", catalog, allowed, plan)
        cases.append(Case(item, docs))
    return cases


def _doc(rng: random.Random, name: str) -> dict[str, Json]:
    properties = {
        key: _schema(rng, [*_VALUES, "dict", "array", "tuple"]) for key in ("a", "b", "c")[: rng.randint(1, 3)]
    }
    required = [key for key in properties if rng.random() < 0.5]
    return {"name": name, "parameters": {"type": "dict", "properties": properties, "required": required}}


def _schema(rng: random.Random, types: list[str]) -> dict[str, Json]:
    kind = rng.choice(types)
    if kind in ("array", "tuple"):
        return {"type": kind, "items": _schema(rng, [*_VALUES, "dict", "array"])}
    return {"type": kind}


def _allowed(rng: random.Random, doc: dict[str, Json]) -> dict[str, list[Json]]:
    schemas = doc["parameters"]["properties"]
    return {key: _answers(rng, schema) for key, schema in schemas.items() if rng.random() < 0.9}


def _answers(rng: random.Random, schema: dict[str, Json]) -> list[Json]:
    """Allowed values of the parameter's type, now and then of another, with `""` anywhere."""
    other = {"type": rng.choice(list(_VALUES))}
    return [_answer(rng, schema if rng.random() < 0.9 else other) for _ in range(rng.randint(1, 3))]


def _answer(rng: random.Random, schema: dict[str, Json]) -> Json:
    if rng.random() < 0.15:
        return rng.choice(["", "", None])
    if schema["type"] == "dict":
        return {key: _answers(rng, {"type": rng.choice(list(_VALUES))}) for key in ("x", "y")[: rng.randint(1, 2)]}
    if schema["type"] in ("array", "tuple"):
        return [_answer(rng, schema["items"]) for _ in range(rng.randint(0, 3))]
    return copy.deepcopy(rng.choice(_VALUES[schema["type"]]))
