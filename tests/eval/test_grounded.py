"""`grounded`, and the list of what a plan invents with its places."""

from __future__ import annotations

import time
from typing import Any

import pytest

from plansmith.contract.grounding import Query, invented
from plansmith.contract.plan import Plan
from tests.eval.metric_cases import CATALOG, GARBAGE, ref, score, step

QUERY = "Find Anna Berg and mail anna@example.org that the 25 chairs come on Friday"


def grounded(candidate: Any, query: str | None = QUERY) -> tuple[bool | None, tuple[str, ...]]:
    found = score(candidate, [], query=query)
    return found.grounded, found.invented


def test_a_plan_that_only_says_what_the_query_says_is_grounded():
    plan = [step("find", name="anna berg"), step("mail", to=["anna@example.org"], body="25 chairs on Friday")]
    assert grounded(plan) == (True, ())
    assert grounded([]) == (True, ())
    assert grounded([step("now")]) == (True, ())


def test_what_is_invented_is_listed_with_its_place_in_plan_order():
    plan = [
        step("find", name="Anna Lund", limit=200),
        step("mail", to=["anna@example.org", "boss@example.org"], body="The chairs, dear Anna"),
        step("book", extras={"a/b": [1, {"c": "Rome"}]}),
    ]
    assert grounded(plan) == (
        False,
        (
            '/0/args/name: "Anna Lund"',
            "/0/args/limit: 200",
            '/1/args/to/1: "boss@example.org"',
            '/1/args/body: "The chairs, dear Anna"',
            '/2/args/extras/a~1b/1/c: "Rome"',
        ),
    )


@pytest.mark.parametrize(
    "args",
    [
        {"tone": "very formal"},
        {"format": "text/plain"},
        {"sender": "desk@example.org"},
        {"options": {"colour": "teal"}},
    ],
)
def test_what_the_schema_gives_is_grounded_at_its_place_only(args: dict[str, Any]):
    assert grounded([step("mail", **args)]) == (True, ())
    (value,) = args.values()
    word = value["colour"] if isinstance(value, dict) else value
    assert grounded([step("mail", body=word)])[0] is False
    assert grounded([step("mail", options={"note": word})])[0] is False


def test_references_are_no_literals_and_the_text_of_a_template_is_one():
    plan = [
        step("find", name="Anna"),
        step("mail", body={"$format": "chairs {0} {1}", "with": [ref("/0/city"), "Anna"]}),
    ]
    assert grounded(plan) == (True, ())
    plan[1]["args"]["body"] = {"$format": "Regards {0} {1}", "with": [ref("/0/city"), "Oslo"]}
    assert grounded(plan)[1] == ('/1/args/body/$format: "Regards"', '/1/args/body/with/1: "Oslo"')


def test_a_literal_operator_hides_nothing():
    plan = [step("find"), step("book", id={"$literal": {"$from": "/0/id"}}, extras={"$literal": ["Rome"]})]
    assert grounded(plan)[1] == ('/1/args/id/$literal/$from: "/0/id"', '/1/args/extras/$literal/0: "Rome"')


def test_numbers_and_dates_that_can_be_worked_out_are_grounded():
    assert grounded([step("find", limit=25), step("find", limit=7), step("book", id="2024-11-29")])[0] is True
    assert grounded([step("find", limit=2500)])[1] == ("/0/args/limit: 2500",)


@pytest.mark.parametrize("garbage", [None, *GARBAGE])
def test_what_cannot_be_read_is_a_miss_and_invents_nothing(garbage: str | None):
    assert grounded(garbage) == (False, ())
    assert grounded([{"type": "now", "args": {}, "why": "Rome"}]) == (False, ())


def test_without_a_query_it_is_not_scored():
    assert grounded([step("find", name="Rome")], None) == (None, ())


def test_a_step_of_an_unknown_worker_has_literals_too():
    assert grounded([step("unheard_of", name="Anna")]) == (True, ())
    assert grounded([step("unheard_of", where={"city": "Rome"})])[1] == ('/0/args/where/city: "Rome"',)


def test_a_list_as_large_as_an_answer_may_be_is_gone_through_once():
    plan = Plan.from_json([step("book", extras=[list(range(10**6, 10**6 + 20_000))])])
    start = time.process_time()
    assert len(invented(plan, Query("nothing"), CATALOG)) == 20_000
    assert time.process_time() - start < 8  # half a second; a minute where each entry looks at the whole list
