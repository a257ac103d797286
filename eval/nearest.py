"""An answer against its reference plans: equality, equivalence, F1, and the first fault.

Pure. Of several references any may match. The counts of both F1 are taken against the nearest one: an equivalent one,
else the one of highest worker F1, then argument F1, then the first. Of plans of more than 256 steps (a valid one has
at most 16) the first 256 are compared argument by argument, and they are equivalent only where they are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from plansmith.contract.check import CheckResult, Fault
from plansmith.contract.findings import Severity
from plansmith.eval.counts import Counts, all_missed, overlap
from plansmith.eval.matching import align, isomorphism, matched_arguments
from plansmith.eval.reading import COMPARED_STEPS, PlanView, Reading

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


@dataclass(frozen=True)
class Comparison:
    """An answer that can be read against one reference, each number worked out when it is first asked for."""

    candidate: PlanView
    reference: PlanView

    @cached_property
    def exact(self) -> bool:
        """`exact`: the shape is a plan's, and the canonical text equals the reference's."""
        return self.candidate.canonical is not None and self.candidate.canonical == self.reference.canonical

    @cached_property
    def bijection(self) -> list[int] | None:
        """For each step the reference's step that it corresponds to, where the plans are the same up to order."""
        sizes = {len(view.plan.steps) for view in (self.candidate, self.reference)}
        if self.exact:
            return list(range(len(self.reference.plan.steps)))
        if len(sizes) > 1 or max(sizes) > COMPARED_STEPS:
            return None
        return isomorphism(self.candidate.graph, self.reference.graph)

    @cached_property
    def equivalent(self) -> bool:
        """`equivalent`: a bijection between the steps keeps worker and arguments, and maps references and `after`.

        Argument values are compared by what they mean (1 is 1.0, object keys in any order; `graph.py` has the rules).
        The order of independent steps does not matter, but an answer that refers to a later step, which cannot be run,
        is equivalent only to a reference that does so too. The shape must be a plan's.
        """
        if self.exact:
            return True
        if self.candidate.canonical is None or self.bijection is None:
            return False
        return self.candidate.is_ordered or not self.reference.is_ordered

    @cached_property
    def worker(self) -> Counts:
        """`worker_f1`: counts over the multiset of worker names; a step without a readable `type` is superfluous."""
        if self.exact:
            return Counts(len(self.reference.plan.steps), 0, 0)
        return overlap(_workers(self.candidate), _workers(self.reference))

    @cached_property
    def argument(self) -> Counts:
        """`argument_f1`: counts over (worker, parameter, value) triples, matched within aligned steps.

        A value is an argument at the top level of `args`; `after` is none. It is matched where the steps are aligned
        (by the bijection of plans that are the same up to order, else by `matching.align`), the values are equal by
        meaning, and each reference in it leads to the step that is aligned with the step that the other's leads to.
        """
        given, wanted = self.candidate.arguments, self.reference.arguments
        if self.exact:
            return Counts(wanted, 0, 0)
        ours, theirs = self.candidate.graph, self.reference.graph
        whole = self.bijection
        matched = matched_arguments(ours, theirs, dict(enumerate(whole)) if whole is not None else align(ours, theirs))
        return Counts(matched, given - matched, wanted - matched)

    def rank(self) -> tuple[bool, float, float]:
        """The nearest reference has the highest."""
        return self.equivalent, self.worker.f1, self.argument.f1


def nearest(reading: Reading, references: Sequence[PlanView]) -> Comparison | None:
    """The comparison with the nearest reference; None for an answer that cannot be read."""
    if reading.view is None:
        return None
    comparisons = [Comparison(reading.view, reference) for reference in references]
    exact = next((comparison for comparison in comparisons if comparison.exact), None)
    return exact if exact is not None else max(comparisons, key=Comparison.rank)


def missed(references: Sequence[PlanView]) -> tuple[Counts, Counts]:
    """Counts of worker and argument F1 of an answer that cannot be read: against the first reference, one at least."""
    return all_missed(len(references[0].plan.steps)), all_missed(references[0].arguments)


def first_fault(reading: Reading, found: Comparison | None) -> FirstFault:
    """The fault that decides, by the order of `FirstFault`."""
    if found is not None and found.equivalent:
        return FirstFault.RIGHT
    if reading.check is None or found is None:
        return FirstFault.UNPARSEABLE
    if not reading.registered:
        return FirstFault.UNREGISTERED
    return _checked_fault(reading.check) or _compared_fault(found)


def _checked_fault(check: CheckResult) -> FirstFault | None:
    """The fault that the checker names, whatever the reference says."""
    errors = {finding.fault for finding in check.findings if finding.severity is Severity.ERROR}
    if errors - _REFERENCE_FAULTS - {Fault.TOO_MANY_STEPS}:
        return FirstFault.ARGUMENTS
    if errors & _REFERENCE_FAULTS:
        return FirstFault.REFERENCES
    return FirstFault.EXTRA_STEP if errors else None


def _compared_fault(found: Comparison) -> FirstFault:
    """The fault of a valid plan that is not equivalent to its nearest reference."""
    if found.worker.fp and found.worker.fn:
        return FirstFault.WRONG_WORKER
    if found.worker.fn:
        return FirstFault.MISSING_STEP
    if found.worker.fp:
        return FirstFault.EXTRA_STEP
    return FirstFault.REFERENCES if _labels(found.candidate) == _labels(found.reference) else FirstFault.ARGUMENTS


def _workers(view: PlanView) -> Counter[Hashable]:
    return Counter([step.type for step in view.plan.steps])


def _labels(view: PlanView) -> Counter[Hashable]:
    return Counter([node.label for node in view.graph.nodes])
