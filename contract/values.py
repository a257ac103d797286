"""When two JSON values are the same: by what they mean, not by how they are written.

1 and 1.0 are the same number, truth values are no numbers, keys of objects come in any order, entries of arrays in
theirs. Pure. Plain data only: what looks like a plan's operator is compared like any other object. Text is compared
character by character, without any Unicode normalisation.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

from plansmith.contract.plan import Json


def value_key(value: Json) -> Hashable:
    """A key that is equal for values that are the same, and only for these."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ("array", *[value_key(item) for item in cast("list[Json]", value)])
    if isinstance(value, dict):
        node = cast("dict[str, Json]", value)
        return ("object", *[(key, value_key(node[key])) for key in sorted(node)])
    if value is None or isinstance(value, bool):
        return ("constant", value)
    return ("number", value)  # Python compares 1 and 1.0 as equal, with equal hashes


def same_value(left: Json, right: Json) -> bool:
    """Whether two JSON values are the same."""
    return left is right or value_key(left) == value_key(right)
