"""Which steps of two plans correspond, and how many of their arguments are the same.

Reads typed plans or their graphs (`graph.py`), writes index mappings; pure. Plans are equivalent when the graphs are
isomorphic (`isomorphism.py`). Steps of plans that differ are aligned by `scipy.optimize.linear_sum_assignment`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from importlib import import_module
from itertools import chain
from typing import Any, cast

from plansmith.contract.plan import Plan
from plansmith.eval.graph import Graph, Node, ValueForm, graph_of, value_form
from plansmith.eval.isomorphism import isomorphism

__all__ = [
    "Graph",
    "Node",
    "ValueForm",
    "align",
    "bijection",
    "graph_of",
    "isomorphism",
    "matched_arguments",
    "value_form",
]

_SMALL = 128
"""Steps of both plans together up to which dependency structure is refined to the end before steps are aligned."""
_ROUNDS = 2
"""Rounds of refinement beyond that: bounds the work on runaway plans of thousands of steps."""
_CELLS = 250_000
"""Pairs of steps of one worker up to which the best assignment is looked for."""

Colours = tuple[int, ...]


def bijection(left: Plan, right: Plan) -> list[int] | None:
    """For each step of `left` its counterpart in `right`, or None where the plans are not equivalent."""
    if len(left.steps) != len(right.steps):
        return None
    return isomorphism(graph_of(left), graph_of(right))


def align(left: Graph, right: Graph) -> dict[int, int]:
    """Which step of `right` each step of `left` is compared with, for plans that are not equivalent.

    Among the steps of each worker, the one-to-one assignment of as many steps as possible that has, in this order, the
    most arguments that are equal when the step indices of references are left aside, the most pairs that are alike by
    dependency structure, and the smallest sum of distances in position. Steps left over are not in the result.
    Equivalent plans are compared by their `isomorphism` instead.

    Two plans so long that they have more than 250,000 pairs of steps of one worker between them (500 steps each) have
    these paired in order: first the steps with equal arguments, then the others.
    """
    ours, theirs = _by_worker(left), _by_worker(right)
    shared = [worker for worker in ours if worker in theirs]
    if all(len(ours[worker]) == 1 == len(theirs[worker]) for worker in shared):
        return {ours[worker][0]: theirs[worker][0] for worker in shared}
    colours = _structure(left, right)
    mapping: dict[int, int] = {}
    for worker in shared:
        rows, columns = ours[worker], theirs[worker]
        if len(rows) == 1 == len(columns):
            mapping[rows[0]] = columns[0]
        elif len(rows) * len(columns) > _CELLS:
            mapping |= _in_order(left, right, rows, columns)
        else:
            mapping |= _assign(left, right, rows, columns, colours)
    return mapping


def _by_worker(graph: Graph) -> dict[str, list[int]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for index, node in enumerate(graph.nodes):
        found[node.worker].append(index)
    return found


def _structure(left: Graph, right: Graph) -> tuple[Colours, Colours]:
    """Colours of the nodes by label and dependencies, refined as long as both sides still share one."""
    colours = _intern([node.label for node in left.nodes], [node.label for node in right.nodes])
    size = len(left.nodes) + len(right.nodes)
    for _ in range(size if size <= _SMALL else _ROUNDS):
        following = _intern(_signatures(left, colours[0]), _signatures(right, colours[1]))
        if not set(following[0]) & set(following[1]) or _count(following) == _count(colours):
            break
        colours = following
    return colours


def _count(colours: tuple[Colours, Colours]) -> int:
    return len({*colours[0], *colours[1]})


def _intern(left: Iterable[Hashable], right: Iterable[Hashable]) -> tuple[Colours, Colours]:
    """Small integers for the keys, the same integer for equal keys on both sides."""
    numbers: dict[Hashable, int] = {}
    return (
        tuple([numbers.setdefault(key, len(numbers)) for key in left]),
        tuple([numbers.setdefault(key, len(numbers)) for key in right]),
    )


def _signatures(graph: Graph, colours: Colours) -> list[Hashable]:
    return [
        (
            colours[index],
            tuple([colours[target] for target in node.targets]),
            tuple(sorted([colours[target] for target in node.after])),
            tuple(sorted([(place, colours[source]) for place, source in incoming])),
        )
        for index, (node, incoming) in enumerate(zip(graph.nodes, graph.incoming, strict=True))
    ]


def _in_order(left: Graph, right: Graph, rows: Sequence[int], columns: Sequence[int]) -> dict[int, int]:
    """Steps with equal labels paired in order, then what is left in order."""
    places: defaultdict[Hashable, list[int]] = defaultdict(list)
    for column in reversed(columns):
        places[right.nodes[column].label].append(column)
    mapping = {row: found.pop() for row in rows if (found := places.get(left.nodes[row].label))}
    rest = (sorted(chain.from_iterable(places.values())), [row for row in rows if row not in mapping])
    return mapping | {row: column for column, row in zip(*rest, strict=False)}


def _assign(
    left: Graph, right: Graph, rows: Sequence[int], columns: Sequence[int], colours: tuple[Colours, Colours]
) -> dict[int, int]:
    """The best assignment of the steps of one worker: weights rank equal arguments, structure, position."""
    import numpy as np

    equal = _equal_arguments(left, right, rows, columns)
    of_rows, of_columns = (np.array([colours[s][i] for i in side]) for s, side in enumerate((rows, columns)))
    distance = np.abs(np.array(rows)[:, None] - np.array(columns)[None, :])
    pairs = min(len(rows), len(columns))
    unit = pairs * (int(distance.max()) + 1) + 1
    weights = (equal * (pairs + 1) + (of_rows[:, None] == of_columns[None, :])) * float(unit) - distance
    optimize: Any = import_module("scipy.optimize")  # comes without types
    picked = cast("tuple[Any, Any]", optimize.linear_sum_assignment(weights, maximize=True))
    return {rows[int(i)]: columns[int(j)] for i, j in zip(*picked, strict=True)}


def _equal_arguments(left: Graph, right: Graph, rows: Sequence[int], columns: Sequence[int]) -> Any:
    """For each row and column, how many arguments are equal when the step indices of references are left aside."""
    import numpy as np

    having: dict[Hashable, Any] = {}
    for place, column in enumerate(columns):
        for name, param in right.nodes[column].params.items():
            having.setdefault((name, param.form), np.zeros(len(columns), dtype=np.int64))[place] = 1
    known: dict[Hashable, int] = {}
    distinct: list[Any] = []
    for row in rows:
        node = left.nodes[row]
        if node.label not in known:
            known[node.label] = len(distinct)
            items = [(name, param.form) for name, param in node.params.items()]
            distinct.append(sum((having[item] for item in items if item in having), np.zeros(len(columns), np.int64)))
    return np.array(distinct)[[known[left.nodes[row].label] for row in rows]]


def matched_arguments(left: Graph, right: Graph, mapping: Mapping[int, int]) -> int:
    """How many arguments of aligned steps have the same name and, with references mapped, the same value."""
    return sum(
        _same_value(param, right.nodes[other].params.get(name), mapping)
        for index, other in mapping.items()
        for name, param in left.nodes[index].params.items()
    )


def _same_value(left: ValueForm, right: ValueForm | None, mapping: Mapping[int, int]) -> bool:
    if right is None or left.form != right.form:
        return False
    return all(mapping.get(a) == b for a, b in zip(left.targets, right.targets, strict=True))
