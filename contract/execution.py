"""One step of a plan, before and after its worker runs: arguments from results, and results that are JSON.

Pure; the orchestrator, the data factory's execution stage and evaluation share it. `prepare_args` resolves the
references of a step in one pass and validates again what came from results; `dependants` says which steps wait for
a step. Who calls the worker, and what a failure means, is theirs to decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import jsonschema_rs

from plansmith.contract.compiled import CompiledWorker
from plansmith.contract.errors import PlansmithError
from plansmith.contract.plan import Json, Plan, Step, references, resolve


class ArgumentError(PlansmithError):
    """An argument that came from a result cannot be given to the worker."""


def prepare_args(step: Step, context: Sequence[Json], compiled: CompiledWorker | None) -> dict[str, Json]:
    """The arguments of a step whose dependencies have results.

    Args:
        step: of a plan that the checker found valid.
        context: results by step index.
        compiled: the step's worker; None leaves what came from results unchecked.

    Raises:
        ResolutionError: a reference leads nowhere in the results.
        ArgumentError: a value from a result is not what the worker takes; names parameter, value and rule.

    """
    args = cast("dict[str, Json]", resolve(step.args, context))
    fault = bad_argument(step, args, compiled)
    if fault is not None:
        raise ArgumentError(fault)
    return args


def bad_argument(step: Step, args: Mapping[str, Json], compiled: CompiledWorker | None) -> str | None:
    """Why an argument that came from a result cannot be given to the worker; None where all can."""
    if compiled is None:
        return None
    came = [name for name in args if any(True for _ in references({name: step.args[name]}))]
    for name in came:
        parameter = compiled.parameters.get(name)
        if parameter is None:
            continue
        try:
            parameter.plain.validate(args[name])
        except jsonschema_rs.ValidationError as error:
            return f"{step.type!r}, argument {name!r} from an earlier result: {error.message:.200}"
    if came and compiled.whole is not None:
        try:
            compiled.whole.plain.validate(args)
        except jsonschema_rs.ValidationError as error:
            return f"{step.type!r}, arguments with values from earlier results: {error.message:.200}"
    return None


def dependants(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """For each step, the steps that refer to it or wait for it."""
    found: list[list[int]] = [[] for _ in plan.steps]
    for index, needed in enumerate(plan.dependencies()):
        for step in sorted(needed):
            found[step].append(index)
    return tuple(map(tuple, found))


def last_steps(plan: Plan) -> tuple[int, ...]:
    """Steps that no other step refers to or waits for: what the plan is for."""
    return tuple(index for index, users in enumerate(dependants(plan)) if not users)


def not_json(value: object, depth: int = 0) -> str | None:
    """What about a value is no JSON; None where all is."""
    if value is None or isinstance(value, bool | int | str):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"the number {value}"
    if depth > 64:
        return "nesting over 64"
    if isinstance(value, list):
        parts: list[object] = list(cast("list[object]", value))
    elif isinstance(value, dict):
        node = cast("dict[object, object]", value)
        wrong = next((key for key in node if not isinstance(key, str)), None)
        if wrong is not None:
            return f"the key {wrong!r}, which is no text"
        parts = list(node.values())
    else:
        return f"a {type(value).__name__}"
    return next((found for part in parts if (found := not_json(part, depth + 1)) is not None), None)
