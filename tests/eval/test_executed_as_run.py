"""`executed` and `answer_match` mean what a run means: the same plans come to their end, with the same results."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from plansmith.contract.catalog import Catalog, Effect, Worker
from plansmith.contract.check import check_plan
from plansmith.contract.execution import last_steps
from plansmith.contract.plan import Plan, Step
from plansmith.contract.replay import recorded_calls
from plansmith.contract.values import value_key
from plansmith.eval.executed import run_on_record
from plansmith.serving.runs.events import RunResult, RunStatus
from plansmith.serving.runs.orchestrator import Orchestrator
from plansmith.serving.workers.replayed import replay_registry

ARGS = {"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": False}
CATALOG = Catalog("r", [Worker(name=name, args=ARGS, effect=Effect.READ) for name in ("find", "get")])
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
        try:
            record = recorded_calls(reference, results)
        except Exception:
            continue
        keys = [(call.worker, value_key(call.args)) for call in record]
        if len(set(keys)) == len(keys):  # equal calls with several results depend on the order of the asking
            break
    steps = list(reference.steps)
    if steps and draw(st.booleans()):
        at = draw(st.integers(0, len(steps) - 1))
        known = record[at].args
        steps[at] = steps[at]._replace(args=draw(st.sampled_from([known, {}, {"a": "other"}])))
    plan = Plan(tuple(steps)) if draw(st.booleans()) else draw(plans())
    return plan, reference, record


def run(plan: Plan, record: tuple[Any, ...]) -> RunResult:
    return asyncio.run(Orchestrator(replay_registry(CATALOG, record)).run(plan))


@settings(max_examples=200, deadline=None)
@given(cases())
def test_a_plan_is_executed_where_its_run_is_complete_and_its_answer_matches_where_its_last_results_do(case: Any):
    plan, reference, record = case
    if not check_plan(plan.to_json(), CATALOG).valid:
        return
    found = run_on_record(plan, reference, record)
    ran = run(plan, record)
    assert found.executed is (ran.status is RunStatus.COMPLETE)
    if found.executed:
        last = Counter(value_key(ran.results[index]) for index in last_steps(plan))
        right = Counter(value_key(record[index].result) for index in last_steps(reference))
        assert found.answer_match is (last == right)
