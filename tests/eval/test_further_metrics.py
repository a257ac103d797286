"""Graph, abstention, grounding, execution, NESTFUL: hand-made cases, each decided by reading the definition."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plansmith.contract.catalog import Catalog, Effect, Worker
from plansmith.eval.metrics import F1S, MEANS, METRICS, RATES, Counts, ItemScore, score_item

TEXT: dict[str, Any] = {"type": "string"}


def worker(name: str, **properties: dict[str, Any]) -> Worker:
    return Worker(name=name, args={"type": "object", "properties": properties}, effect=Effect.READ)


CATALOG = Catalog(
    "small",
    [
        worker("find", place=TEXT, kind={"type": "string", "enum": ["hotel", "museum"]}, limit={"type": "integer"}),
        worker("book", id=TEXT, nights={"type": "number"}),
        worker("tell", text=TEXT, ids={"type": "array", "items": TEXT}),
    ],
)
FIND = {"type": "find", "args": {"place": "Rome", "kind": "hotel"}}
BOOK = {"type": "book", "args": {"id": {"$from": "/0/id"}, "nights": 2}}
TELL = {"type": "tell", "args": {"text": {"$format": "Booked {0}", "with": [{"$from": "/1/code"}]}}}
PLAN = [FIND, BOOK, TELL]
RESULTS = [{"id": "h7"}, {"code": "X1"}, {"sent": True}]
QUERY = "Please book a hotel in Rome for two nights and tell me: booked"


def score(candidate: Any, *references: Any, **options: Any) -> ItemScore:
    return score_item(candidate, references or (PLAN,), CATALOG, **options)


def changed(step: dict[str, Any], **args: Any) -> dict[str, Any]:
    return {**step, "args": {**step["args"], **args}}


def test_the_reference_itself_has_full_marks_in_all_that_is_scored():
    found = score(json.dumps(PLAN), query=QUERY, results=RESULTS)
    values = {name: getattr(found, name) for name in METRICS}
    assert {name for name, value in values.items() if value is None} == {
        "bfcl_ast",
        "bfcl_ast_greedy",
        "abstained_right",
    }
    assert not values.pop("abstained_wrong")
    assert not values.pop("repaired")
    assert all(values[name] == 1 for name in (*RATES, *MEANS) if values.get(name) is not None)
    assert all(values[name].fp == values[name].fn == 0 < values[name].tp for name in F1S)


@pytest.mark.parametrize("text", [None, "", "I cannot plan this.", "[]]", '{"type":"find"}', "[" * 50])
def test_what_cannot_be_read_is_a_miss_everywhere_and_never_an_abstention(text: str | None):
    for references in ((PLAN,), ([],)):
        found = score(text, *references, query=QUERY, results=RESULTS if references == (PLAN,) else [], allowed=[])
        for name in {*RATES, *MEANS} - {"repaired"}:
            assert not getattr(found, name), name
        for name in F1S:
            assert getattr(found, name).f1 == 0


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        ("```json\n[]\n```", True),
        ("Here is the plan: []", True),
        ("[]", False),
        ("nothing at all", False),
        ('{"a":1}', False),
    ],
)
def test_repaired_counts_what_only_the_lenient_parser_reads(text: str, repaired: bool):
    assert score(text).repaired is repaired


def test_abstention_is_scored_on_the_side_of_the_reference():
    assert (score("[]", []).abstained_right, score("[]", []).abstained_wrong) == (True, None)
    assert (score(json.dumps(PLAN), []).abstained_right, score("[]").abstained_right) == (False, None)
    assert (score("[]").abstained_wrong, score(json.dumps(PLAN)).abstained_wrong) == (True, False)


TWO = [FIND, changed(FIND, place="Oslo"), {"type": "tell", "args": {"ids": [{"$from": "/0/id"}, {"$from": "/1/id"}]}}]


@pytest.mark.parametrize(
    ("candidate", "equivalent", "isomorphic"),
    [
        ([TWO[1], TWO[0], changed(TWO[2], ids=[{"$from": "/1/id"}, {"$from": "/0/id"}])], True, True),
        ([TWO[1], TWO[0], TWO[2]], False, True),
        ([TWO[0], TWO[1], changed(TWO[2], ids=[{"$from": "/0/id"}, {"$from": "/0/id"}])], False, False),
        ([TWO[0], TWO[1], {**changed(TWO[2], ids=[{"$from": "/0/id"}]), "after": [1]}], False, True),
        ([TWO[0], TWO[1], changed(TWO[2], ids=[{"$literal": "/0/id"}, "x"])], False, False),
        (
            [
                TWO[0],
                TWO[1],
                {
                    "type": "tell",
                    "args": {"text": {"$format": "{0}{1}", "with": [{"$from": "/0/a"}, {"$from": "/1/b"}]}},
                },
            ],
            False,
            True,
        ),
        ([TWO[0], TWO[1]], False, False),
        ([changed(FIND, place="Bonn"), TWO[1], TWO[2]], False, True),
    ],
)
def test_the_graph_looks_at_workers_and_edges_only(candidate: Any, equivalent: bool, isomorphic: bool):
    found = score(candidate, TWO)
    assert (found.equivalent, found.dag_isomorphic) == (equivalent, isomorphic)


def test_an_edge_counts_once_however_often_it_is_written():
    twice = [FIND, {"type": "tell", "args": {"ids": [{"$from": "/0/id"}, {"$from": "/0/name"}]}, "after": [0]}]
    once = [FIND, {"type": "tell", "args": {}, "after": [0]}]
    assert score(twice, once).dag_isomorphic


@pytest.mark.parametrize(
    ("args", "invented"),
    [
        ({"place": "Rome"}, ()),
        ({"place": "rome"}, ()),
        ({"place": "Rome, Italy"}, ('/0/args/place: "Rome, Italy"',)),
        ({"kind": "museum"}, ()),
        ({"place": "Rome", "limit": 2}, ()),
        ({"place": "Rome", "limit": 250}, ("/0/args/limit: 250",)),
        ({"place": "Naples", "kind": "hotel"}, ('/0/args/place: "Naples"',)),
    ],
)
def test_grounded_lists_what_is_in_neither_query_nor_schema(args: dict[str, Any], invented: tuple[str, ...]):
    found = score([{"type": "find", "args": args}], query=QUERY)
    assert (found.grounded, found.invented) == (not invented, invented)
    assert score([{"type": "find", "args": args}]).grounded is None


@pytest.mark.parametrize(
    ("candidate", "executed", "match"),
    [
        (PLAN, True, True),
        ([FIND, changed(BOOK, id="h7"), TELL], True, False),  # nothing needs the first step: its result is a last one
        ([FIND, changed(BOOK, nights=2.0), TELL], True, True),
        ([FIND, changed(BOOK, nights=3), TELL], False, False),
        ([FIND, BOOK], True, False),
        ([FIND, changed(BOOK, id={"$from": "/0/nothing"}), TELL], False, False),
        ([], True, False),
        ([{"type": "nobody", "args": {}}], False, False),
    ],
)
def test_a_plan_is_run_on_the_recorded_results(candidate: Any, executed: bool, match: bool):
    found = score(candidate, results=RESULTS)
    assert (found.executed, found.answer_match) == (executed, match)


def test_results_that_do_not_fit_the_reference_leave_execution_unscored():
    for results in ([], [{"id": "h7"}, {}, {}], None):
        assert score(PLAN, results=results).executed is None


def test_nestful_counts_calls_by_position_and_label():
    """Labels are positions: `$var1.id$` is the id of the first call, so swapping two calls breaks the match."""
    same = score(PLAN)
    assert (same.nestful_full_match, same.nestful_partial_match) == (True, 1.0)
    swapped = score([TWO[1], TWO[0], changed(TWO[2], ids=[{"$from": "/1/id"}, {"$from": "/0/id"}])], TWO)
    assert swapped.equivalent
    assert not swapped.nestful_full_match
    assert swapped.nestful_partial_match == pytest.approx(2 / 3)
    wrong = score([FIND, changed(BOOK, nights=5)])
    assert wrong.nestful_partial_match == pytest.approx(1 / 3)
    assert wrong.nestful_f1_functions == Counts(2, 0, 1)
    assert wrong.nestful_f1_parameters == Counts(4, 0, 1)
    surplus = score([*PLAN, FIND])
    assert surplus.nestful_partial_match == pytest.approx(3 / 4)
    assert surplus.nestful_f1_functions == Counts(3, 1, 0)


def test_nestful_leaves_after_aside_and_takes_the_best_reference():
    found = score([FIND, {**BOOK, "after": [0]}, TELL], [], PLAN)
    assert (found.nestful_full_match, found.equivalent) == (True, False)


def test_bfcl_is_scored_where_there_are_allowed_values_only():
    allowed = [{"find": {"place": ["Rome", "Roma"], "kind": ["", "hotel"]}}]
    right, wrong = [{"type": "find", "args": {"place": "roma"}}], [{"type": "find", "args": {"place": "Oslo"}}]
    assert (score(right, allowed=allowed).bfcl_ast, score(wrong, allowed=allowed).bfcl_ast) == (True, False)
    assert score(right).bfcl_ast is None


def test_sixteen_identical_steps_are_matched():
    many = [FIND] * 16
    assert score(many, many).equivalent
    assert score([*many[:15], changed(FIND, place="Oslo")], many).argument_f1 == Counts(31, 1, 1)
