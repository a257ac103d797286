"""`executed` and `answer_match` are what a run comes to, compared with a plain reading of the plan, step after step."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plansmith.contract.catalog import Catalog, Effect, Worker
from plansmith.contract.check import check_plan
from plansmith.contract.compiled import compile_catalog
from plansmith.contract.errors import PlansmithError
from plansmith.contract.execution import ArgumentError, last_steps, prepare_args
from plansmith.contract.plan import Json, Plan, Step
from plansmith.contract.replay import RecordedCall, Replay, recorded_calls
from plansmith.contract.values import value_key
from plansmith.eval.executed import Execution, record_of, run_on_record

ANYTHING = {"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": False}
NARROW = {"type": "object", "properties": {"a": {"type": ["string", "integer"]}, "b": {}}, "required": ["a"]}
CATALOG = Catalog(
    "r",
    [
        Worker(name="find", args=ANYTHING, effect=Effect.READ),
        Worker(name="get", args=NARROW, effect=Effect.READ),
        Worker(name="put", args=ANYTHING, effect=Effect.WRITE, permission="may put", timeout_s=1e-9),
    ],
)
RESULTS = st.sampled_from([1, "one", [1, 2], {"x": 1}, {"x": {"y": [3]}}, None, True])
LITERALS = st.sampled_from([1, 1.0, "one", [1, 2], {"x": 1}, None, False])


@st.composite
def plans(draw: st.DrawFn, most: int = 4) -> Plan:
    steps: list[Step] = []
    for index in range(draw(st.integers(0, most))):
        values: st.SearchStrategy[Any] = LITERALS
        if index:
            pointers = [f"/{n}{tail}" for n in range(index) for tail in ("", "/x", "/x/y/0", "/1")]
            values = LITERALS | st.sampled_from(pointers).map(lambda pointer: {"$from": pointer})
        args = draw(st.dictionaries(st.sampled_from(["a", "b"]), values))
        after = draw(st.sets(st.integers(0, index - 1))) if index else set()
        steps.append(Step(draw(st.sampled_from(CATALOG.names)), args, tuple(sorted(after))))
    return Plan(tuple(steps))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Plan, Plan, tuple[Any, ...]]:
    """A plan, the recorded plan, and the record; often the plan is the recorded one with one thing changed."""
    while True:
        reference = draw(plans())
        results = [draw(RESULTS) for _ in reference.steps]
        record = record_of(reference, results, CATALOG)
        if record is not None:
            break
    steps = list(reference.steps)
    if steps and draw(st.booleans()):
        at = draw(st.integers(0, len(steps) - 1))
        known = record[at].args
        steps[at] = steps[at]._replace(args=draw(st.sampled_from([known, {}, {"a": "other"}])))
    plan = Plan(tuple(steps)) if draw(st.booleans()) else draw(plans())
    return plan, reference, record


def by_hand(plan: Plan, reference: Plan, record: tuple[RecordedCall, ...]) -> Execution:
    """One step after the other, without an orchestrator."""
    replay, results = Replay(record), list[Json]()
    for step in plan.steps:
        try:
            args = prepare_args(step, results, compile_catalog(CATALOG)[step.type])
            results.append(replay.call(step.type, args))
        except PlansmithError:
            return Execution(False, False)
    last = Counter(value_key(results[index]) for index in last_steps(plan))
    return Execution(True, last == Counter(value_key(record[index].result) for index in last_steps(reference)))


@settings(max_examples=200, deadline=None)
@given(cases())
def test_a_plan_fares_on_the_record_as_one_who_reads_it_step_by_step_finds(case: Any):
    plan, reference, record = case
    if check_plan(plan.to_json(), CATALOG).valid:
        assert run_on_record(plan, reference, record, CATALOG) == by_hand(plan, reference, record)


def test_both_outcomes_and_both_answers_are_met():
    one = Plan((Step("find", {"a": 1}), Step("put", {"a": {"$from": "/0"}})))
    record = recorded_calls(one, [7, "put"])
    literal = Plan((Step("put", {"a": 7}),))
    short = Plan((Step("find", {"a": 1}),))
    other = Plan((Step("find", {"a": 2}),))
    found = [run_on_record(plan, one, record, CATALOG) for plan in (one, literal, short, other)]
    assert found == [Execution(True, True), Execution(True, True), Execution(True, False), Execution(False, False)]


def test_a_recorded_plan_whose_results_its_own_workers_do_not_take_is_no_record():
    plan = Plan((Step("find", {"a": 1}), Step("get", {"a": {"$from": "/0"}})))
    assert record_of(plan, ["text", 1], CATALOG) is not None
    assert record_of(plan, [[1], 1], CATALOG) is None
    with pytest.raises(ArgumentError):
        prepare_args(plan.steps[1], [[1]], compile_catalog(CATALOG)["get"])


def test_the_same_is_found_where_an_event_loop_runs_already():
    plan = Plan((Step("find", {"a": 1}),))
    record = recorded_calls(plan, [7])

    async def asked() -> Execution:
        return run_on_record(plan, plan, record, CATALOG)

    assert asyncio.run(asked()) == Execution(True, True)
