"""The plan that a BFCL possible answer stands for: of all the plans that are right, the shortest one.

Reads `allowed` and the row's catalog; pure. One step a call, in the order of the answer. A parameter that may be left
out (`""` is among its allowed values) is left out unless the function requires it; any other has the first allowed
value that is not `""`. An object's own keys follow the same rule, also inside a list. BFCL's rule that makes such a
plan right: `eval/bfcl.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.plan import Json
from plansmith.contract.records import AllowedCalls, PlanJson


class UnanswerableError(ValueError):
    """No plan is right for the possible answer."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        """Short code, as in a reject: `unknown_function`, `unknown_parameter`, `no_allowed_value`."""


def plan_of(allowed: AllowedCalls, catalog: Catalog) -> PlanJson:
    """The shortest right plan.

    Raises:
        UnanswerableError: the answer needs a function or a parameter that the row does not have, or a value where it
            allows none.

    """
    return [
        {"type": name, "args": _args(_worker(name, catalog), values)}
        for call in allowed
        for name, values in call.items()
    ]


def _worker(name: str, catalog: Catalog) -> Worker:
    worker = catalog.get(name)
    if worker is None:
        raise UnanswerableError("unknown_function", f"the answer calls {name!r}, which the row does not have")
    return worker


def _args(worker: Worker, allowed: Mapping[str, list[Json]]) -> dict[str, Json]:
    args: dict[str, Json] = {}
    for key, values in allowed.items():
        if "" in values and key not in worker.required:
            continue
        where = f"parameter {key!r} of {worker.name!r}"
        if key not in worker.properties:
            raise UnanswerableError("unknown_parameter", f"the answer needs {where}, which the function does not have")
        args[key] = _value(_first(values, where), worker.properties[key], where)
    missing = sorted(worker.required - args.keys())
    if missing:
        raise UnanswerableError("no_allowed_value", f"{worker.name!r} requires {missing}, which the answer lacks")
    return worker.order_args(args)


def _first(values: list[Json], where: str) -> Json:
    if not values:
        raise UnanswerableError("no_allowed_value", f"the answer allows no value for {where}, which it needs")
    return next((value for value in values if value != ""), "")


def _value(answer: Json, schema: Json, where: str) -> Json:
    """An allowed value as a call gives it: objects come with a list of allowed values under each key."""
    node = cast("dict[str, Any]", schema)
    if isinstance(answer, dict) and node.get("type") == "object":
        return _object(cast("dict[str, list[Json]]", answer), node, where)
    if isinstance(answer, list) and node.get("type") == "array":
        return [_value(item, node.get("items", {}), where) for item in cast("list[Json]", answer)]
    return cast("Json", answer)


def _object(answer: dict[str, list[Json]], schema: dict[str, Any], where: str) -> dict[str, Json]:
    if not all(isinstance(cast("Json", values), list) for values in answer.values()):
        raise UnanswerableError("no_allowed_value", f"an object allowed for {where} has no list of values under a key")
    required = cast("list[str]", schema.get("required", []))
    return {
        key: _first(values, f"{key!r} in {where}")
        for key, values in answer.items()
        if "" not in values or key in required
    }
