"""The metrics of NESTFUL (Basu et al., arXiv 2409.03797), for comparison with published rows.

The paper names four numbers; its repository holds data but no scorer, so what the text leaves open is decided here:

| metric | the paper | decided here |
| --- | --- | --- |
| `nestful_f1_functions` | F1 of the function names | over the multiset of names, micro |
| `nestful_f1_parameters` | F1 of the parameter names | over the multiset of (function, parameter) pairs, micro |
| `nestful_partial_match` | share of predicted calls that are in the gold | common calls over those of the longer |
| `nestful_full_match` | the predicted sequence is the gold one | the same calls in the same order |

The partial match is taken over the longer of both sequences, so that missing and surplus calls cost alike. A call is
its function, its parameters and their values. NESTFUL writes references as labels by position (`$var1.field$` is
`field` of the first call's result); ours (`{"$from":"/0/field"}`) are compared in the same literal way, by the position
of the step that they lead to and the place in its result. So swapping two independent steps makes it no full match,
though it is `equivalent`. `after` does not exist there and is left aside. Values are compared by what they mean (1 is
1.0). Of several references the best counts. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from plansmith.eval.graph import Graph
from plansmith.eval.reading import PlanView


class NestfulScore(NamedTuple):
    """Elements found, superfluous and missed, as (tp, fp, fn), and how far the sequences are the same."""

    functions: tuple[int, int, int]
    parameters: tuple[int, int, int]
    partial: float
    full: bool


def nestful_score(candidate: PlanView | None, reference: PlanView) -> NestfulScore:
    """One answer against one reference; an answer that cannot be read misses everything, at least one element."""
    functions, parameters = _functions(reference.graph), _parameters(reference.graph)
    if candidate is None:
        return NestfulScore((0, 0, max(1, functions.total())), (0, 0, max(1, parameters.total())), 0.0, False)
    if candidate.same_text(reference):
        return NestfulScore((functions.total(), 0, 0), (parameters.total(), 0, 0), 1.0, True)
    theirs = _calls(reference.graph)
    ours = _calls(candidate.graph)
    longer = max(len(candidate.plan.steps), len(reference.plan.steps))
    shared = (Counter(ours) & Counter(theirs)).total()
    return NestfulScore(
        _overlap(_functions(candidate.graph), functions),
        _overlap(_parameters(candidate.graph), parameters),
        shared / longer if longer else 1.0,
        candidate.well_shaped and longer == len(ours) and ours == theirs,
    )


def _calls(graph: Graph) -> Sequence[Hashable]:
    return [
        (node.worker, tuple((name, param.form, param.targets) for name, param in sorted(node.params.items())))
        for node in graph.nodes
    ]


def _functions(graph: Graph) -> Counter[Hashable]:
    return Counter(node.worker for node in graph.nodes)


def _parameters(graph: Graph) -> Counter[Hashable]:
    return Counter((node.worker, name) for node in graph.nodes for name in node.params)


def _overlap(ours: Counter[Hashable], theirs: Counter[Hashable]) -> tuple[int, int, int]:
    common = (ours & theirs).total()
    return common, ours.total() - common, theirs.total() - common
