"""Equivalence of plans: against all permutations, on its rules, and on plans that are hard to tell apart."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plansmith.contract.plan import Plan
from plansmith.eval import isomorphism as matching
from plansmith.eval.matching import align, bijection, graph_of, isomorphism

Steps = list[dict[str, Any]]


def same(left: Steps, right: Steps) -> bool:
    return bijection(Plan.from_json(left), Plan.from_json(right)) is not None


def remap(value: Any, places: list[int]) -> Any:
    """The value with step i called places[i]."""
    if isinstance(value, list):
        return [remap(item, places) for item in value]
    if not isinstance(value, dict):
        return value
    if "$literal" in value:
        return value
    if "$from" in value:
        head, *rest = value["$from"][1:].split("/")
        return {"$from": "/" + "/".join([str(places[int(head)]), *rest])}
    return {key: remap(item, places) for key, item in value.items()}


def permuted(plan: Steps, order: tuple[int, ...]) -> Steps:
    """The plan with step order[k] in place k, references and `after` following."""
    places = [order.index(i) for i in range(len(plan))]
    moved: Steps = []
    for old in order:
        step = {"type": plan[old]["type"], "args": remap(plan[old]["args"], places)}
        after = sorted(places[i] for i in plan[old].get("after", ()))
        moved.append(step | ({"after": after} if after else {}))
    return moved


@st.composite
def plans(draw: st.DrawFn, most: int = 5) -> Steps:
    steps: Steps = []
    for index in range(draw(st.integers(0, most))):
        scalar = st.sampled_from(["x", "y", 1, True, None])
        reference = st.integers(0, index - 1).map(lambda i: {"$from": f"/{i}/out"}) if index else scalar
        value = st.one_of(scalar, reference, st.lists(reference, max_size=2), st.just({"$literal": {"$from": "/0"}}))
        args = draw(st.dictionaries(st.sampled_from("ab"), value, max_size=2))
        step: dict[str, Any] = {"type": draw(st.sampled_from("FG")), "args": args}
        after = draw(st.sets(st.integers(0, index - 1), max_size=2)) if index else set()
        steps.append(step | ({"after": sorted(after)} if after else {}))
    return steps


def orders(plan: Steps) -> list[tuple[int, ...]]:
    """All orders of the steps that keep every step behind what it needs."""
    needs = Plan.from_json(plan).dependencies()
    every = itertools.permutations(range(len(plan)))
    return [o for o in every if all(o.index(d) < o.index(i) for i in o for d in needs[i])]


def keyed(plan: Steps) -> list[Any]:
    """A form in which equal plans (without 1 and 1.0 in them) are equal and booleans are no numbers."""
    return [(s["type"], sorted((k, repr(v)) for k, v in s["args"].items()), s.get("after")) for s in plan]


@settings(max_examples=40, deadline=None)
@given(plans())
def test_a_plan_is_equivalent_to_itself(plan: Steps):
    assert same(plan, plan)


@settings(max_examples=40, deadline=None)
@given(plans(), st.data())
def test_order_of_independent_steps_does_not_matter(plan: Steps, data: st.DataObject):
    moved = permuted(plan, data.draw(st.sampled_from(orders(plan))))
    assert same(plan, moved)
    assert same(moved, plan)


@settings(max_examples=100, deadline=None)
@given(plans(4), plans(4), st.data())
def test_equivalence_is_what_trying_all_permutations_finds(plan: Steps, other: Steps, data: st.DataObject):
    if plan and data.draw(st.booleans()):  # a near miss: the same plan moved, with one step changed
        other = permuted(plan, data.draw(st.sampled_from(orders(plan))))
        index = data.draw(st.integers(0, len(other) - 1))
        changed = {"type": "F", "args": data.draw(st.sampled_from([{}, {"a": "x"}, other[index]["args"]]))}
        other = [*other[:index], changed, *other[index + 1 :]]
    brute = len(plan) == len(other) and any(
        keyed(permuted(plan, order)) == keyed(other) for order in itertools.permutations(range(len(plan)))
    )
    assert same(plan, other) is brute
    assert same(other, plan) is brute


@settings(max_examples=40, deadline=None)
@given(plans(), st.data())
def test_a_bijection_maps_workers_references_and_after(plan: Steps, data: st.DataObject):
    moved = permuted(plan, data.draw(st.sampled_from(orders(plan))))
    mapping = bijection(Plan.from_json(plan), Plan.from_json(moved))
    assert mapping is not None
    assert keyed(permuted(plan, tuple(mapping.index(k) for k in range(len(plan))))) == keyed(moved)


def call(value: Any, **more: Any) -> Steps:
    return [{"type": "F", "args": {"a": "x"}}, {"type": "G", "args": {"a": value}} | more]


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (call(1), call(1.0), True),
        (call(0.0), call(-0.0), True),
        (call(1), call(True), False),
        (call(0), call(False), False),
        (call(1), call("1"), False),
        (call(None), call(False), False),
        (call({"x": 1, "y": [2]}), call({"y": [2.0], "x": 1}), True),
        (call([1, 2]), call([2, 1]), False),
        (call({"$literal": {"x": [1]}}), call({"x": [1]}), True),
        (call({"$literal": "text"}), call("text"), True),
        (call({"$literal": {"$from": "/0"}}), call({"$from": "/0"}), False),
        (call({"x": {"$literal": {"$from": "/0"}}}), call({"$literal": {"x": {"$from": "/0"}}}), True),
        (call({"$from": "/0"}), call({"$from": "/0/a"}), False),
        (call({"$from": "/0/a~1b"}), call({"$from": "/0/a/b"}), False),
        (call({"$from": "/7"}), call({"$from": "/8"}), False),
        (call("v", after=[0]), call("v"), False),
        (call({"$format": "{0}", "with": [1]}), call({"with": [1], "$format": "{0}"}), True),
        (call({"$format": "{0}", "with": [1]}), call({"$format": "{0}", "with": [1.0]}), False),
        (call({"$format": "{0}", "with": [True]}), call({"$format": "{0}", "with": [1]}), False),
        (call({"$unknown": 1}), call({"$literal": {"$unknown": 1}}), False),
        (call("\u00e9"), call("e\u0301"), False),
    ],
)
def test_values_are_compared_by_what_they_mean(left: Steps, right: Steps, equal: bool):
    assert same(left, right) is equal
    assert same(right, left) is equal


def test_an_absent_argument_is_not_its_default_and_more_steps_are_not_fewer():
    assert not same([{"type": "F", "args": {}}], [{"type": "F", "args": {"a": None}}])
    assert not same([{"type": "F", "args": {}}], [{"type": "F", "args": {}}, {"type": "F", "args": {}}])
    assert same([], [])


def test_the_same_lookup_used_twice_is_not_two_lookups_used_once():
    lookups: Steps = [{"type": "F", "args": {}}, {"type": "F", "args": {}}]
    ref0, ref1 = {"$from": "/0/id"}, {"$from": "/1/id"}
    once = [*lookups, {"type": "G", "args": {"a": ref0}}, {"type": "G", "args": {"a": ref1}}]
    twice = [*lookups, {"type": "G", "args": {"a": ref0}}, {"type": "G", "args": {"a": ref0}}]
    crossed = [*lookups, {"type": "G", "args": {"a": ref1}}, {"type": "G", "args": {"a": ref0}}]
    assert not same(once, twice)
    assert same(once, crossed)


def bipartite(edges: list[list[int]], sources: int) -> Steps:
    """Sources alike, and one sink for each list of sources that it comes after."""
    steps: Steps = [{"type": "F", "args": {}} for _ in range(sources)]
    return steps + [{"type": "G", "args": {}, "after": edge} for edge in edges]


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the nodes of the search tree, which bounds the time without measuring it."""
    seen: list[int] = []
    search = matching._search

    def counted(*args: Any) -> Any:
        seen.append(1)
        return search(*args)

    monkeypatch.setattr(matching, "_search", counted)
    return seen


def test_sixteen_identical_steps_take_no_search(searches: list[int]):
    alike: Steps = [{"type": "F", "args": {"a": "x"}} for _ in range(16)]
    assert same(alike, alike)
    assert len(searches) <= 2
    assert not same(alike, [*alike[:-1], {"type": "F", "args": {"a": "y"}}])


def test_rings_that_refinement_cannot_tell_apart_are_told_apart_with_little_search(searches: list[int]):
    ring = bipartite([[i, (i + 1) % 8] for i in range(8)], 8)
    halves = bipartite([[i, (i + 1) % 4] for i in range(4)] + [[4 + i, 4 + (i + 1) % 4] for i in range(4)], 8)
    assert not same(ring, halves)
    assert same(ring, permuted(ring, (3, 1, 2, 0, 7, 5, 6, 4, 10, 8, 9, 15, 11, 14, 13, 12)))
    assert same(halves, permuted(halves, (7, 1, 2, 0, 3, 5, 6, 4, 10, 8, 9, 15, 11, 14, 13, 12)))
    assert len(searches) < 100


def test_twins_beside_a_failing_pair_are_not_tried_in_every_order(searches: list[int]):
    extra: Steps = [{"type": "H", "args": {}} for _ in range(4)]
    ring = bipartite([[i, (i + 1) % 6] for i in range(6)], 6) + extra
    halves = bipartite([[0, 1], [1, 2], [0, 2], [3, 4], [4, 5], [3, 5]], 6) + extra
    assert not same(ring, halves)
    assert len(searches) < 100


def test_cycles_and_self_references_of_broken_plans_do_not_hang():
    loop: Steps = [{"type": "F", "args": {"a": {"$from": "/1"}}}, {"type": "F", "args": {"a": {"$from": "/0"}}}]
    selves: Steps = [{"type": "F", "args": {"a": {"$from": "/0"}}}, {"type": "F", "args": {"a": {"$from": "/1"}}}]
    assert same(loop, loop)
    assert not same(loop, selves)


def test_steps_are_aligned_by_worker_then_by_arguments_then_by_position():
    left = graph_of(Plan.from_json([{"type": "F", "args": {"a": v}} for v in ("x", "y", "z")]))
    right = graph_of(Plan.from_json([{"type": "F", "args": {"a": v}} for v in ("z", "q", "x")]))
    assert align(left, right) == {0: 2, 1: 1, 2: 0}
    partly = [[("x", 1), ("y", 2), ("u", 3), ("v", 4)], [("y", 9), ("x", 8), ("w", 7), ("z", 6)]]
    graphs = [graph_of(Plan.from_json([{"type": "F", "args": {"a": a, "b": b}} for a, b in side])) for side in partly]
    assert align(*graphs) == {0: 1, 1: 0, 2: 2, 3: 3}
    other = graph_of(Plan.from_json([{"type": "G", "args": {"a": "x"}}]))
    assert align(left, other) == {}


@settings(max_examples=40, deadline=None)
@given(plans(), plans())
def test_an_alignment_pairs_each_step_once_and_only_with_its_worker(plan: Steps, other: Steps):
    left, right = graph_of(Plan.from_json(plan)), graph_of(Plan.from_json(other))
    mapping = align(left, right)
    assert len(set(mapping.values())) == len(mapping)
    assert all(left.nodes[i].worker == right.nodes[j].worker for i, j in mapping.items())
    workers = [[node.worker for node in graph.nodes] for graph in (left, right)]
    assert len(mapping) == sum(min(workers[0].count(w), workers[1].count(w)) for w in "FG")


def test_graphs_of_unlike_size_are_not_isomorphic():
    one = graph_of(Plan.from_json([{"type": "F", "args": {}}]))
    assert isomorphism(one, graph_of(Plan(()))) is None


def test_plans_too_long_to_be_valid_are_refined_and_not_searched(searches: list[int]):
    ring = bipartite([[i, (i + 1) % 12] for i in range(12)], 12)
    halves = bipartite([[6 * half + i, 6 * half + (i + 1) % 6] for half in (0, 1) for i in range(6)], 12)
    assert same(ring, ring)
    assert not same(ring, halves)
    assert same([*halves, {"type": "H", "args": {}}], [*halves, {"type": "H", "args": {}}])
    assert not searches
