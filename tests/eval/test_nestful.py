"""`nestful_*`: numbers worked out by hand from the definitions in the module's docstring."""

from __future__ import annotations

from typing import Any

import pytest

from plansmith.eval.metrics import Counts
from tests.eval.metric_cases import GARBAGE, Steps, ref, score, step

REFERENCE = [step("find", name="A", limit=1), step("now"), step("book", id=ref("/0/id"))]


def numbers(candidate: Any, *references: Steps) -> tuple[Any, ...]:
    found = score(candidate, *(references or (REFERENCE,)))
    partial = found.nestful_partial_match
    assert partial is not None
    functions, parameters = found.nestful_f1_functions, found.nestful_f1_parameters
    assert functions is not None
    assert parameters is not None
    return tuple(functions), tuple(parameters), round(partial, 6), found.nestful_full_match


def test_the_gold_sequence_itself_is_a_full_match():
    assert numbers(REFERENCE) == ((3, 0, 0), (3, 0, 0), 1.0, True)
    assert numbers([], []) == ((0, 0, 0), (0, 0, 0), 1.0, True)


def test_a_wrong_value_costs_the_call_and_neither_f1():
    wrong = [step("find", name="B", limit=1), *REFERENCE[1:]]
    assert numbers(wrong) == ((3, 0, 0), (3, 0, 0), round(2 / 3, 6), False)


def test_a_missing_call_and_a_surplus_call_cost_alike():
    assert numbers(REFERENCE[:2]) == ((2, 0, 1), (2, 0, 1), round(2 / 3, 6), False)
    assert numbers([*REFERENCE, step("now")]) == ((3, 1, 0), (3, 0, 0), 0.75, False)
    assert numbers([step("mail", body="x")]) == ((0, 1, 3), (0, 1, 3), 0.0, False)


def test_a_parameter_counts_with_its_function():
    swapped = [step("book", name="A", limit=1), step("now"), step("find", id=ref("/0/id"))]
    assert numbers(swapped) == ((3, 0, 0), (0, 3, 3), round(1 / 3, 6), False)
    assert numbers([step("find", name="A"), *REFERENCE[1:]]) == ((3, 0, 0), (2, 0, 1), round(2 / 3, 6), False)


def test_repeated_names_are_a_multiset():
    assert numbers([step("now")] * 3, [step("now")] * 2)[0] == (2, 1, 0)
    assert numbers([step("now")], [step("now")] * 4)[2] == 0.25


def test_a_label_is_a_position_so_swapped_steps_break_the_calls_that_refer_to_them():
    """`$var1.id` is `id` of the first call's result; after the swap the same text would be `$var2.id`."""
    moved = [REFERENCE[1], REFERENCE[0], step("book", id=ref("/1/id"))]
    assert numbers(moved) == ((3, 0, 0), (3, 0, 0), round(2 / 3, 6), False)
    found = score(moved, REFERENCE)
    assert (found.equivalent, found.nestful_full_match) == (True, False)


def test_the_field_of_a_label_counts():
    assert numbers([*REFERENCE[:2], step("book", id=ref("/0/name"))])[2:] == (round(2 / 3, 6), False)
    assert numbers([*REFERENCE[:2], step("book", id=ref("/1/id"))])[2:] == (round(2 / 3, 6), False)


def test_order_matters_for_the_full_match_only_and_after_not_at_all():
    apart = [step("find", name="A"), step("now")]
    assert numbers(apart[::-1], apart) == ((2, 0, 0), (1, 0, 0), 1.0, False)
    assert numbers([step("find", name="A"), step("now", [0])], apart) == ((2, 0, 0), (1, 0, 0), 1.0, True)


def test_values_are_compared_by_what_they_mean():
    assert numbers([step("find", name="A", limit=1.0), *REFERENCE[1:]])[3] is True
    assert numbers([step("find", name="A", limit=True), *REFERENCE[1:]])[3] is False
    assert numbers([step("find", name="A", limit="1"), *REFERENCE[1:]])[3] is False


@pytest.mark.parametrize("garbage", [None, *GARBAGE])
def test_what_cannot_be_read_misses_everything_even_where_no_worker_fits(garbage: str | None):
    assert numbers(garbage) == ((0, 0, 3), (0, 0, 3), 0.0, False)
    assert numbers(garbage, []) == ((0, 0, 1), (0, 0, 1), 0.0, False)


def test_an_empty_plan_against_calls_and_calls_against_an_empty_plan():
    assert numbers([]) == ((0, 0, 3), (0, 0, 3), 0.0, False)
    assert numbers(REFERENCE, []) == ((0, 3, 0), (0, 3, 0), 0.0, False)


def test_the_best_of_several_references_counts_for_all_four_numbers():
    assert numbers(REFERENCE, [], [step("now")], REFERENCE) == ((3, 0, 0), (3, 0, 0), 1.0, True)
    assert numbers([step("now")], REFERENCE, [step("now"), step("now")])[2] == 0.5


def test_a_plan_of_wrong_shape_is_no_full_match():
    assert numbers([{"type": "now", "args": {}, "why": "x"}], [step("now")]) == ((1, 0, 0), (0, 0, 0), 1.0, False)


def test_the_f1_of_summed_counts():
    found = score(REFERENCE[:2], REFERENCE).nestful_f1_functions
    assert isinstance(found, Counts)
    assert found.f1 == pytest.approx(0.8)
