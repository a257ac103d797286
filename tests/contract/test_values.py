"""Equality of JSON values by what they mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from plansmith.contract.values import same_value, value_key
from tests.contract.strategies import json_values


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (1, 1.0, True),
        (0.0, -0.0, True),
        (2**53 + 1, float(2**53), False),
        (1, True, False),
        (0, False, False),
        (None, False, False),
        (None, 0, False),
        (1, "1", False),
        ("", None, False),
        ("a", "A", False),
        ("é", "e\u0301", False),
        ([], {}, False),
        ([], "", False),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        ([[1], 2], [[1.0], 2], True),
        ([1, [2]], [[1], 2], False),
        (["object"], {}, False),
        ({"a": 1, "b": [True]}, {"b": [True], "a": 1.0}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ({"a": 1}, {"b": 1}, False),
        ({"a": "b"}, [["a", "b"]], False),
        ({"$literal": 1}, 1, False),
        ({"$from": "/0"}, {"$from": "/0"}, True),
    ],
)
def test_values_are_compared_by_what_they_mean(left: Any, right: Any, same: bool):
    assert same_value(left, right) is same
    assert same_value(right, left) is same
    assert (hash(value_key(left)) == hash(value_key(right))) >= same


@settings(max_examples=100, deadline=None)
@given(json_values(), json_values())
def test_keys_agree_with_a_comparison_by_hand(left: Any, right: Any):
    assert same_value(left, left)
    assert same_value(left, right) is _equal(left, right)


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    return isinstance(left, bool) is isinstance(right, bool) and bool(left == right)
