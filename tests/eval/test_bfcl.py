"""BFCL's rule on hand-made calls, and beside BFCL's own checker on all of its rows."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plansmith.contract.catalog import Catalog
from plansmith.contract.importers.bfcl import from_bfcl
from plansmith.contract.plan import Plan
from plansmith.eval.bfcl import bfcl_ast, bfcl_ast_greedy, standardize

ROOT = Path(__file__).parent.parent.parent


def catalog_of(*, required: tuple[str, ...] = (), **properties: Any) -> Catalog:
    doc = {"name": "f", "parameters": {"type": "dict", "properties": properties, "required": list(required)}}
    return from_bfcl([doc], name="row").catalog


def plan_of(*calls: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "f", "args": args} for args in calls]


def is_right(value: Any, allowed: list[Any], **schema: Any) -> bool:
    """Whether a value is right for the one parameter of the one function."""
    return bfcl_ast(plan_of({"a": value}), [{"f": {"a": allowed}}], catalog_of(a=schema))


@pytest.mark.parametrize(
    ("value", "right"),
    [
        ("April 1, 2024", True),
        ("april 1 2024", True),
        ("April-1_2024.*^/", True),
        ("April 1; 2024", False),
        ("April 1\t2024", False),
        ("April 2, 2024", False),
    ],
)
def test_strings_are_compared_without_case_spaces_and_some_punctuation(value: str, right: bool):
    assert is_right(value, ["April 1,2024"], type="string") is right


def test_single_and_double_quotes_are_the_same():
    assert standardize('It\'s "So"') == 'it"s"so"'
    assert is_right('say "hi"', ["say 'hi'"], type="string")


def test_any_allowed_value_will_do():
    assert is_right("NYC", ["New York", "nyc"], type="string")
    assert not is_right("LA", ["New York", "nyc"], type="string")


@pytest.mark.parametrize(
    ("value", "kind", "right"),
    [
        (5, "integer", True),
        (5.0, "integer", False),
        ("5", "integer", False),
        (5, "float", True),
        (5.0, "float", True),
        ("5", "float", False),
        ([5], "integer", False),
        (None, "integer", False),
        (True, "integer", False),
        (10**400, "float", False),
    ],
)
def test_an_integer_is_a_float_and_nothing_else_is_converted(value: Any, kind: str, right: bool):
    assert is_right(value, [5.0 if kind == "float" else 5], type=kind) is right


def test_a_truth_value_is_neither_a_number_nor_a_text():
    assert is_right(True, [True], type="boolean")
    assert not any(is_right(value, [True], type="boolean") for value in (False, 1, 1.0, "true", "True", None))
    assert not is_right(True, [1], type="integer")
    assert not is_right(True, [1.0], type="float")


def test_values_of_another_type_than_declared_are_variables_and_compared_as_they_are():
    assert is_right("my_data", ["my_data"], type="array", items={"type": "float"})
    assert not is_right("My data", ["my_data"], type="array", items={"type": "float"})
    assert is_right(2, [2], type="string")
    assert is_right("2", [2, "2"], type="string")
    assert not is_right("b ", [2, "b"], type="string")
    assert is_right(5, ["", 5], type="float")
    assert is_right(True, [True], type="any")


def test_a_parameter_without_type_is_taken_for_a_string():
    assert is_right("My Data", ["my_data"], type="any")
    untyped = from_bfcl({"function": [{"name": "f", "parameters": {"properties": {"a": {}}}}]}, name="row").catalog
    assert bfcl_ast(plan_of({"a": "x Y"}), [{"f": {"a": ["xy"]}}], untyped)


def test_arrays_keep_their_order_and_their_strings_are_normalised():
    texts = {"type": "array", "items": {"type": "string"}}
    assert is_right(["new york", "L.A."], [["New York", "LA"]], **texts)
    assert not is_right(["LA", "New York"], [["New York", "LA"]], **texts)
    assert not is_right(["New York"], [["New York", "LA"]], **texts)
    assert is_right(["b"], [["a"], ["b"]], **texts)
    assert is_right([], ["", ["a"]], **texts), "'' stands for the empty array"
    assert not is_right("New York", [["New York"]], **texts)


def test_entries_of_an_array_have_the_declared_type_or_that_of_the_first_allowed_entry():
    numbers = {"type": "tuple", "items": {"type": "float"}}
    assert is_right([1.0, 2.0], [[1.0, 2.0]], **numbers)
    assert not is_right([1, 2.0], [[1.0, 2.0]], **numbers), "inside an array an integer is no float"
    assert is_right([1, 2], [[1, 2]], **numbers)
    assert is_right([1.0, 2.0], [[1, 2]], **numbers)
    assert not is_right(["1", "2"], [[1, 2]], **numbers)


def test_objects_inside_an_array_of_another_kind_are_compared_as_they_are():
    lists = {"type": "array", "items": {"type": "array", "items": {"type": "string"}}}
    assert is_right([["A b"]], [[["A b"]]], **lists)
    assert not is_right([["a B"]], [[["A b"]]], **lists)


def test_an_object_has_one_allowed_value_under_each_key():
    allowed = [{"size": ["large", "big"], "milk": ["", "soy"], "hot": [True]}]
    for right in ({"size": "Large", "hot": True}, {"hot": True, "milk": "soy", "size": "BIG"}):
        assert is_right(right, allowed, type="dict")
    wrong = ({"size": "small", "hot": True}, {"size": "large"}, {"size": "large", "hot": True, "x": 1}, {}, "large")
    assert not any(is_right(value, allowed, type="dict") for value in wrong)
    assert not is_right({"size": ["large"], "hot": [True]}, allowed, type="dict")


def test_keys_of_two_allowed_objects_are_not_mixed():
    allowed = ["", {"a": [1], "b": [1]}, {"a": [2], "b": [2]}]
    assert is_right({"a": 2, "b": 2}, allowed, type="dict")
    assert not is_right({"a": 1, "b": 2}, allowed, type="dict")


def test_an_object_inside_an_object_is_compared_as_it_is():
    allowed = [{"position": [{"x": "A b"}]}]
    assert is_right({"position": {"x": "A b"}}, allowed, type="dict")
    assert not is_right({"position": {"x": "a b"}}, allowed, type="dict")


def test_an_array_of_objects_is_compared_place_by_place():
    objects = {"type": "array", "items": {"type": "dict"}}
    allowed = [[{"name": ["Al", "A."], "age": ["", 3]}, {"name": ["Bo"]}]]
    assert is_right([{"name": "al"}, {"name": "bo"}], allowed, **objects)
    assert is_right([{"name": "a", "age": 3}, {"name": "bo"}], allowed, **objects)
    wrong = ([{"name": "bo"}, {"name": "al"}], [{"name": "al"}], [{"name": "al", "age": 4}, {"name": "bo"}])
    assert not any(is_right(value, allowed, **objects) for value in wrong)
    assert is_right([], ["", [{"name": ["Al"]}]], **objects)
    assert not is_right(["al"], ["", [{"name": ["Al"]}]], **objects)


def test_required_optional_and_unknown_parameters():
    catalog = catalog_of(required=("a",), a={"type": "integer"}, b={"type": "string"}, c={"type": "string"})
    allowed = [{"f": {"a": [1], "b": ["x", ""], "c": ["y"]}}]
    assert bfcl_ast(plan_of({"a": 1, "c": "y"}), allowed, catalog)
    assert bfcl_ast(plan_of({"c": "y", "b": "x", "a": 1}), allowed, catalog)
    for wrong in ({"c": "y"}, {"a": 1}, {"a": 1, "c": "y", "d": 1}, {"a": 1, "c": "y", "b": "z"}):
        assert not bfcl_ast(plan_of(wrong), allowed, catalog)
    assert bfcl_ast(plan_of({"a": 1, "b": "", "c": "y"}), allowed, catalog), "the empty text itself is allowed too"
    assert not bfcl_ast(plan_of({"b": "x", "c": "y"}), [{"f": {"a": [1, ""], "b": ["x"], "c": ["y"]}}], catalog)


def test_a_parameter_that_only_the_answer_or_only_the_function_has_is_wrong():
    catalog = catalog_of(a={"type": "integer"}, b={"type": "integer"})
    assert not bfcl_ast(plan_of({"a": 1, "b": 2}), [{"f": {"a": [1]}}], catalog)
    for args in ({"a": 1}, {"a": 1, "z": 2}):
        assert not bfcl_ast(plan_of(args), [{"f": {"a": [1], "z": [2]}}], catalog), "nothing is right there"
    assert bfcl_ast(plan_of({"a": 1}), [{"f": {"a": [1], "z": [2, ""]}}], catalog)


def test_names_are_exact_and_dots_stay_dots():
    doc = {"name": "math.hypot", "parameters": {"type": "dict", "properties": {"x": {"type": "integer"}}}}
    catalog = from_bfcl([doc], name="row").catalog
    allowed = [{"math.hypot": {"x": [4]}}]
    assert bfcl_ast([{"type": "math.hypot", "args": {"x": 4}}], allowed, catalog)
    for name in ("math_hypot", "Math.hypot", "hypot", "f"):
        assert not bfcl_ast([{"type": name, "args": {"x": 4}}], allowed, catalog)
    assert not bfcl_ast([{"type": "g", "args": {}}], [{"g": {}}], catalog), "a function that the row does not have"


INTEGER = catalog_of(a={"type": "integer"})


def answers(*allowed: list[int]) -> list[dict[str, dict[str, list[Any]]]]:
    return [{"f": {"a": values}} for values in allowed]


def steps(*values: int) -> list[dict[str, Any]]:
    return plan_of(*({"a": value} for value in values))


def test_parallel_calls_come_in_any_order_and_each_counts_once():
    assert bfcl_ast(steps(3, 1, 2), answers([1], [2], [3]), INTEGER)
    assert not bfcl_ast(steps(1, 1, 2), answers([1], [2], [3]), INTEGER)
    assert not bfcl_ast(steps(1, 2), answers([1], [2], [3]), INTEGER)
    assert not bfcl_ast(steps(1, 2, 3, 3), answers([1], [2], [3]), INTEGER)


def test_the_best_pairing_is_found_where_the_first_one_fails():
    allowed = answers([1, 2], [1])
    assert bfcl_ast(steps(2, 1), allowed, INTEGER)
    assert bfcl_ast_greedy(steps(2, 1), allowed, INTEGER)
    assert bfcl_ast(steps(1, 2), allowed, INTEGER)
    assert not bfcl_ast_greedy(steps(1, 2), allowed, INTEGER), "the first call takes the step that the second needs"


@given(st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=3), st.integers(0, 3)), max_size=5))
def test_both_pairings_are_what_trying_every_order_gives(pairs: list[tuple[list[int], int]]):
    allowed, values = answers(*(values for values, _ in pairs)), [value for _, value in pairs]
    grid = [[bfcl_ast(steps(value), [answer], INTEGER) for value in values] for answer in allowed]
    orders = permutations(range(len(values)))
    best = any(all(grid[call][step] for call, step in enumerate(order)) for order in orders)
    assert bfcl_ast(steps(*values), allowed, INTEGER) is best
    left = list(range(len(values)))
    for row in grid:
        first = next((step for step in left if row[step]), None)
        if first is None:
            break
        left.remove(first)
    assert bfcl_ast_greedy(steps(*values), allowed, INTEGER) is (not left)


def test_many_calls_that_are_all_alike_are_paired_fast():
    values = list(range(16))
    allowed = answers(*(values[index:] for index in values))
    assert bfcl_ast(steps(*values), allowed, INTEGER)
    assert not bfcl_ast(steps(*[15] * 15, 14), answers(*([14] for _ in values)), INTEGER)


def test_no_call_is_right_exactly_where_none_is_allowed():
    assert bfcl_ast([], [], INTEGER)
    assert bfcl_ast(Plan(()), [], INTEGER)
    assert not bfcl_ast(steps(1), [], INTEGER)
    assert not bfcl_ast([], answers([1]), INTEGER)


@pytest.mark.parametrize(
    "wrong", [None, "", "[]", "no function fits", {}, {"type": "f", "args": {}}, 0, [None], [{}], [[]], [{"type": "f"}]]
)
def test_what_is_no_plan_is_wrong_and_never_an_abstention(wrong: Any):
    for allowed in ([], answers([1])):
        assert not bfcl_ast(wrong, allowed, INTEGER)
        assert not bfcl_ast_greedy(wrong, allowed, INTEGER)


def test_a_typed_plan_and_its_json_are_the_same():
    assert bfcl_ast(Plan.from_json(steps(2, 1)), answers([1], [2]), INTEGER)


def test_an_argument_that_refers_to_a_result_matches_nothing():
    anything = catalog_of(a={"type": "dict"})
    for operator in ({"$from": "/0"}, {"$format": "x", "with": []}, {"$other": 1}, {"$literal": 1, "x": 2}):
        assert not bfcl_ast(plan_of({"a": operator}), [{"f": {"a": [operator]}}], anything)
        assert not bfcl_ast(plan_of({"a": {"k": [operator]}}), [{"f": {"a": [{"k": [[operator]]}]}}], anything)
    assert bfcl_ast(plan_of({"a": {"$literal": {"$k": 1}}}), [{"f": {"a": [{"$k": [1]}]}}], anything)


def test_after_does_not_matter():
    ordered = [{"type": "f", "args": {"a": 1}}, {"type": "f", "args": {"a": 2}, "after": [0]}]
    assert bfcl_ast(ordered, answers([2], [1]), INTEGER)


def test_an_allowed_value_that_cannot_be_read_is_matched_by_nothing():
    objects = {"type": "array", "items": {"type": "dict"}}
    assert not is_right({"k": 1}, [{"k": 1}], type="dict"), "a list of values stands under each key"
    assert not is_right({"k": 1}, ["", "", None], type="dict")
    assert not is_right([{"k": 1}], [[], [None], "x", None], **objects)
    assert not is_right(["k"], [[], None, 1], type="array", items={"type": "string"})
    assert not any(is_right(value, [], type=kind) for kind, value in (("string", ""), ("dict", {}), ("integer", 0)))
    assert not bfcl_ast(steps(1), [{}], INTEGER)


def test_schemas_of_other_sources_have_a_type_as_far_as_they_say():
    from plansmith.contract.catalog import Worker

    integer, nothing = {"type": ["null", "integer"]}, {"type": "null"}
    properties = {"a": integer, "b": {"type": "array"}, "c": {"enum": ["X y"]}, "d": True, "e": nothing}
    catalog = Catalog("own", [Worker(name="f", args={"type": "object", "properties": properties})])
    allowed: list[Any] = [{"f": {"a": ["one", 1], "b": [["P q", 2]], "c": ["X y"], "d": ["z"], "e": ["X y"]}}]
    args = {"a": 1, "b": ["pq", 2], "c": "xy", "d": "Z", "e": "xy"}
    assert bfcl_ast(plan_of(args), allowed, catalog)
    assert not bfcl_ast(plan_of(args | {"a": 1.0}), allowed, catalog)


@pytest.mark.network
@pytest.mark.slow
def test_verdicts_are_those_of_bfcl_on_right_and_changed_plans_of_every_row():
    """The tables of the documentation, line by line; exit code 0 says that no difference is without a reason."""
    command = [sys.executable, str(ROOT / "scripts" / "bench" / "bfcl_verdicts")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    right = next(line for line in lines if line.startswith("| none: the right plan"))
    assert right == "| none: the right plan | 2347 | 2347 | 0 | 0 | 0 | 0 |"
    page = (ROOT / "docs" / "bfcl.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line and line not in page] == []
