"""Whether an agent goes round in circles. Pure.

Looks at the calls of the last turns, each as a set of keys (worker and arguments, `call_key`). Longer circles than two
turns are left to the limit of steps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from plansmith.contract.plan import Json


def call_key(worker: str, args: dict[str, Json]) -> str:
    """The same for equal calls, whatever the order of their arguments; holds none of their values."""
    return hashlib.sha256(json.dumps([worker, args], sort_keys=True).encode()).hexdigest()[:16]


def circling(turns: Sequence[Sequence[str]], *, repeat_limit: int) -> bool:
    """Whether the last turn repeats a call for the `repeat_limit`-th time running, or completes A-B-A-B.

    Args:
        turns: keys of the calls of each turn, the last turn included.
        repeat_limit: turns running, at least 2.

    """
    last = [set(turn) for turn in turns[-max(repeat_limit, 4) :]]
    if len(last) >= repeat_limit and any(all(key in turn for turn in last[-repeat_limit:]) for key in last[-1]):
        return True
    if len(last) < 4:
        return False
    first, second = last[-4] & last[-2], last[-3] & last[-1]
    return bool(first and second and first != second)
