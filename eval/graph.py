"""A plan as a labelled graph: what two plans are compared as.

Reads typed plans; pure. A node's label is its worker and its arguments with the target of every reference taken out,
the targets and `after` are its edges. Values are compared by what they mean: object keys in any order, 1 and 1.0 are
equal, `{"$literal": X}` is X as data. In the `with` list of a `$format` numbers keep their kind, because `1` and `1.0`
give different text. Not covered: defaults (an argument left out differs from one that gives the default) and templates
of the same meaning.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple, cast

from plansmith.contract.plan import FORMAT, FROM, LITERAL, WITH, Json, Plan, Step, parse_pointer
from plansmith.contract.values import value_key

_NOTHING: frozenset[int] = frozenset()


class ValueForm(NamedTuple):
    """A value in normal form: equal forms and corresponding targets mean equal values."""

    form: Hashable
    """The value without the step indices of its references."""
    targets: tuple[int, ...]
    """Step indices of its references, in the order of their places in the form."""


class Node(NamedTuple):
    """A step as a node of the plan's graph."""

    worker: str
    params: Mapping[str, ValueForm]
    label: Hashable
    """Worker and arguments without reference targets."""
    targets: tuple[int, ...]
    """Reference targets of all arguments, by parameter name."""
    after: frozenset[int]


class Graph(NamedTuple):
    """A plan's nodes, and for each node the labelled edges that lead to it."""

    nodes: tuple[Node, ...]
    incoming: tuple[tuple[tuple[int, int], ...], ...]
    """For each node: (place of the edge among the source's references, or -1 for `after`; source)."""


def value_form(value: Json, size: int) -> ValueForm:
    """Normal form of an argument value of a plan of `size` steps; a reference beyond the plan is a constant."""
    if not isinstance(value, (dict, list)):
        return ValueForm(value_key(value), ())
    targets: list[int] = []
    form = _form(value, size, targets)
    return ValueForm(form, tuple(targets))


def _form(value: Json, size: int, targets: list[int]) -> Hashable:
    """As `value_key`, with operators taken for what they mean."""
    if isinstance(value, list):
        return ("array", *[_form(item, size, targets) for item in cast("list[Json]", value)])
    if not isinstance(value, dict):
        return value_key(value)
    node = cast("dict[str, Json]", value)
    if node.keys() == {FROM} and (pointer := parse_pointer(node[FROM])) is not None and pointer.step < size:
        targets.append(pointer.step)
        return ("from", pointer.tokens)
    if node.keys() == {LITERAL}:
        return value_key(node[LITERAL])
    if node.keys() == {FORMAT, WITH} and isinstance(node[WITH], list):
        fields = cast("list[Json]", node[WITH])
        return ("format", value_key(node[FORMAT]), tuple(_field_form(item, size, targets) for item in fields))
    if any(key.startswith("$") for key in node):
        return ("unknown operator", value_key(node))
    return ("object", *[(key, _form(node[key], size, targets)) for key in sorted(node)])


def _field_form(value: Json, size: int, targets: list[int]) -> Hashable:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return ("number as text", repr(value))
    return _form(value, size, targets)


def graph_of(plan: Plan) -> Graph:
    """The labelled graph of a plan, cycles and references beyond the plan included."""
    size = len(plan.steps)
    nodes = tuple(_node(step, size) for step in plan.steps)
    incoming: list[list[tuple[int, int]]] = [[] for _ in nodes]
    for source, node in enumerate(nodes):
        for place, target in enumerate(node.targets):
            incoming[target].append((place, source))
        for target in node.after:
            incoming[target].append((-1, source))
    return Graph(nodes, tuple(map(tuple, incoming)))


def _node(step: Step, size: int) -> Node:
    params = {name: value_form(step.args[name], size) for name in sorted(step.args)}
    after, beyond = _NOTHING, ()
    if step.after:
        after = frozenset([index for index in step.after if 0 <= index < size])
        beyond = tuple(sorted({index for index in step.after if not 0 <= index < size}))
    label = (step.type, tuple([(name, param.form) for name, param in params.items()]), beyond)
    return Node(step.type, params, label, tuple([t for param in params.values() for t in param.targets]), after)
