"""`dag_isomorphic`: worker names and dependency edges, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from plansmith.eval.metrics import FirstFault
from plansmith.eval.structure import dag_isomorphic
from tests.eval.metric_cases import GARBAGE, Steps, ref, score, step, text, view

REFERENCE = [step("find", name="A"), step("now"), step("book", id=ref("/0/id"))]


def isomorphic(candidate: Steps, reference: Steps) -> bool:
    found = dag_isomorphic(view(candidate), view(reference))
    assert score(text(candidate), reference).dag_isomorphic is found
    return found


def after_find(**args: Any) -> Steps:
    return [step("find", name="A"), step("book", **args)]


@pytest.mark.parametrize(
    "args",
    [
        {"id": ref("/0")},
        {"id": ref("/0/other/place")},
        {"extras": [1, {"deep": [ref("/0/id")]}]},
        {"id": {"$format": "{0} of {1}", "with": ["x", ref("/0/id")]}},
        {"id": ref("/0/id"), "extras": [ref("/0/id"), ref("/0/name")]},
    ],
)
def test_a_reference_at_any_depth_is_one_edge_however_often_it_stands_there(args: dict[str, Any]):
    reference = after_find(id=ref("/0/id"))
    assert isomorphic(after_find(**args), reference)
    assert isomorphic(reference, after_find(**args))
    assert not isomorphic(after_find(**args), after_find(id="A"))


def test_after_is_an_edge_like_a_reference_and_both_together_are_one():
    waits = [step("find", name="A"), step("book", [0], id="7")]
    both = [step("find", name="A"), step("book", [0], id=ref("/0/id"))]
    assert isomorphic(waits, after_find(id=ref("/0/id")))
    assert isomorphic(both, waits)
    assert not isomorphic(waits, after_find(id="7"))


def test_what_stands_in_a_literal_is_no_edge():
    quoted = after_find(id={"$literal": ref("/0/id")})
    assert isomorphic(quoted, after_find(id="7"))
    assert not isomorphic(quoted, after_find(id=ref("/0/id")))


def test_arguments_do_not_matter_and_worker_names_do():
    other = [step("find", limit=3), step("now"), step("book", extras=[ref("/0")], id="y")]
    found = score(other, REFERENCE)
    assert (found.dag_isomorphic, found.equivalent, found.exact) == (True, False, False)
    assert not isomorphic([step("find"), step("find"), step("book", id=ref("/0"))], REFERENCE)


def test_the_edge_must_lead_to_the_same_worker_and_independent_steps_may_move():
    assert not isomorphic([step("find"), step("now"), step("book", id=ref("/1"))], REFERENCE)
    assert isomorphic([step("now"), step("find"), step("book", id=ref("/1"))], REFERENCE)


def test_a_chain_a_fork_and_a_join_of_equal_workers_are_three_shapes():
    chain = [step("now"), step("now", [0]), step("now", [1])]
    fork = [step("now"), step("now", [0]), step("now", [0])]
    join = [step("now"), step("now"), step("now", [0, 1])]
    for plan in (chain, fork, join):
        assert [isomorphic(plan, other) for other in (chain, fork, join)].count(True) == 1
        assert isomorphic(plan, plan)


def test_swapped_twins_are_the_same_and_one_twin_used_twice_is_not():
    twins = [step("find"), step("find")]
    once = [*twins, step("book", id=ref("/0")), step("book", id=ref("/1"))]
    crossed = [*twins, step("book", id=ref("/1")), step("book", id=ref("/0"))]
    twice = [*twins, step("book", id=ref("/1")), step("book", id=ref("/1"))]
    assert isomorphic(once, crossed)
    assert not isomorphic(once, twice)


def test_the_empty_plan_is_isomorphic_to_itself_only():
    assert isomorphic([], [])
    assert not isomorphic([], REFERENCE)
    assert not isomorphic(REFERENCE, [])


@pytest.mark.parametrize("garbage", [None, *GARBAGE])
def test_what_is_no_plan_is_isomorphic_to_nothing(garbage: str | None):
    assert score(garbage, []).dag_isomorphic is False
    assert score(garbage, REFERENCE).dag_isomorphic is False
    assert score([{"type": "now", "args": {}, "why": 1}], [step("now")]).dag_isomorphic is False


def test_a_plan_that_refers_to_a_later_step_is_not_the_plan_in_the_right_order():
    wrong = [step("book", id=ref("/1/id")), step("find", name="A")]
    found = score(wrong, after_find(id=ref("/0/id")))
    assert (found.dag_isomorphic, found.equivalent, found.valid) == (False, False, False)
    assert found.fault is FirstFault.REFERENCES
    assert score([step("now", [1]), step("find")], [step("find"), step("now", [0])]).equivalent is False


def test_one_of_several_references_is_enough():
    assert score(REFERENCE, [step("now")], REFERENCE).dag_isomorphic is True
    assert score(REFERENCE, [step("now")], []).dag_isomorphic is False
