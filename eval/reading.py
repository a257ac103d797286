"""What can be read of one answer: its check, its plan, and what the metrics share of it.

Reads an answer (text, a plan as JSON, or None for none) and a catalog; pure. The strict parse and every rule of
validity are the checker's (`plansmith.contract.check`), which runs once an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import CheckResult, Fault, check_plan
from plansmith.contract.findings import unregistered
from plansmith.contract.parse import ParseError, parse_lenient, parse_plan_text, parse_plan_value
from plansmith.contract.plan import Json, Plan, Step, dumps
from plansmith.eval.graph import Graph, graph_of

COMPARED_STEPS = 256
"""Steps of a plan, from its first, that are compared with another plan's arguments and dependencies."""

_SHAPE_FAULTS = frozenset(
    {Fault.DUPLICATE_KEY, Fault.STEP_NOT_OBJECT, Fault.MISSING_KEY, Fault.UNKNOWN_KEY, Fault.TYPE_NOT_STRING}
    | {Fault.ARGS_NOT_OBJECT, Fault.BAD_AFTER}
)


@dataclass(frozen=True)
class PlanView:
    """A plan with what several metrics need of it, made when first asked for."""

    plan: Plan
    catalog: Catalog | None
    """The workers that give the order of arguments; None for a plan whose shape is wrong or that cannot be written."""

    @property
    def well_shaped(self) -> bool:
        """Whether the shape is a plan's; arguments and references may be wrong."""
        return self.catalog is not None

    @cached_property
    def canonical(self) -> str | None:
        """Canonical text; None for a plan whose shape is wrong."""
        return self.plan.canonical(self.catalog) if self.catalog is not None else None

    @cached_property
    def _written(self) -> str:
        return dumps(self.plan.to_json())

    def same_text(self, other: PlanView) -> bool:
        """Whether both have canonical texts, and equal ones."""
        if not self.well_shaped or not other.well_shaped:
            return False
        if self.plan != other.plan:
            return False
        return self._written == other._written or self.canonical == other.canonical  # 1 == 1.0, their texts differ

    @cached_property
    def graph(self) -> Graph:
        """The graph of the plan's first `COMPARED_STEPS` steps."""
        steps = self.plan.steps
        return graph_of(self.plan if len(steps) <= COMPARED_STEPS else Plan(steps[:COMPARED_STEPS]))

    @cached_property
    def is_ordered(self) -> bool:
        """Whether each reference and `after` leads to an earlier step."""
        nodes = enumerate(self.graph.nodes)
        return all(other < index for index, node in nodes for other in (*node.targets, *node.after))

    @cached_property
    def arguments(self) -> int:
        """Arguments at the top level of all steps."""
        return sum(len(step.args) for step in self.plan.steps)


@dataclass(frozen=True)
class Reading:
    """One answer, read."""

    candidate: Json | None
    check: CheckResult | None
    """None where there is no answer."""
    plan: Plan | None
    """The plan, where its shape is right; its arguments and references may be wrong."""
    view: PlanView | None
    """The plan as far as it can be read; None where the text is no JSON array."""

    @property
    def parsed(self) -> bool:
        """`parsed`: the text is strict JSON (RFC 8259, within the limits of the contract) and an array."""
        return self.check is not None and self.check.parsed

    @property
    def registered(self) -> bool:
        """`registered`: parsed, and every step's `type` is a worker of the catalog."""
        return self.check is not None and self.parsed and not unregistered(self.check.findings)

    @property
    def valid(self) -> bool:
        """`valid`: the checker finds no error (warnings may be)."""
        return self.check is not None and self.check.valid

    @property
    def empty(self) -> bool:
        """Whether the answer is the empty plan, strictly parsed."""
        return self.plan is not None and not self.plan.steps

    @cached_property
    def repaired(self) -> bool:
        """`repaired`: not strictly parsed, but the contract's lenient parser gets an array out of the text."""
        if not isinstance(self.candidate, str) or self.check is None or self.check.parsed:
            return False
        if self.check.findings[0].fault is not Fault.NOT_JSON:
            return False
        try:
            return isinstance(parse_lenient(self.candidate).parsed.value, list)
        except ParseError:
            return False


def read_answer(candidate: Json | None, catalog: Catalog) -> Reading:
    """Read an answer: text as generated (`str`), a plan as JSON, or None."""
    if candidate is None:
        return Reading(None, None, None, None)
    check = check_plan(candidate, catalog)
    if check.plan is not None:
        return Reading(candidate, check, check.plan, PlanView(check.plan, catalog))
    if not check.parsed:
        return Reading(candidate, check, None, None)
    parse = parse_plan_text if isinstance(candidate, str) else parse_plan_value
    rows = cast("list[Json]", parse(candidate).value)
    if any(finding.fault in _SHAPE_FAULTS for finding in check.findings):
        return Reading(candidate, check, None, PlanView(Plan(tuple(map(_readable_step, rows))), None))
    plan = Plan.from_json(rows)
    try:
        dumps(rows)
    except ValueError:  # a number too large to be held cannot be written either
        return Reading(candidate, check, None, PlanView(plan, None))
    return Reading(candidate, check, plan, PlanView(plan, catalog))


def is_well_shaped(candidate: Json, catalog: Catalog) -> bool:
    """Whether an answer has the shape of a plan, so that it can serve as a reference; workers and values aside."""
    return read_answer(candidate, catalog).plan is not None


def _readable_step(row: Json) -> Step:
    if not isinstance(row, dict):
        return Step("", {})
    node = cast("dict[str, Json]", row)
    worker, args = node.get("type"), node.get("args")
    return Step(
        worker if isinstance(worker, str) else "", cast("dict[str, Json]", args) if isinstance(args, dict) else {}
    )
