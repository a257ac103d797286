"""The checker: every fault of a plan against a catalog, all at once.

Reads a plan as text (a model's output, a file) or as a JSON value; gives a `CheckResult`. Pure, no I/O, never raises
for a bad plan. The faults are those of `findings.Fault`; at most one finding is reported for a place.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from plansmith.contract.around import Parameter
from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.compiled import CompiledWorker, compile_catalog
from plansmith.contract.findings import Fault, Finding, Severity
from plansmith.contract.parse import ParseError, parse_lenient, parse_plan_text, parse_plan_value
from plansmith.contract.plan import (
    FORMAT,
    FROM,
    LITERAL,
    WITH,
    Json,
    Plan,
    TemplateError,
    parse_pointer,
    pointer_text,
    template_fields,
)
from plansmith.contract.schema import Place, Schema, compatible, find_place, schema_at, types_of

__all__ = ["CheckResult", "Fault", "Finding", "Severity", "check_plan"]

DEFAULT_MAX_STEPS = 16
_ANYWHERE = find_place(None, ())
_STEP_KEYS = ("type", "args", "after")
_UNREAD = frozenset({Fault.TOO_LARGE, Fault.NOT_JSON, Fault.TOO_DEEP, Fault.NOT_ARRAY})

Tokens = tuple[str | int, ...]


class CheckResult(NamedTuple):
    """All findings of one plan."""

    findings: tuple[Finding, ...]
    plan: Plan | None
    """The plan; None where it is invalid."""
    repairs: tuple[str, ...] = ()
    """What lenient parsing repaired, one sentence each; a repaired text does not count as strictly parsed."""

    @property
    def valid(self) -> bool:
        """Whether no finding is an error."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def parsed(self) -> bool:
        """Whether the text was JSON and an array, without any repair."""
        return not self.repairs and not any(finding.fault in _UNREAD for finding in self.findings)


def check_plan(
    plan: Json, catalog: Catalog, *, lenient: bool = False, max_steps: int = DEFAULT_MAX_STEPS
) -> CheckResult:
    """Check a plan given as text (`str`) or as a JSON value.

    Args:
        plan: a string is text to parse; anything else is the value itself.
        catalog: the workers that may be called.
        lenient: repair text that is not strict JSON; every repair is listed in the result.
        max_steps: more steps than this are `too_many_steps`.

    """
    repairs: tuple[str, ...] = ()
    try:
        parsed = parse_plan_text(plan) if isinstance(plan, str) else parse_plan_value(plan)
    except ParseError as error:
        if not lenient or error.fault is not Fault.NOT_JSON or not isinstance(plan, str):
            return _unreadable(error)
        try:
            parsed, repairs = parse_lenient(plan)
        except ParseError as still:
            return _unreadable(still)
    check = _Check(catalog, compile_catalog(catalog), look_for_infinity=parsed.maybe_infinite)
    for place in parsed.duplicates:
        check.add(Fault.DUPLICATE_KEY, place, f"the key {place[-1]!r} stands twice in its object; keep one.")
    check.run(parsed.value, max_steps)
    findings = tuple(check.findings)
    valid = not findings or all(finding.severity is Severity.WARNING for finding in findings)
    return CheckResult(findings, Plan.from_json(parsed.value) if valid else None, repairs)


def _unreadable(error: ParseError) -> CheckResult:
    return CheckResult((Finding(error.fault, Severity.ERROR, None, "", str(error)),), None)


class _Check:
    """One pass over one plan, collecting findings."""

    def __init__(self, catalog: Catalog, workers: dict[str, CompiledWorker], *, look_for_infinity: bool) -> None:
        self.catalog = catalog
        self.workers = workers
        self.look_for_infinity = look_for_infinity
        self.findings: list[Finding] = []
        self._places: set[Tokens] = set()
        self._steps: list[CompiledWorker | None] = []

    def add(self, fault: Fault, place: Tokens, message: str, severity: Severity = Severity.ERROR) -> None:
        """Record a finding, unless its place already has one."""
        if place in self._places:
            return
        self._places.add(place)
        step = place[0] if place and isinstance(place[0], int) else None
        self.findings.append(Finding(fault, severity, step, pointer_text(*place), message))

    def run(self, value: Json, max_steps: int) -> None:
        if not isinstance(value, list):
            self.add(Fault.NOT_ARRAY, (), f"the plan is {_kind(value)}; expected an array of steps.")
            return
        steps = cast("list[Json]", value)
        if len(steps) > max_steps:
            self.add(Fault.TOO_MANY_STEPS, (), f"the plan has {len(steps)} steps; at most {max_steps} are allowed.")
        for index, step in enumerate(steps):
            if isinstance(step, dict):
                self._step(index, cast("dict[str, Json]", step))
            else:
                self._steps.append(None)
                self.add(Fault.STEP_NOT_OBJECT, (index,), f"step {index} is {_kind(step)}; expected an object.")

    def _step(self, index: int, step: dict[str, Json]) -> None:
        if len(step) != 2 or "type" not in step or "args" not in step:
            self._keys(index, step)
        compiled = self._worker(index, step["type"]) if "type" in step else None
        self._steps.append(compiled)
        args = step.get("args", _ABSENT)
        if isinstance(args, dict):
            self._args(index, cast("dict[str, Json]", args), compiled)
        elif args is not _ABSENT:
            message = f"'args' of step {index} is {_kind(args)}; expected an object of arguments (it may be empty)."
            self.add(Fault.ARGS_NOT_OBJECT, (index, "args"), message)
        if "after" in step:
            self._after(index, step["after"])

    def _keys(self, index: int, step: dict[str, Json]) -> None:
        for key in ("type", "args"):
            if key not in step:
                self.add(Fault.MISSING_KEY, (index, key), f"step {index} has no {key!r}; every step needs it.")
        for key in step:
            if key not in _STEP_KEYS:
                message = f"step {index} has the key {key!r}; a step has only 'type', 'args' and 'after'."
                self.add(Fault.UNKNOWN_KEY, (index, key), message)

    def _worker(self, index: int, name: Json) -> CompiledWorker | None:
        if not isinstance(name, str):
            self.add(Fault.TYPE_NOT_STRING, (index, "type"), f"'type' of step {index} is {_kind(name)}; expected text.")
            return None
        compiled = self.workers.get(name)
        if compiled is None:
            self.add(Fault.UNKNOWN_WORKER, (index, "type"), self._unknown_worker(index, name))
        return compiled

    def _unknown_worker(self, index: int, name: str) -> str:
        close = difflib.get_close_matches(name[:128], self.catalog.names, n=3)
        hint = f"closest: {', '.join(map(repr, close))}" if close else "no registered name is close"
        return (
            f"step {index} uses worker {name[:128]!r}, which the catalog {self.catalog.name!r} does not have; {hint}. "
            "Register it, or rebuild the catalog."
        )

    def _args(self, index: int, args: dict[str, Json], compiled: CompiledWorker | None) -> None:
        base: Tokens = (index, "args")
        if compiled is None:
            for name, value in args.items():
                self._value(value, (*base, name), None)
            return
        parameters = compiled.parameters
        for name, value in args.items():
            parameter = parameters.get(name) or self._extra(compiled, name, base)
            self._value(value, (*base, name), parameter)
        for name in compiled.required:
            if name not in args:
                message = f"step {index} lacks the argument {name!r}, which worker {compiled.worker.name!r} requires."
                self.add(Fault.MISSING_ARG, (*base, name), message)
        if compiled.whole is not None:
            self._whole(args, base, compiled.whole)

    def _extra(self, compiled: CompiledWorker, name: str, base: Tokens) -> Parameter | None:
        """A parameter that the schema does not name: one that it allows by pattern or freely, or `unknown_arg`."""
        worker = compiled.worker
        if worker.args.get("additionalProperties") is False and compiled.whole is None:
            known = ", ".join(map(repr, worker.properties)) or "none"
            message = f"worker {worker.name!r} has no parameter {name!r}; it has {known}."
            self.add(Fault.UNKNOWN_ARG, (*base, name), message)
        elif not _allowed_extra(worker, name):
            self.add(Fault.UNKNOWN_ARG, (*base, name), f"worker {worker.name!r} has no parameter {name!r}.")
        elif isinstance(worker.args.get("additionalProperties"), dict):
            return Parameter(worker.args["additionalProperties"], worker.args, ("additionalProperties",))
        return None

    def _whole(self, args: dict[str, Json], base: Tokens, whole: Parameter) -> None:
        """Rules over several arguments (`dependentRequired`, `anyOf`, ...); what single arguments break is known."""
        validator = whole.around if any(True for _ in _operators(args, ())) else whole.plain
        try:
            errors = list(validator.iter_errors(args))
        except UnicodeEncodeError:
            return  # the argument that holds a lone surrogate is a finding already
        for error in errors:
            place: Tokens = (*base, *error.instance_path)
            if place == base and list(error.schema_path) in (["required"], ["additionalProperties"]):
                continue  # reported a parameter at a time; a conditional `required` lies deeper
            self.add(Fault.BAD_VALUE, place, f"step {base[0]}: {_short(error.message)}.")

    def _value(self, value: Json, place: Tokens, parameter: Parameter | None) -> None:
        """One argument: its operators, then its value around them."""
        validator = parameter.plain if parameter is not None else None
        if not isinstance(value, str):
            if isinstance(value, dict) and FROM in value:  # the common operator, without the walk below
                reference = cast("dict[str, Json]", value)
                self._reference(reference, place, parameter.types if parameter is not None else None)
                return
            if self.look_for_infinity:
                self._numbers(value, place)
            if isinstance(value, (dict, list)) and self._operators(value, place, parameter):
                validator = parameter.around if parameter is not None else None
        if validator is None:
            return
        try:
            if validator.is_valid(value):
                return
            broken: list[tuple[Sequence[str | int], str]] = [
                (error.instance_path, error.message) for error in validator.iter_errors(value)
            ]
        except UnicodeEncodeError:
            broken = [((), "it holds a lone surrogate, which is no Unicode text")]
        for tokens, text in broken:
            message = f"step {place[0]}, argument {place[2:3][0]!r}: {_short(text)}."
            self.add(Fault.BAD_VALUE, (*place, *tokens), message)

    def _operators(self, value: Json, place: Tokens, parameter: Parameter | None) -> bool:
        """Check the operators in a value; whether it holds any."""
        found = False
        for tokens, node in _operators(value, ()):
            found = True
            self._operator(node, place, tokens, value, parameter)
        return found

    def _numbers(self, value: Json, place: Tokens) -> None:
        """A number too large for any program here is no usable value."""
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            self.add(Fault.BAD_VALUE, place, f"step {place[0]}: the number is too large to be held.")
        elif isinstance(value, (dict, list)):
            for key, item in _members(value):
                if isinstance(item, (float, dict, list)):
                    self._numbers(item, (*place, key))

    def _operator(
        self, node: dict[str, Json], base: Tokens, tokens: Tokens, value: Json, parameter: Parameter | None
    ) -> None:
        """Check one operator; `tokens` lead from the argument at `base` to it."""
        place = (*base, *tokens)
        if FROM in node:
            wanted = self._wanted(tokens, value, parameter)
            self._reference(node, place, wanted)
        elif FORMAT in node:
            self._format(node, place)
            wanted = self._wanted(tokens, value, parameter)
            if wanted is not None and "string" not in wanted:
                message = f"step {place[0]}: '$format' gives text, but {_types(wanted)} is expected here."
                self.add(Fault.BAD_VALUE, place, message)
        elif node.keys() != {LITERAL}:
            keys = ", ".join(repr(key) for key in node)
            message = (
                f"step {place[0]}: an object with the keys {_short(keys)} is no operator; use $from, $format, "
                "or $literal for text that starts with '$'."
            )
            self.add(Fault.UNKNOWN_OPERATOR, place, message)
        else:
            self._numbers(node[LITERAL], (*place, LITERAL))

    def _wanted(self, tokens: Tokens, value: Json, parameter: Parameter | None) -> frozenset[str] | None:
        """Types that the parameter allows at an operator's place; None where nothing is known."""
        if parameter is None:
            return None
        if not tokens:
            return parameter.types
        return types_of(_schema_below(parameter, tokens, value), parameter.root)

    def _reference(self, node: dict[str, Json], place: Tokens, wanted: frozenset[str] | None) -> None:
        pointer = parse_pointer(node[FROM]) if len(node) == 1 else None
        step = cast("int", place[0])
        if pointer is None:
            found = f"{node[FROM]!r:.100}" if len(node) == 1 else "other keys beside '$from'"
            message = f"step {step}: found {found}; expected one pointer '/STEP/field/...' into an earlier result."
            self.add(Fault.MALFORMED_REFERENCE, place, message)
        elif pointer.step >= step:
            message = f"step {step} refers to step {pointer.step}; only earlier steps have results."
            self.add(Fault.FORWARD_REFERENCE, place, message)
        else:
            target = self._steps[pointer.step]
            found = target.find(pointer.tokens) if target is not None else _ANYWHERE
            self._pointed(node[FROM], found, place, wanted)

    def _pointed(self, text: str, found: Place, place: Tokens, wanted: frozenset[str] | None) -> None:
        severity = Severity.ERROR if found.closed else Severity.WARNING
        if not found.exists:
            message = f"step {place[0]}: {text!r} leads nowhere: the result declares no {found.missing!r} there."
            self.add(Fault.DANGLING_REFERENCE, place, message, severity)
        elif wanted is not None and not compatible(found.types, wanted):
            message = f"step {place[0]}: {text!r} is {_types(found.types)}, but {_types(wanted)} is expected here."
            self.add(Fault.REFERENCE_TYPE, place, message, severity)

    def _format(self, node: dict[str, Json], place: Tokens) -> None:
        template, values = node[FORMAT], node.get(WITH)
        if node.keys() != {FORMAT, WITH} or not isinstance(template, str) or not isinstance(values, list):
            message = f"step {place[0]}: expected {{'$format': text, 'with': [values]}} and nothing else."
            self.add(Fault.MALFORMED_FORMAT, place, message)
            return
        items = cast("list[Json]", values)
        try:
            missing = [field for field in template_fields(template) if field >= len(items)]
        except TemplateError as error:
            self.add(Fault.MALFORMED_FORMAT, place, f"step {place[0]}: {error}.")
            missing = []
        if missing:
            message = f"step {place[0]}: the template names {{{missing[0]}}}, but 'with' has {len(items)} values."
            self.add(Fault.MALFORMED_FORMAT, place, message)
        for number, item in enumerate(items):
            if isinstance(item, dict) and FROM in item:
                self._reference(cast("dict[str, Json]", item), (*place, WITH, number), None)
            elif isinstance(item, (dict, list)):
                message = f"step {place[0]}: value {number} of 'with' is {_kind(item)}; expected a reference or scalar."
                self.add(Fault.MALFORMED_FORMAT, place, message)
            else:
                self._numbers(item, (*place, WITH, number))

    def _after(self, index: int, after: Json) -> None:
        place: Tokens = (index, "after")
        if not isinstance(after, list):
            message = f"'after' of step {index} is {_kind(after)}; expected a list of earlier step indices."
            self.add(Fault.BAD_AFTER, place, message)
            return
        for position, item in enumerate(cast("list[Json]", after)):
            is_index = isinstance(item, int | float) and not isinstance(item, bool) and item == item // 1
            if not is_index or item < 0:
                message = f"'after' of step {index} holds {item!r:.50}; expected indices of earlier steps."
                self.add(Fault.BAD_AFTER, (*place, position), message)
            elif item >= index:
                message = f"step {index} comes after step {item}; only earlier steps can be named."
                self.add(Fault.FORWARD_REFERENCE, (*place, position), message)


_ABSENT = object()


def _operators(value: Json, place: Tokens) -> Iterator[tuple[Tokens, dict[str, Json]]]:
    """Every object with a key that starts with `$`, with its place; what is inside one is not scanned."""
    if isinstance(value, dict):
        node = cast("dict[str, Json]", value)
        for key in node:
            if key.startswith("$"):
                yield place, node
                return
        for key, item in node.items():
            if isinstance(item, (dict, list)):
                yield from _operators(item, (*place, key))
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Json]", value)):
            if isinstance(item, (dict, list)):
                yield from _operators(item, (*place, index))


def _members(value: Json) -> Iterable[tuple[str | int, Json]]:
    if isinstance(value, dict):
        return cast("dict[str | int, Json]", value).items()
    return enumerate(cast("list[Json]", value))


def _schema_below(parameter: Parameter, tokens: Tokens, value: Json) -> Schema:
    """Schema of a place inside an argument; the argument's own schema is the start, `$ref`s lead into the worker's."""
    start = parameter.schema
    if not isinstance(start, dict):
        return start
    root: dict[str, Any] = {"$defs": parameter.root.get("$defs", {}), **cast("dict[str, Any]", start)}
    return schema_at(root, tokens, value)


def _allowed_extra(worker: Worker, name: str) -> bool:
    return find_place(worker.args, (name,)).exists


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."


def _types(types: frozenset[str]) -> str:
    names = types - {"integer"} if "number" in types else types
    return " or ".join(sorted(names)) or "nothing"


def _kind(value: Json) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    kinds = ((str, "text"), (int | float, "a number"), (list, "an array"), (dict, "an object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "something else")
