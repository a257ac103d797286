"""BFCL's verdict on function calls: values against lists of allowed values, parallel calls in any order.

Reads a plan and BFCL's possible answer (`contract.records.AllowedCalls`); pure. The rule is that of the Berkeley
Function Calling Leaderboard (v4, package `bfcl-eval` 2026.3.23, Apache-2.0, its checker for Python); none of its code
is used. How the two were compared row by row, and every difference: `docs/bfcl.md`.

**A plan is right** where it has as many steps as the answer has calls, and steps and calls can be paired so that each
step is a right call. `bfcl_ast` looks for such a pairing among all of them; `bfcl_ast_greedy` takes, like BFCL, for
one call after the other the first step left that is right for it, and so may take a step that a later call needed. An
answer without calls (BFCL's irrelevance categories) is matched by the plan `[]` alone.

**A step is a right call** where it names the call's worker, gives every parameter that the catalog requires, gives none
that the catalog or the answer does not have, leaves out only parameters whose allowed values hold `""`, and every value
is right.

**A value is right** by the parameter's type (`string`, `integer`, `number`, `boolean`, `array`, `object`; no type
counts as `string`) and by the type of the first allowed value that is not `""`:

- Where the types differ, BFCL takes the allowed values for variables: the value has one of the two types (of each entry
  of an array the type is looked at, too) and equals an allowed one as it is, in Python's sense: 1, 1.0 and true are
  equal.
- Where they agree, the value has that type (an integer is a number, a truth value is none, `3.0` is no integer), and
  - a string equals an allowed one after normalisation (`standardize`);
  - an array equals an allowed one with the strings in it normalised; arrays and objects inside it are compared as they
    are; the allowed value `""` stands for `[]` here;
  - an array of objects has an allowed array's length and each object is right for the one at its place;
  - an object has only keys of one allowed object, leaves out only those whose values hold `""`, and has under each key
    one of that key's allowed values, strings normalised, all else as it is;
  - anything else equals an allowed value.
- The entries of an array have the type that `items` names, or that of the first entry of an allowed array. An integer
  is no number here: BFCL converts parameters only.

A plan's operators are read as data where they are `$literal`; an argument with any other operator matches nothing,
because BFCL's calls have no results to refer to. `after` is passed over. Not covered: BFCL's Java and JavaScript
categories, and parameter types behind a `$ref` (they count as no type).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, cast

from plansmith.contract.catalog import Catalog
from plansmith.contract.plan import LITERAL, Json, Plan
from plansmith.contract.records import AllowedCalls

_PASSED_OVER = str.maketrans("", "", " ,./-_*^")
_TYPES: dict[str, type] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}


class _Call(NamedTuple):
    worker: str
    args: dict[str, Json]


class _OperatorError(ValueError):
    """An argument holds an operator that stands for no value."""


def bfcl_ast(plan: Plan | Json, allowed: AllowedCalls, catalog: Catalog) -> bool:
    """Whether a plan is right by BFCL's rule (this module's text), with the best pairing of steps and calls.

    Args:
        plan: a plan, or its JSON; JSON of any other shape is wrong, never an error.
        allowed: BFCL's possible answer; empty where no function fits.
        catalog: the functions of the row.

    """
    grid = _grid(plan, allowed, catalog)
    return grid is not None and (_pair_in_order(grid) or _pair_best(grid))


def bfcl_ast_greedy(plan: Plan | Json, allowed: AllowedCalls, catalog: Catalog) -> bool:
    """As `bfcl_ast`, with BFCL's own pairing: each call in turn takes the first right step that is left."""
    grid = _grid(plan, allowed, catalog)
    return grid is not None and _pair_in_order(grid)


def standardize(text: str) -> str:
    """A string as BFCL compares it: without spaces and `,./-_*^`, in small letters, `'` as `"`."""
    return text.translate(_PASSED_OVER).lower().replace("'", '"')


def _grid(plan: Plan | Json, allowed: AllowedCalls, catalog: Catalog) -> list[list[bool]] | None:
    """For each call of the answer, which steps are right for it; None where the numbers differ."""
    calls = _calls(plan)
    if calls is None or len(calls) != len(allowed):
        return None
    return [[_is_right_call(call, answer, catalog) for call in calls] for answer in allowed]


def _pair_in_order(grid: Sequence[Sequence[bool]]) -> bool:
    taken: set[int] = set()
    for row in grid:
        step = next((index for index, right in enumerate(row) if right and index not in taken), None)
        if step is None:
            return False
        taken.add(step)
    return True


def _pair_best(grid: Sequence[Sequence[bool]]) -> bool:
    if len(grid) < 2 or not all(map(any, grid)):
        return False
    optimize: Any = import_module("scipy.optimize")  # comes without types
    rows, columns = cast("tuple[Any, Any]", optimize.linear_sum_assignment(grid, maximize=True))
    return all(grid[int(row)][int(column)] for row, column in zip(rows, columns, strict=True))


def _calls(plan: Plan | Json) -> list[_Call] | None:
    """Steps with their arguments as values; None for JSON that is no plan. Only `$literal` stands for a value."""
    steps = plan.to_json() if isinstance(plan, Plan) else plan
    if not isinstance(steps, list):
        return None
    found = [_call(step) for step in cast("list[Json]", steps)]
    return None if None in found else cast("list[_Call]", found)


def _call(step: Json) -> _Call | None:
    if not isinstance(step, dict):
        return None
    node = cast("dict[str, Json]", step)
    worker, args = node.get("type"), node.get("args")
    if not isinstance(worker, str) or not isinstance(args, dict):
        return None
    try:
        return _Call(worker, {key: _plain(value) for key, value in cast("dict[str, Json]", args).items()})
    except _OperatorError:
        return None


def _plain(value: Json) -> Json:
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Json]", value)]
    if not isinstance(value, dict):
        return value
    node = cast("dict[str, Json]", value)
    if node.keys() == {LITERAL}:
        return node[LITERAL]
    if any(key.startswith("$") for key in node):
        raise _OperatorError
    return {key: _plain(item) for key, item in node.items()}


def _is_right_call(call: _Call, answer: Mapping[str, Mapping[str, list[Json]]], catalog: Catalog) -> bool:
    name = next(iter(answer), None)
    worker = catalog.get(name)
    if worker is None or name is None or call.worker != name or not worker.required <= call.args.keys():
        return False
    allowed = answer[name]
    for key, value in call.args.items():
        if key not in worker.properties or key not in allowed:
            return False
        if not _is_right_value(value, allowed[key], worker.properties[key]):
            return False
    return all(key in call.args or "" in values for key, values in allowed.items())


def _is_right_value(value: Json, allowed: list[Json], schema: Json) -> bool:
    wanted, inner = _type_of(schema), _entry_type(schema)
    if wanted is float and type(value) is int:
        value = _as_float(value)
    if not _has_type(value, allowed, wanted, inner):
        return False
    if _first_type(allowed) not in (None, wanted):
        return value in allowed
    if wanted is dict:
        return any(_is_right_object(value, answer) for answer in allowed)
    if wanted is list and inner is dict:
        return any(_are_right_objects(value, answer) for answer in allowed)
    if wanted is list:
        texts_or_lists = [cast("Iterable[Json]", answer) for answer in allowed if isinstance(answer, list | str)]
        return _standard_list(value) in map(_standard_list, texts_or_lists)
    if wanted is str:
        return standardize(value) in [standardize(answer) for answer in allowed if isinstance(answer, str)]
    return value in allowed


def _as_float(value: int) -> float | int:
    try:
        return float(value)
    except OverflowError:
        return value


def _type_of(schema: Json) -> type:
    """Python type that BFCL expects: of several types the first but null; `str` where the schema names none."""
    declared = cast("dict[str, Json]", schema).get("type") if isinstance(schema, dict) else None
    if isinstance(declared, list):
        declared = next((name for name in cast("list[Json]", declared) if name != "null"), None)
    return _TYPES.get(declared, str) if isinstance(declared, str) else str


def _entry_type(schema: Json) -> type | None:
    """Type of an array's entries; None where the schema is no array's or does not say."""
    if _type_of(schema) is not list or "items" not in schema:
        return None
    return _type_of(schema["items"])


def _first_type(allowed: Iterable[object]) -> type | None:
    """Type of the first allowed value that is not `""`."""
    return next((type(answer) for answer in allowed if answer != ""), None)


def _has_type(value: Json, allowed: Iterable[Json], wanted: type, inner: type | None) -> bool:
    """Whether a value has the wanted type, its entries included, or else that of the first allowed value."""
    if type(value) is not wanted:
        return type(value) is _first_type(allowed)
    if inner is None:
        return True
    return any(
        not isinstance(answer, list)
        or all(_has_type(item, cast("list[Json]", answer), inner, None) for item in cast("list[Json]", value))
        for answer in allowed
    )


def _standard(value: Json) -> Json:
    return standardize(value) if isinstance(value, str) else value


def _standard_list(values: Iterable[Json]) -> list[Json]:
    return [_standard(value) for value in values]


def _is_right_object(value: Json, answer: Json) -> bool:
    if not isinstance(value, dict) or not isinstance(answer, dict):
        return False
    given, allowed = cast("dict[str, Json]", value), cast("dict[str, Json]", answer)
    if not all(isinstance(values, list) for values in allowed.values()):
        return False
    if not all(key in allowed and _standard(item) in _standard_list(allowed[key]) for key, item in given.items()):
        return False
    return all(key in given or "" in values for key, values in allowed.items())


def _are_right_objects(value: list[Json], answer: Json) -> bool:
    if not isinstance(answer, list):
        return answer == "" and not value
    answers = cast("list[Json]", answer)
    return len(value) == len(answers) and all(map(_is_right_object, value, answers))
