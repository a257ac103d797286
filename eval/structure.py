"""`dag_isomorphic`: whether two plans call the same workers in the same dependency structure, arguments aside.

TinyAgent's rule (Erdogan et al., 2024) without its faults: theirs counts a dependency only where an argument as a whole
is a reference written in one form. Pure.
"""

from __future__ import annotations

from plansmith.eval.graph import Graph, Node
from plansmith.eval.isomorphism import isomorphism
from plansmith.eval.reading import COMPARED_STEPS, PlanView


def dag_isomorphic(candidate: PlanView, reference: PlanView) -> bool:
    """As `equivalent`, on worker names and dependency edges only.

    True where a bijection between the steps keeps the worker's name and the dependency edges. A step depends on another
    where its arguments hold a reference to it, at any depth (inside arrays, objects and the `with` of a `$format`, not
    inside `$literal`), or its `after` names it. However many references and `after` lead from one step to another,
    they are one edge; where in the arguments they stand, and to which place of the result they lead, does not matter.
    The shape must be a plan's; an answer that refers to a later step matches only a reference that does so too. A
    reference beyond the plan is no edge.
    """
    if not candidate.well_shaped or len(candidate.plan.steps) != len(reference.plan.steps):
        return False
    if candidate.same_text(reference):
        return True
    if len(reference.plan.steps) > COMPARED_STEPS:
        return False
    found = isomorphism(dependency_graph(candidate.graph), dependency_graph(reference.graph))
    return found is not None and (candidate.is_ordered or not reference.is_ordered)


def dependency_graph(graph: Graph) -> Graph:
    """The graph with arguments taken out: nodes are labelled by worker, and all dependencies are `after` edges."""
    incoming: list[list[tuple[int, int]]] = [[] for _ in graph.nodes]
    nodes: list[Node] = []
    for source, node in enumerate(graph.nodes):
        needs = node.after.union(node.targets)
        nodes.append(Node(node.worker, {}, node.worker, (), needs))
        for target in needs:
            incoming[target].append((-1, source))
    return Graph(tuple(nodes), tuple(map(tuple, incoming)))
