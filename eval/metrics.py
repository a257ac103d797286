"""Metrics of one answer against its reference plans, and its first fault.

Reads an answer (text, a plan as JSON, or None for none) and the reference plans of the item; pure. The strict parse and
every rule of validity are the checker's (`plansmith.contract.check`); what is added here is the comparison. An answer
that is missing, failed or unreadable is a miss in every metric, never left out. Not covered: running plans.

| metric | one item |
| --- | --- |
| `parsed` | the text is strict JSON and an array |
| `registered` | parsed, and every step's `type` is a worker of the catalog |
| `valid` | the checker finds no error |
| `exact` | the canonical text equals a reference's |
| `equivalent` | equal to a reference up to the order of steps (`matching.py`) |
| `worker_f1` | true and false positives and false negatives over the multiset of worker names |
| `argument_f1` | the same over (worker, parameter, value) triples matched within aligned steps |

The counts of both F1 are taken against the nearest reference: an equivalent one, else the one of highest worker F1,
then argument F1, then the first. A value of `argument_f1` is an argument at the top level of `args`. It counts as
matched where the steps are aligned (by the bijection of equivalent plans, else by `matching.align`), the values are
equal by meaning, and each reference in it leads to the step that is aligned with the step that the other's leads to.
`after` is no argument. Names and arguments of a plan with faults of shape count as far as they can be read; a step
without a readable `type` is a false positive. An answer that cannot be read misses at least one element of each F1,
also where the reference plan is empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, cast

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import CheckResult, Fault, check_plan
from plansmith.contract.findings import Severity
from plansmith.contract.parse import parse_plan_text, parse_plan_value
from plansmith.contract.plan import Json, Plan, Step
from plansmith.eval.matching import Graph, align, graph_of, isomorphism, matched_arguments

_SHAPE_FAULTS = frozenset(
    {Fault.DUPLICATE_KEY, Fault.STEP_NOT_OBJECT, Fault.MISSING_KEY, Fault.UNKNOWN_KEY, Fault.TYPE_NOT_STRING}
    | {Fault.ARGS_NOT_OBJECT, Fault.BAD_AFTER}
)
_NO_WORKER_FAULTS = frozenset({Fault.UNKNOWN_WORKER, Fault.TYPE_NOT_STRING, Fault.STEP_NOT_OBJECT})
_REFERENCE_FAULTS = frozenset(
    {Fault.MALFORMED_REFERENCE, Fault.FORWARD_REFERENCE, Fault.DANGLING_REFERENCE, Fault.REFERENCE_TYPE}
    | {Fault.BAD_AFTER}
)


class FirstFault(StrEnum):
    """What is wrong with an answer, decided in this order; every item has exactly one."""

    UNPARSEABLE = "unparseable"
    """no answer, or text that is no JSON array"""
    UNREGISTERED = "unregistered"
    """a step's `type` is absent or not in the catalog"""
    ARGUMENTS = "arguments"
    """the checker finds a fault of shape or argument; or workers are right and an argument is not the reference's"""
    REFERENCES = "references"
    """the checker finds a fault of reference or order; or only what references and `after` point to differs"""
    WRONG_WORKER = "wrong worker"
    """valid, but a worker of the reference is missing and another one is there"""
    MISSING_STEP = "missing step"
    """valid, and all that it lacks is steps of the reference"""
    EXTRA_STEP = "extra step"
    """steps beyond those of the reference, or more steps than a plan may have"""
    RIGHT = "right"
    """equivalent to a reference"""


class Counts(NamedTuple):
    """Matched, superfluous and missed elements; sums of counts give the micro F1."""

    tp: int
    fp: int
    fn: int

    @property
    def f1(self) -> float:
        """2 tp / (2 tp + fp + fn); 1 where there is nothing to find and nothing was put forward."""
        whole = 2 * self.tp + self.fp + self.fn
        return 2 * self.tp / whole if whole else 1.0


@dataclass(frozen=True, slots=True)
class ItemScore:
    """All metrics of one item; those that need a reference are None where it has none."""

    parsed: bool
    registered: bool
    valid: bool
    exact: bool | None
    equivalent: bool | None
    worker: Counts | None
    argument: Counts | None
    fault: FirstFault | None


@dataclass(frozen=True, slots=True)
class _Reading:
    """What can be read of an answer."""

    check: CheckResult | None
    """None where there is no answer."""
    plan: Plan | None
    """The plan, where its shape is right; its arguments and references may be wrong."""
    readable: Plan | None
    """The plan as far as it can be read; None where the text is no JSON array."""


def score_item(candidate: Json | None, references: Sequence[Json], catalog: Catalog) -> ItemScore:
    """Score one answer.

    Args:
        candidate: the text as generated (`str`), a plan as JSON, or None where there is no answer.
        references: right plans as JSON, of right shape; empty where the item has none.
        catalog: the workers that may be called.

    """
    reading = _read(candidate, catalog)
    check = reading.check
    parsed = check is not None and check.parsed
    registered = check is not None and parsed and not _unregistered(check)
    valid = check is not None and check.valid
    if not references:
        return ItemScore(parsed, registered, valid, None, None, None, None, None)
    plans = [Plan.from_json(reference) for reference in references]
    exact = reading.plan is not None and _is_exact(reading.plan, plans, catalog)
    nearest = max((_compare(reading, plan) for plan in plans), key=_Comparison.rank)
    fault = _first_fault(reading, nearest, parsed=parsed, registered=registered)
    return ItemScore(parsed, registered, valid, exact, nearest.equivalent, nearest.worker, nearest.argument, fault)


def is_well_shaped(candidate: Json, catalog: Catalog) -> bool:
    """Whether an answer has the shape of a plan, so that it can serve as a reference; workers and values aside."""
    return _read(candidate, catalog).plan is not None


def _read(candidate: Json | None, catalog: Catalog) -> _Reading:
    if candidate is None:
        return _Reading(None, None, None)
    check = check_plan(candidate, catalog)
    if not check.parsed:
        return _Reading(check, None, None)
    parse = parse_plan_text if isinstance(candidate, str) else parse_plan_value
    rows = cast("list[Json]", parse(candidate).value)
    well_shaped = not any(f.fault in _SHAPE_FAULTS for f in check.findings)
    plan = Plan.from_json(rows) if well_shaped else None
    return _Reading(check, plan, plan or Plan(tuple(map(_readable_step, rows))))


def _readable_step(row: Json) -> Step:
    if not isinstance(row, dict):
        return Step("", {})
    node = cast("dict[str, Json]", row)
    worker, args = node.get("type"), node.get("args")
    return Step(
        worker if isinstance(worker, str) else "", cast("dict[str, Json]", args) if isinstance(args, dict) else {}
    )


def _unregistered(check: CheckResult) -> bool:
    return any(
        f.fault in _NO_WORKER_FAULTS or (f.fault is Fault.MISSING_KEY and f.path.endswith("/type"))
        for f in check.findings
    )


def _is_exact(plan: Plan, references: Sequence[Plan], catalog: Catalog) -> bool:
    text = plan.canonical(catalog)
    return any(text == reference.canonical(catalog) for reference in references)


class _Comparison(NamedTuple):
    """An answer against one reference."""

    equivalent: bool
    worker: Counts
    argument: Counts
    candidate: Graph | None
    reference: Graph

    def rank(self) -> tuple[bool, float, float]:
        return self.equivalent, self.worker.f1, self.argument.f1


def _compare(reading: _Reading, reference: Plan) -> _Comparison:
    theirs = graph_of(reference)
    arguments = sum(len(node.params) for node in theirs.nodes)
    if reading.readable is None:
        missed = Counts(0, 0, max(1, len(theirs.nodes))), Counts(0, 0, max(1, arguments))
        return _Comparison(False, *missed, None, theirs)
    ours = graph_of(reading.readable)
    whole = isomorphism(ours, theirs)
    matched = matched_arguments(ours, theirs, dict(enumerate(whole)) if whole is not None else align(ours, theirs))
    given = sum(len(node.params) for node in ours.nodes)
    argument = Counts(matched, given - matched, arguments - matched)
    return _Comparison(
        reading.plan is not None and whole is not None, _worker_counts(ours, theirs), argument, ours, theirs
    )


def _worker_counts(candidate: Graph, reference: Graph) -> Counts:
    ours, theirs = _workers(candidate), _workers(reference)
    return Counts((ours & theirs).total(), (ours - theirs).total(), (theirs - ours).total())


def _workers(graph: Graph) -> Counter[str]:
    return Counter(node.worker for node in graph.nodes)


def _first_fault(reading: _Reading, nearest: _Comparison, *, parsed: bool, registered: bool) -> FirstFault:
    if nearest.equivalent:
        return FirstFault.RIGHT
    if reading.check is None or nearest.candidate is None or not parsed:
        return FirstFault.UNPARSEABLE
    if not registered:
        return FirstFault.UNREGISTERED
    return _checked_fault(reading.check) or _compared_fault(nearest, nearest.candidate)


def _checked_fault(check: CheckResult) -> FirstFault | None:
    """The fault that the checker names, whatever the reference says."""
    errors = {finding.fault for finding in check.findings if finding.severity is Severity.ERROR}
    if errors - _REFERENCE_FAULTS - {Fault.TOO_MANY_STEPS}:
        return FirstFault.ARGUMENTS
    if errors & _REFERENCE_FAULTS:
        return FirstFault.REFERENCES
    return FirstFault.EXTRA_STEP if errors else None


def _compared_fault(nearest: _Comparison, candidate: Graph) -> FirstFault:
    """The fault of a valid plan that is not equivalent to its nearest reference."""
    if nearest.worker.fp and nearest.worker.fn:
        return FirstFault.WRONG_WORKER
    if nearest.worker.fn:
        return FirstFault.MISSING_STEP
    if nearest.worker.fp:
        return FirstFault.EXTRA_STEP
    same_labels = Counter(n.label for n in candidate.nodes) == Counter(n.label for n in nearest.reference.nodes)
    return FirstFault.REFERENCES if same_labels else FirstFault.ARGUMENTS
