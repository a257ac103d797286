"""Metrics of one answer against its reference plans, and its first fault.

Reads an answer (text, a plan as JSON, or None for none) and the reference plans of the item; pure. The strict parse and
every rule of validity are the checker's (`plansmith.contract.check`); what is added here is the comparison. An answer
that is missing, failed or unreadable is a miss in every metric that the item is scored in, never left out.

| metric | one item | defined in |
| --- | --- | --- |
| `parsed`, `repaired`, `registered`, `valid` | what can be read, and whether the checker finds errors | `reading.py` |
| `exact` | the canonical text equals a reference's | here |
| `equivalent` | equal to a reference up to the order of steps | `matching.py` |
| `dag_isomorphic` | the same on worker names and dependency edges | `structure.py` |
| `worker_f1` | true and false positives and false negatives over the multiset of worker names | here |
| `argument_f1` | the same over (worker, parameter, value) triples matched within aligned steps | here |
| `nestful_*` | as NESTFUL defines them | `nestful.py` |
| `bfcl_ast`, `bfcl_ast_greedy` | BFCL's rule, with the best and with its own pairing of calls | `bfcl.py` |
| `abstained_right` | the answer is the empty plan; scored where a reference is the empty plan | here |
| `abstained_wrong` | the answer is the empty plan; scored where no reference is, lower is better | here |
| `grounded` | no literal argument is invented; scored where the query is known | `contract/grounding.py` |
| `executed`, `answer_match` | run on the recorded results; scored where there are any | `executed.py` |

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
from functools import lru_cache
from typing import Any, NamedTuple

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import CheckResult, Fault
from plansmith.contract.findings import Severity
from plansmith.contract.grounding import Query, invented
from plansmith.contract.plan import Json, Plan
from plansmith.contract.records import AllowedCalls
from plansmith.eval.bfcl import bfcl_ast, bfcl_ast_greedy
from plansmith.eval.executed import MISS, REACHED, record_of, run_on_record
from plansmith.eval.isomorphism import isomorphism
from plansmith.eval.matching import align, matched_arguments
from plansmith.eval.nestful import NestfulScore, nestful_score
from plansmith.eval.reading import COMPARED_STEPS, PlanView, Reading, is_well_shaped, read_answer
from plansmith.eval.structure import dag_isomorphic

__all__ = [
    "F1S",
    "MAIN_METRICS",
    "MEANS",
    "METRICS",
    "RATES",
    "Counts",
    "FirstFault",
    "ItemScore",
    "is_well_shaped",
    "score_item",
]

RATES = (
    "parsed",
    "repaired",
    "registered",
    "valid",
    "exact",
    "equivalent",
    "dag_isomorphic",
    "nestful_full_match",
    "bfcl_ast",
    "bfcl_ast_greedy",
    "abstained_right",
    "abstained_wrong",
    "grounded",
    "executed",
    "answer_match",
)
"""Shares of items, with Wilson intervals. Lower is better for `repaired` and `abstained_wrong`."""
MEANS = ("nestful_partial_match",)
"""Means over items of a number from 0 to 1, with bootstrap intervals."""
F1S = ("worker_f1", "argument_f1", "nestful_f1_functions", "nestful_f1_parameters")
"""Micro F1, with bootstrap intervals."""
METRICS = (*RATES, *MEANS, *F1S)
MAIN_METRICS = ("parsed", "registered", "valid", "exact", "equivalent", "worker_f1", "argument_f1")
"""Those that a table on a terminal has room for."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemScore:
    """All metrics of one item under their names; None where the item could not be scored in a metric."""

    parsed: bool
    repaired: bool
    registered: bool
    valid: bool
    exact: bool | None = None
    equivalent: bool | None = None
    dag_isomorphic: bool | None = None
    nestful_full_match: bool | None = None
    bfcl_ast: bool | None = None
    bfcl_ast_greedy: bool | None = None
    abstained_right: bool | None = None
    abstained_wrong: bool | None = None
    grounded: bool | None = None
    executed: bool | None = None
    answer_match: bool | None = None
    nestful_partial_match: float | None = None
    worker_f1: Counts | None = None
    argument_f1: Counts | None = None
    nestful_f1_functions: Counts | None = None
    nestful_f1_parameters: Counts | None = None
    fault: FirstFault | None = None
    """The item's first fault; None where it has no reference."""
    invented: tuple[str, ...] = ()
    """Literal arguments that are not grounded, each as its place and its JSON text: `/0/args/city: "Rome"`."""


def score_item(
    candidate: Json | None,
    references: Sequence[Json],
    catalog: Catalog,
    *,
    query: str | None = None,
    results: list[Json] | None = None,
    allowed: AllowedCalls | None = None,
) -> ItemScore:
    """Score one answer.

    Args:
        candidate: the text as generated (`str`), a plan as JSON, or None where there is no answer.
        references: right plans as JSON, of right shape; empty where the item has none.
        catalog: the workers that may be called.
        query: what was asked; None: `grounded` is not scored.
        results: recorded result of each step of the first reference; None: `executed` and `answer_match` are not
            scored.
        allowed: BFCL's possible answer; None: `bfcl_ast` and `bfcl_ast_greedy` are not scored.

    """
    reading = read_answer(candidate, catalog)
    views = [_view(reference, catalog) for reference in references]
    found: dict[str, Any] = {}
    found |= _against_references(reading, views) if views else {}
    found |= _grounding(reading, query, catalog) if query is not None else {}
    found |= _execution(reading, views[0], results, catalog) if views and results is not None else {}
    found |= _bfcl(reading, allowed, catalog) if allowed is not None else {}
    return ItemScore(
        parsed=reading.parsed,
        repaired=reading.repaired,
        registered=reading.registered,
        valid=reading.valid,
        **found,
    )


def _view(reference: Json, catalog: Catalog) -> PlanView:
    return PlanView(Plan.from_json(reference), catalog)


def _against_references(reading: Reading, views: Sequence[PlanView]) -> dict[str, Any]:
    """All metrics that compare the answer with right plans."""
    nearest = max((_compare(reading, view) for view in views), key=_Comparison.rank)
    nestful = max((nestful_score(reading.view, view) for view in views), key=_nestful_rank)
    empty = [not view.plan.steps for view in views]
    return {
        "exact": reading.view is not None and any(map(reading.view.same_text, views)),
        "equivalent": nearest.equivalent,
        "dag_isomorphic": nearest.equivalent or _any_isomorphic(reading.view, views),
        "nestful_full_match": nestful.full,
        "nestful_partial_match": nestful.partial,
        "nestful_f1_functions": Counts(*nestful.functions),
        "nestful_f1_parameters": Counts(*nestful.parameters),
        "abstained_right": reading.empty if any(empty) else None,
        "abstained_wrong": None if any(empty) else reading.empty,
        "worker_f1": nearest.worker,
        "argument_f1": nearest.argument,
        "fault": _first_fault(reading, nearest),
    }


def _any_isomorphic(candidate: PlanView | None, views: Sequence[PlanView]) -> bool:
    return candidate is not None and any(dag_isomorphic(candidate, view) for view in views)


def _nestful_rank(score: NestfulScore) -> tuple[bool, float, float, float]:
    return score.full, score.partial, Counts(*score.functions).f1, Counts(*score.parameters).f1


def _grounding(reading: Reading, query: str, catalog: Catalog) -> dict[str, Any]:
    """`grounded`, and what is not, of an answer of the shape of a plan; any other answer is a miss."""
    if reading.plan is None:
        return {"grounded": False}
    found = invented(reading.plan, _query(query), catalog)
    return {"grounded": not found, "invented": tuple(map(str, found))}


@lru_cache(maxsize=64)
def _query(text: str) -> Query:
    """Prepared once for the systems that answer the same query."""
    return Query(text)


def _execution(reading: Reading, reference: PlanView, results: list[Json], catalog: Catalog) -> dict[str, Any]:
    """`executed` and `answer_match`; an answer that is not valid is a miss."""
    record = record_of(reference.plan, results, catalog)
    if record is None:
        return {}
    found = MISS
    if reading.view is not None and reading.valid:
        same = reading.view.same_text(reference)  # the recorded calls in the recorded order
        found = REACHED if same else run_on_record(reading.view.plan, reference.plan, record, catalog)
    return {"executed": found.executed, "answer_match": found.answer_match}


def _bfcl(reading: Reading, allowed: AllowedCalls, catalog: Catalog) -> dict[str, Any]:
    """`bfcl_ast` with the best and with BFCL's own pairing of calls; an answer without a plan's shape is a miss."""
    if reading.plan is None:
        return {"bfcl_ast": False, "bfcl_ast_greedy": False}
    plan = reading.plan
    return {"bfcl_ast": bfcl_ast(plan, allowed, catalog), "bfcl_ast_greedy": bfcl_ast_greedy(plan, allowed, catalog)}


class _Comparison(NamedTuple):
    """An answer against one reference."""

    equivalent: bool
    worker: Counts
    argument: Counts
    candidate: PlanView | None
    reference: PlanView

    def rank(self) -> tuple[bool, float, float]:
        return self.equivalent, self.worker.f1, self.argument.f1


def _compare(reading: Reading, reference: PlanView) -> _Comparison:
    view = reading.view
    if view is None:
        missed = Counts(0, 0, max(1, len(reference.plan.steps))), Counts(0, 0, max(1, reference.arguments))
        return _Comparison(False, *missed, None, reference)
    worker = _worker_counts(view.plan, reference.plan)
    if view.same_text(reference):
        return _Comparison(True, worker, Counts(reference.arguments, 0, 0), view, reference)
    whole = bijection(view, reference)
    mapping = dict(enumerate(whole)) if whole is not None else align(view.graph, reference.graph)
    matched = matched_arguments(view.graph, reference.graph, mapping)
    argument = Counts(matched, view.arguments - matched, reference.arguments - matched)
    return _Comparison(reading.plan is not None and whole is not None, worker, argument, view, reference)


def bijection(candidate: PlanView, reference: PlanView) -> list[int] | None:
    """For each step of the candidate its counterpart in the reference, or None where the plans are not equivalent.

    A candidate that refers to a later step is equivalent only to a reference that does so too. Plans beyond
    `COMPARED_STEPS` are only equal as texts.
    """
    size = len(reference.plan.steps)
    if len(candidate.plan.steps) != size or size > COMPARED_STEPS:
        return None
    found = isomorphism(candidate.graph, reference.graph)
    return found if candidate.is_ordered or not reference.is_ordered else None


def _worker_counts(candidate: Plan, reference: Plan) -> Counts:
    ours, theirs = _workers(candidate), _workers(reference)
    return Counts((ours & theirs).total(), (ours - theirs).total(), (theirs - ours).total())


def _workers(plan: Plan) -> Counter[str]:
    return Counter(step.type for step in plan.steps)


def _first_fault(reading: Reading, nearest: _Comparison) -> FirstFault:
    if nearest.equivalent:
        return FirstFault.RIGHT
    if reading.check is None or nearest.candidate is None or not reading.parsed:
        return FirstFault.UNPARSEABLE
    if not reading.registered:
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


def _compared_fault(nearest: _Comparison, candidate: PlanView) -> FirstFault:
    """The fault of a valid plan that is not equivalent to its nearest reference."""
    if nearest.worker.fp and nearest.worker.fn:
        return FirstFault.WRONG_WORKER
    if nearest.worker.fn:
        return FirstFault.MISSING_STEP
    if nearest.worker.fp:
        return FirstFault.EXTRA_STEP
    ours, theirs = (Counter(node.label for node in view.graph.nodes) for view in (candidate, nearest.reference))
    same_labels = ours == theirs
    return FirstFault.REFERENCES if same_labels else FirstFault.ARGUMENTS
