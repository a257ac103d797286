"""`executed` and `answer_match`: a plan run on the recorded results of the reference plan.

Reads a valid plan, the reference plan and the recorded result of each of its steps; calls no worker. The record answers
a call whose worker and arguments (references resolved) equal a recorded call's (`contract/replay.py`); any other call
has no result, and the plan does not come to its end. So an argument may be given as a literal where the reference
refers to an equal result, and the other way round. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from plansmith.contract.errors import PlansmithError
from plansmith.contract.execution import last_steps, prepare_args
from plansmith.contract.plan import Json, Plan
from plansmith.contract.replay import RecordedCall, Replay, recorded_calls
from plansmith.contract.values import value_key


class Execution(NamedTuple):
    """How a plan fared on the record."""

    executed: bool
    """Every reference was resolved and every call is in the record. The empty plan comes to its end at once."""
    answer_match: bool
    """Executed, and the results of its last steps, as a multiset, equal the reference plan's. Last are steps that no
    other step refers to or waits for."""


MISS = Execution(False, False)
REACHED = Execution(True, True)


def record_of(reference: Plan, results: Sequence[Json]) -> tuple[RecordedCall, ...] | None:
    """The recorded calls of the reference plan; None where its own references lead nowhere in the results."""
    try:
        return recorded_calls(reference, results)
    except (PlansmithError, ValueError):
        return None


def run_on_record(plan: Plan, reference: Plan, record: Sequence[RecordedCall]) -> Execution:
    """Run a valid plan on the record of the reference plan."""
    replay = Replay(record)
    outputs: list[Json] = []
    for step in plan.steps:
        try:
            args = prepare_args(step, outputs, None)
        except PlansmithError:
            return MISS
        answer = replay.find(step.type, args)
        if answer is None:
            return MISS
        outputs.append(answer.result)
    return Execution(True, _last(plan, outputs) == _last(reference, [call.result for call in record]))


def _last(plan: Plan, outputs: Sequence[Json]) -> Counter[Hashable]:
    return Counter(value_key(outputs[index]) for index in last_steps(plan))
