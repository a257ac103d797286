"""What must hold between the metrics whatever the plan: properties over random catalogs and valid plans."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from plansmith.contract.catalog import Catalog
from plansmith.contract.plan import Plan, references
from plansmith.eval.metrics import F1S, FirstFault, ItemScore, score_item
from plansmith.eval.reading import PlanView
from plansmith.eval.structure import dag_isomorphic
from tests.contract.strategies import catalogs_with_plans, json_values, plans

Steps = list[dict[str, Any]]
CASES = settings(max_examples=20, deadline=None)
RIGHT = ("equivalent", "dag_isomorphic", "worker_f1", "argument_f1")


def value(score: ItemScore, name: str) -> float | None:
    found = getattr(score, name)
    return found.f1 if name in F1S and found is not None else found


def moved(plan: Steps, order: list[int]) -> Steps:
    """The plan with step order[k] in place k; references and `after` follow their steps."""
    places = {old: new for new, old in enumerate(order)}
    found: Steps = []
    for old in order:
        step = {"type": plan[old]["type"], "args": _renamed(plan[old]["args"], places)}
        after = [places[index] for index in plan[old].get("after", ())]
        found.append(step | ({"after": after} if after else {}))
    return found


def _renamed(node: Any, places: dict[int, int]) -> Any:
    if isinstance(node, list):
        return [_renamed(item, places) for item in node]
    if not isinstance(node, dict) or "$literal" in node:
        return node
    if "$from" in node:
        head, *rest = node["$from"][1:].split("/")
        return {"$from": "/" + "/".join([str(places[int(head)]), *rest])}
    return {key: _renamed(item, places) for key, item in node.items()}


@st.composite
def orders(draw: st.DrawFn, plan: Steps) -> list[int]:
    """An order of the steps that keeps each behind what it needs."""
    needs = Plan.from_json(plan).dependencies()
    order: list[int] = []
    while len(order) < len(plan):
        free = [i for i in range(len(plan)) if i not in order and needs[i] <= set(order)]
        order.append(draw(st.sampled_from(free)))
    return order


@CASES
@given(catalogs_with_plans(), st.data())
def test_moving_independent_steps_keeps_a_plan_equivalent_and_isomorphic(
    case: tuple[Catalog, Steps], data: st.DataObject
):
    catalog, plan = case
    found = score_item(moved(plan, data.draw(orders(plan))), [plan], catalog)
    assert [value(found, name) for name in RIGHT] == [True, True, 1, 1]
    assert found.fault is FirstFault.RIGHT


@CASES
@given(catalogs_with_plans(), st.data())
def test_exact_implies_equivalent_implies_isomorphic_and_both_are_symmetric(
    case: tuple[Catalog, Steps], data: st.DataObject
):
    catalog, plan = case
    other = data.draw(st.one_of(plans(catalog), st.just(plan), st.just([*plan[1:], *plan[:1]]), st.just(plan[:-1])))
    there, back = score_item(other, [plan], catalog), score_item(plan, [other], catalog)
    assert there.exact is not None
    assert there.equivalent is not None
    assert there.exact <= there.equivalent
    if there.equivalent:
        assert dag_isomorphic(PlanView(Plan.from_json(other), catalog), PlanView(Plan.from_json(plan), catalog))
    if there.valid and back.valid:
        assert (there.equivalent, there.dag_isomorphic) == (back.equivalent, back.dag_isomorphic)
        assert there.exact == back.exact


@CASES
@given(catalogs_with_plans(), st.booleans(), st.data())
def test_a_plan_scored_against_itself_has_full_marks_in_all_that_is_scored(
    case: tuple[Catalog, Steps], as_text: bool, data: st.DataObject
):
    catalog, plan = case
    steps = Plan.from_json(plan).steps
    alone = not any(True for step in steps for _ in references(step.args))
    results = data.draw(st.lists(json_values(3), min_size=len(plan), max_size=len(plan))) if alone else None
    allowed = None if any(step["args"] for step in plan) else [{step["type"]: {}} for step in plan]
    found = score_item(
        json.dumps(plan) if as_text else plan, [plan], catalog, query=repr(plan), results=results, allowed=allowed
    )
    names = ["parsed", "registered", "valid", "exact", "nestful_full_match", "nestful_partial_match", *RIGHT, *F1S]
    names += ["executed", "answer_match"] if results is not None else []
    names += ["bfcl_ast", "bfcl_ast_greedy"] if allowed else []
    assert {name: value(found, name) for name in names} == dict.fromkeys(names, True)
    assert (found.repaired, found.abstained_right, found.abstained_wrong) == (
        False,
        True if not plan else None,
        None if not plan else False,
    )


@CASES
@given(catalogs_with_plans(), json_values() | st.text(), st.data())
def test_every_f1_and_every_mean_is_a_share(case: tuple[Catalog, Steps], candidate: Any, data: st.DataObject):
    catalog, plan = case
    for answer in (candidate, data.draw(plans(catalog))):
        found = score_item(answer, [plan], catalog)
        for name in (*F1S, "nestful_partial_match"):
            share = value(found, name)
            assert share is not None
            assert 0 <= share <= 1


@CASES
@given(catalogs_with_plans(), st.text().filter(lambda text: not text.lstrip().startswith("[")))
def test_text_that_does_not_parse_is_a_miss_in_all(case: tuple[Catalog, Steps], text: str):
    catalog, plan = case
    empty: list[dict[str, Any]] = []
    for reference, results in ((plan, None), (empty, empty)):
        found = score_item(text, [reference], catalog, query=text, results=results, allowed=[])
        missed = ["parsed", "registered", "valid", "exact", "grounded", "bfcl_ast", "bfcl_ast_greedy"]
        missed += ["nestful_full_match", "nestful_partial_match", *RIGHT, *F1S]
        missed += ["executed", "answer_match"] if results is not None else []
        missed.append("abstained_wrong" if reference else "abstained_right")
        assert {name: value(found, name) for name in missed} == dict.fromkeys(missed, 0)
        assert found.fault is FirstFault.UNPARSEABLE


@CASES
@given(catalogs_with_plans(), st.data())
def test_a_change_of_one_argument_breaks_equivalence(case: tuple[Catalog, Steps], data: st.DataObject):
    catalog, plan = case
    places = [(index, name) for index, step in enumerate(plan) for name in step["args"]]
    assume(places)
    index, name = data.draw(st.sampled_from(places))
    changed = json.loads(json.dumps(plan))
    changed[index]["args"][name] = ["changed", plan[index]["args"][name]]
    dropped = json.loads(json.dumps(plan))
    del dropped[index]["args"][name]
    for other in (changed, dropped):
        found = score_item(other, [plan], catalog)
        assert (found.exact, found.equivalent, found.nestful_full_match) == (False, False, False)
        assert found.argument_f1 is not None
        assert found.argument_f1.f1 < 1
        assert found.worker_f1 is not None
        assert found.worker_f1.f1 == 1


@CASES
@given(catalogs_with_plans(), st.data())
def test_a_change_of_one_worker_breaks_equivalence_and_isomorphism(case: tuple[Catalog, Steps], data: st.DataObject):
    catalog, plan = case
    assume(plan)
    index = data.draw(st.integers(0, len(plan) - 1))
    others = [name for name in (*catalog.names, "unheard_of") if name != plan[index]["type"]]
    changed = [
        step | {"type": data.draw(st.sampled_from(others))} if i == index else step for i, step in enumerate(plan)
    ]
    found = score_item(changed, [plan], catalog)
    assert (found.exact, found.equivalent, found.dag_isomorphic) == (False, False, False)
    assert found.worker_f1 is not None
    assert found.worker_f1.f1 < 1


@CASES
@given(catalogs_with_plans(), st.data())
def test_a_change_of_one_target_to_another_kind_of_step_breaks_equivalence(
    case: tuple[Catalog, Steps], data: st.DataObject
):
    """The last step comes after one step; a step of another worker in its place is another plan."""
    catalog, plan = case
    kinds = {step["type"] for step in plan}
    assume(len(kinds) > 1)
    one = data.draw(st.integers(0, len(plan) - 1))
    other = data.draw(st.sampled_from([i for i, step in enumerate(plan) if step["type"] != plan[one]["type"]]))
    for last in (lambda i: {"args": {}, "after": [i]}, lambda i: {"args": {"x": [{"$from": f"/{i}/x"}]}}):
        left, right = ([*plan, {"type": plan[0]["type"]} | last(target)] for target in (one, other))
        found = score_item(left, [right], catalog)
        assert (found.exact, found.equivalent) == (False, False)
        assert score_item(left, [left], catalog).equivalent is True
