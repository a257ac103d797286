"""`executed` and `answer_match`: candidate plans run on the recorded results of the reference plan."""

from __future__ import annotations

from typing import Any

import pytest

from tests.eval.metric_cases import GARBAGE, Steps, ref, score, step

REFERENCE = [step("find", name="A"), step("now"), step("book", id=ref("/0/id"))]
RESULTS: list[Any] = [{"id": 7, "tags": ["x"]}, "noon", {"done": True}]


def run(candidate: Any, reference: Steps = REFERENCE, results: list[Any] | None = RESULTS) -> tuple[Any, Any]:
    found = score(candidate, reference, results=results)
    return found.executed, found.answer_match


def test_the_reference_runs_to_the_end_and_gives_its_own_answer():
    assert run(REFERENCE) == (True, True)


def test_independent_steps_may_move_and_last_results_are_a_multiset():
    assert run([REFERENCE[1], REFERENCE[0], step("book", id=ref("/1/id"))]) == (True, True)
    asked_twice = [step("find", name="A"), step("find", name="B")]
    assert run(asked_twice[::-1], asked_twice, [1, 2]) == (True, True)
    assert run([asked_twice[0]] * 2, asked_twice, [1, 2]) == (True, False)
    assert run([asked_twice[0]], [asked_twice[0]] * 2, [1, 1]) == (True, False)


def test_a_literal_may_stand_in_place_of_a_reference_to_an_equal_result():
    for value in (7, 7.0, {"$literal": 7}, ref("/0/id")):
        assert run([*REFERENCE[:2], step("book", id=value)])[0] is True
    literal = [step("now"), step("book", id=7)]
    assert run([step("find", name="A"), *literal]) == (True, False)  # `find` is now a last step as well
    assert run(literal) == (True, True)


def test_a_missing_call_runs_and_does_not_answer():
    assert run(REFERENCE[:2]) == (True, False)
    assert run([REFERENCE[0], step("book", id=ref("/0/id"))]) == (True, False)


@pytest.mark.parametrize(
    "last", [step("book", id=8), step("book", id="7"), step("book"), step("book", id=7, extras=None), step("find")]
)
def test_a_call_that_is_not_in_the_record_ends_the_run(last: dict[str, Any]):
    assert run([*REFERENCE[:2], last]) == (False, False)


def test_a_reference_that_leads_nowhere_in_the_results_ends_the_run():
    assert run([*REFERENCE[:2], step("book", id=ref("/0/number"))]) == (False, False)
    assert run([*REFERENCE[:2], step("book", id=ref("/0/tags/1"))]) == (False, False)


def test_a_step_that_is_waited_for_is_not_last():
    waits = [step("now"), step("find", [0], name="A")]
    assert run([step("find", name="A")], waits, ["noon", 1]) == (True, True)
    assert run([step("now"), step("find", name="A")], waits, ["noon", 1]) == (True, False)


def test_the_empty_plan_comes_to_its_end_at_once_and_answers_only_an_empty_plan():
    assert run([]) == (True, False)
    assert run([], [], []) == (True, True)
    assert run(REFERENCE, [], []) == (False, False)


@pytest.mark.parametrize("garbage", [None, *GARBAGE])
def test_what_cannot_be_read_does_not_run(garbage: str | None):
    assert run(garbage) == (False, False)
    assert run(garbage, [], []) == (False, False)


def test_an_invalid_plan_does_not_run_even_where_all_its_calls_are_recorded():
    assert run([*REFERENCE, step("unheard_of")]) == (False, False)
    assert run([*REFERENCE, step("book", id=7) | {"after": [3]}]) == (False, False)


@pytest.mark.parametrize("results", [None, [], RESULTS[:2], [*RESULTS, 1], [{"ident": 7}, "noon", {"done": True}]])
def test_results_that_do_not_fit_the_reference_leave_the_item_unscored(results: list[Any] | None):
    assert run(REFERENCE, REFERENCE, results) == (None, None)
    assert run("garbage", REFERENCE, results) == (None, None)


def test_an_item_without_reference_is_not_scored():
    found = score("[]", results=RESULTS)
    assert (found.executed, found.answer_match) == (None, None)


def test_equal_calls_with_several_results_are_answered_in_the_recorded_order():
    clock = [step("now"), step("now")]
    assert run(clock, clock, ["noon", "one"]) == (True, True)
    later = [step("now"), step("now"), step("now", [0, 1])]
    assert run(later, clock, ["noon", "one"]) == (True, False)


def test_results_are_recorded_for_the_first_reference():
    other = [step("now")]
    found = score(other, REFERENCE, other, results=RESULTS)
    assert (found.equivalent, found.executed, found.answer_match) == (True, True, False)
