"""When two plans are the same but for the order of their steps, and which steps of two plans correspond.

Reads typed plans, writes index mappings; pure. A plan becomes a labelled graph: a node's label is its worker and its
arguments with the target of every reference taken out, the targets and `after` are its edges. Plans are equivalent
when the graphs are isomorphic: colours are refined by dependency structure (Weisfeiler-Leman), and what stays alike
is told apart one node at a time, with backtracking (individualisation-refinement, as in nauty). Steps of plans that
differ are aligned by `scipy.optimize.linear_sum_assignment`.

Values are compared by what they mean: object keys in any order, 1 and 1.0 are equal, `{"$literal": X}` is X as data.
In the `with` list of a `$format` numbers keep their kind, because `1` and `1.0` give different text. Not covered:
defaults (an argument left out differs from one that gives the default) and templates of the same meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from plansmith.contract.plan import FORMAT, FROM, LITERAL, WITH, Json, Plan, Step, dumps, parse_pointer

_ALIGN_ROUNDS = 16
"""Rounds of refinement before steps are aligned; bounds the work on a runaway plan of thousands of steps."""


@dataclass(frozen=True, slots=True)
class ValueForm:
    """A value in normal form: equal forms and corresponding targets mean equal values."""

    form: Hashable
    """The value without the step indices of its references."""
    targets: tuple[int, ...]
    """Step indices of its references, in the order of their places in the form."""


@dataclass(frozen=True, slots=True)
class Node:
    """A step as a node of the plan's graph."""

    worker: str
    params: Mapping[str, ValueForm]
    label: Hashable
    """Worker and arguments without reference targets."""
    targets: tuple[int, ...]
    """Reference targets of all arguments, by parameter name."""
    after: frozenset[int]


@dataclass(frozen=True, slots=True)
class Graph:
    """A plan's nodes, and for each node the labelled edges that lead to it."""

    nodes: tuple[Node, ...]
    incoming: tuple[tuple[tuple[int, int], ...], ...]
    """For each node: (place of the edge among the source's references, or -1 for `after`; source)."""


def value_form(value: Json, size: int) -> ValueForm:
    """Normal form of an argument value of a plan of `size` steps; a reference beyond the plan is a constant."""
    targets: list[int] = []
    form = _form(value, size, targets)
    return ValueForm(form, tuple(targets))


def _form(value: Json, size: int, targets: list[int]) -> Hashable:
    if isinstance(value, list):
        return ("array", tuple(_form(item, size, targets) for item in cast("list[Json]", value)))
    if not isinstance(value, dict):
        return _scalar(value)
    node = cast("dict[str, Json]", value)
    if node.keys() == {FROM} and (pointer := parse_pointer(node[FROM])) is not None and pointer.step < size:
        targets.append(pointer.step)
        return ("from", pointer.tokens)
    if node.keys() == {LITERAL}:
        return _data(node[LITERAL])
    if node.keys() == {FORMAT, WITH} and isinstance(node[WITH], list):
        fields = cast("list[Json]", node[WITH])
        return ("format", _data(node[FORMAT]), tuple(_field_form(item, size, targets) for item in fields))
    if any(key.startswith("$") for key in node):
        return ("unknown operator", _data(node))
    return ("object", tuple((key, _form(node[key], size, targets)) for key in sorted(node)))


def _field_form(value: Json, size: int, targets: list[int]) -> Hashable:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return ("number as text", dumps(value))
    return _form(value, size, targets)


def _data(value: Json) -> Hashable:
    """Normal form of JSON that is not scanned for operators."""
    if isinstance(value, list):
        return ("array", tuple(_data(item) for item in cast("list[Json]", value)))
    if isinstance(value, dict):
        node = cast("dict[str, Json]", value)
        return ("object", tuple((key, _data(node[key])) for key in sorted(node)))
    return _scalar(value)


def _scalar(value: Json) -> Hashable:
    """Booleans apart from numbers; Python compares 1 and 1.0 exactly, and equal numbers have equal hashes."""
    if value is None or isinstance(value, bool):
        return ("constant", value)
    return ("number", value) if isinstance(value, int | float) else ("string", value)


def graph_of(plan: Plan) -> Graph:
    """The labelled graph of a plan, cycles and references beyond the plan included."""
    size = len(plan.steps)
    nodes = tuple(_node(step, size) for step in plan.steps)
    incoming: list[list[tuple[int, int]]] = [[] for _ in nodes]
    for source, node in enumerate(nodes):
        for place, target in enumerate(node.targets):
            incoming[target].append((place, source))
        for target in node.after:
            if 0 <= target < size:
                incoming[target].append((-1, source))
    return Graph(nodes, tuple(map(tuple, incoming)))


def _node(step: Step, size: int) -> Node:
    params = {name: value_form(step.args[name], size) for name in sorted(step.args)}
    after = frozenset(index for index in step.after if 0 <= index < size)
    beyond = tuple(sorted({index for index in step.after if not 0 <= index < size}))
    label = (step.type, tuple((name, param.form) for name, param in params.items()), beyond)
    targets = tuple(target for param in params.values() for target in param.targets)
    return Node(step.type, params, label, targets, after)


def bijection(left: Plan, right: Plan) -> list[int] | None:
    """For each step of `left` its counterpart in `right`, or None where the plans are not equivalent."""
    if len(left.steps) != len(right.steps):
        return None
    return isomorphism(graph_of(left), graph_of(right))


def isomorphism(left: Graph, right: Graph) -> list[int] | None:
    """A bijection that keeps labels, reference targets and `after`, or None where there is none."""
    if len(left.nodes) != len(right.nodes):
        return None
    return _search(left, right, *_first_colours(left, right))


Colours = tuple[int, ...]


def _first_colours(left: Graph, right: Graph) -> tuple[Colours, Colours]:
    return _intern([node.label for node in left.nodes], [node.label for node in right.nodes])


def _intern(left: Iterable[Hashable], right: Iterable[Hashable]) -> tuple[Colours, Colours]:
    """Small integers for the keys, the same integer for equal keys on both sides."""
    numbers: dict[Hashable, int] = {}
    return (
        tuple(numbers.setdefault(key, len(numbers)) for key in left),
        tuple(numbers.setdefault(key, len(numbers)) for key in right),
    )


def _search(left: Graph, right: Graph, left_colours: Colours, right_colours: Colours) -> list[int] | None:
    left_colours, right_colours = _refine(left, right, left_colours, right_colours, len(left.nodes))
    if Counter(left_colours) != Counter(right_colours):
        return None
    sizes = Counter(left_colours)
    alike = [colour for colour, size in sizes.items() if size > 1]
    if not alike:
        place = {colour: index for index, colour in enumerate(right_colours)}
        return [place[colour] for colour in left_colours]
    colour = min(alike, key=lambda c: sizes[c])
    ours = [index for index, c in enumerate(left_colours) if c == colour]
    theirs = [index for index, c in enumerate(right_colours) if c == colour]
    fresh = max(left_colours) + 1
    apart = _unlike_nodes(right, theirs)
    if len(apart) == 1 == len(_unlike_nodes(left, ours)):
        return _search(left, right, _renumber(left_colours, ours, fresh), _renumber(right_colours, theirs, fresh))
    for twin in apart:
        found = _search(left, right, _renumber(left_colours, ours[:1], fresh), _renumber(right_colours, [twin], fresh))
        if found is not None:
            return found
    return None


def _unlike_nodes(graph: Graph, candidates: Sequence[int]) -> list[int]:
    """One of each set of twins: where one of a set fails, all do, because swapping twins changes nothing."""
    first: dict[Hashable, int] = {}
    for index in candidates:
        node = graph.nodes[index]
        first.setdefault((node.targets, node.after, graph.incoming[index]), index)
    return list(first.values())


def _renumber(colours: Colours, indices: Sequence[int], fresh: int) -> Colours:
    """The colours with a colour of its own, from `fresh` upwards, for each of the indices."""
    changed = list(colours)
    for offset, index in enumerate(indices):
        changed[index] = fresh + offset
    return tuple(changed)


def _refine(
    left: Graph, right: Graph, left_colours: Colours, right_colours: Colours, rounds: int
) -> tuple[Colours, Colours]:
    """Split colours by the colours of what a step needs and of what needs it, until nothing changes."""
    count = len({*left_colours, *right_colours})
    for _ in range(rounds):
        left_colours, right_colours = _intern(_signatures(left, left_colours), _signatures(right, right_colours))
        before, count = count, len({*left_colours, *right_colours})
        if count == before or Counter(left_colours) != Counter(right_colours):
            break
    return left_colours, right_colours


def _signatures(graph: Graph, colours: Colours) -> list[Hashable]:
    return [
        (
            colours[index],
            tuple(colours[target] for target in node.targets),
            tuple(sorted(colours[target] for target in node.after)),
            tuple(sorted((place, colours[source]) for place, source in incoming)),
        )
        for index, (node, incoming) in enumerate(zip(graph.nodes, graph.incoming, strict=True))
    ]


def align(left: Graph, right: Graph) -> dict[int, int]:
    """Which step of `right` each step of `left` is compared with, for plans that are not equivalent.

    Among the steps of each worker, the one-to-one assignment of as many steps as possible that has, in this order, the
    most arguments that are equal when the step indices of references are left aside, the most pairs that are alike by
    dependency structure, and the smallest sum of distances in position. Steps left over are not in the result.
    Equivalent plans are compared by their `isomorphism` instead.
    """
    left_colours, right_colours = _refine_all(left, right)
    mapping: dict[int, int] = {}
    for worker in dict.fromkeys(node.worker for node in left.nodes):
        rows = [i for i, node in enumerate(left.nodes) if node.worker == worker]
        columns = [j for j, node in enumerate(right.nodes) if node.worker == worker]
        if rows and columns:
            mapping |= _assign(left, right, rows, columns, left_colours, right_colours)
    return mapping


def _refine_all(left: Graph, right: Graph) -> tuple[Colours, Colours]:
    """Refinement that goes on where the two sides differ already."""
    colours = _first_colours(left, right)
    for _ in range(_ALIGN_ROUNDS):
        following = _intern(_signatures(left, colours[0]), _signatures(right, colours[1]))
        shared = set(following[0]) & set(following[1])
        if not shared:
            break
        colours = following
    return colours


def _assign(
    left: Graph, right: Graph, rows: list[int], columns: list[int], left_colours: Colours, right_colours: Colours
) -> dict[int, int]:
    import numpy as np

    unit = (max(len(left.nodes), len(right.nodes)) + 1) ** 2
    weights = np.zeros((len(rows), len(columns)))
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            equal = _equal_forms(left.nodes[row], right.nodes[column])
            alike = int(left_colours[row] == right_colours[column])
            weights[i, j] = (equal * unit + alike) * unit - abs(row - column)
    optimize: Any = import_module("scipy.optimize")  # comes without types
    picked = cast("tuple[Any, Any]", optimize.linear_sum_assignment(weights, maximize=True))
    return {rows[int(i)]: columns[int(j)] for i, j in zip(*picked, strict=True)}


def _equal_forms(left: Node, right: Node) -> int:
    return sum(name in right.params and right.params[name].form == param.form for name, param in left.params.items())


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
