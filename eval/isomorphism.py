"""Finds a bijection between the steps of two plan graphs, or shows that there is none.

Reads graphs (`graph.py`), gives index mappings; pure. Both graphs are treated as one, so that colours mean the same on
both sides. Nodes are told apart by their labels, then by what they need and what needs them, again and again
(Weisfeiler-Leman colour refinement; after a split only the neighbours of the smaller parts are looked at again, as in
Hopcroft's algorithm). What stays alike falls into components that do not constrain each other; these are paired one by
one, which needs no backtracking because isomorphism is an equivalence. Within a component one node is told apart from
the others and refinement goes on (individualisation and refinement, as in nauty), with backtracking over its
counterparts; of nodes that can be swapped without changing anything one is tried.

Plans of more than `SEARCHED_STEPS` steps (no valid plan is that long) are refined but not searched: their nodes that
stay alike are paired in the order of the steps, and where that is no bijection the answer is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from plansmith.eval.graph import Graph

SEARCHED_STEPS = 16
"""Longest plans that are searched: the most steps of a valid plan. Some pairs of 50 steps would take seconds."""

Edges = tuple[tuple[int, int], ...]
"""For each edge from or to a node a number for its kind and end, far apart from the next, and the other node."""
Signature = tuple[int, ...]


@dataclass(slots=True)
class _Colouring:
    """A partition of the nodes into colours; nodes of one colour may correspond."""

    colours: list[int]
    members: dict[int, set[int]]
    signatures: dict[int, Signature]
    """What the neighbourhood of a colour's nodes looked like when it was last looked at."""
    fresh: int
    """No colour is as high."""

    @classmethod
    def of(cls, colours: list[int], fresh: int) -> _Colouring:
        members: dict[int, set[int]] = {}
        for node, colour in enumerate(colours):
            members.setdefault(colour, set()).add(node)
        return cls(colours, members, {}, fresh)

    def copy(self) -> _Colouring:
        members = {colour: set(nodes) for colour, nodes in self.members.items()}
        return _Colouring(list(self.colours), members, dict(self.signatures), self.fresh)

    def move(self, nodes: Sequence[int], signature: Signature) -> None:
        """Give nodes of one colour a new one."""
        self.members[self.colours[nodes[0]]].difference_update(nodes)
        for node in nodes:
            self.colours[node] = self.fresh
        self.members[self.fresh] = set(nodes)
        self.signatures[self.fresh] = signature
        self.fresh += 1


@dataclass(frozen=True, slots=True)
class _Part:
    """As many nodes of the left as of the right, in this order, with the edges among them."""

    edges: Sequence[Edges]
    origins: Sequence[int]
    """Index of each node in its own graph."""
    colouring: _Colouring

    @property
    def size(self) -> int:
        """Nodes of each side."""
        return len(self.edges) // 2


def isomorphism(left: Graph, right: Graph) -> list[int] | None:
    """For each node of `left` its counterpart in `right`: labels, reference targets and `after` are kept.

    None where there is no such bijection.
    """
    if len(left.nodes) != len(right.nodes):
        return None
    places: dict[Hashable, tuple[list[int], list[int]]] = {}
    for side, graph in enumerate((left, right)):
        for index, node in enumerate(graph.nodes):
            places.setdefault(node.label, ([], []))[side].append(index)
    if any(len(ours) != len(theirs) for ours, theirs in places.values()):
        return None
    if all(len(ours) == 1 for ours, _ in places.values()):
        return _paired(left, right, places.values())
    part = _whole(left, right, places.values())
    if not _refine(part, range(len(part.edges))):
        return None
    if part.size > SEARCHED_STEPS:
        return _paired(left, right, [_sides(group, part.size) for group in part.colouring.members.values()])
    found = _search(part)
    return [found[index] for index in range(part.size)] if found is not None else None


def _paired(left: Graph, right: Graph, groups: Iterable[tuple[Sequence[int], Sequence[int]]]) -> list[int] | None:
    """The mapping that pairs each group in order, if it keeps all edges."""
    mapping = [0] * len(left.nodes)
    for ours, theirs in groups:
        for index, other in zip(ours, theirs, strict=True):
            mapping[index] = other
    for node, other in zip(left.nodes, mapping, strict=True):
        twin = right.nodes[other]
        if any(mapping[a] != b for a, b in zip(node.targets, twin.targets, strict=True)):
            return None
        if len(node.after) != len(twin.after) or any(mapping[index] not in twin.after for index in node.after):
            return None
    return mapping


def _sides(group: Iterable[int], size: int) -> tuple[list[int], list[int]]:
    members = sorted(group)
    return [node for node in members if node < size], [node - size for node in members if node >= size]


def _whole(left: Graph, right: Graph, groups: Iterable[tuple[Sequence[int], Sequence[int]]]) -> _Part:
    """Both graphs, coloured by label."""
    size = len(left.nodes)
    colours = [0] * (2 * size)
    fresh = 0
    for fresh, (ours, theirs) in enumerate(groups, 1):
        for node in (*ours, *(index + size for index in theirs)):
            colours[node] = fresh - 1
    edges = [*_edges(left, 0), *_edges(right, size)]
    return _Part(edges, [*range(size), *range(size)], _Colouring.of(colours, fresh))


def _edges(graph: Graph, shift: int) -> Iterator[Edges]:
    """The edges of each node, all indices raised by `shift`."""
    apart = 4 * len(graph.nodes)  # more than there can be colours
    for node, incoming in zip(graph.nodes, graph.incoming, strict=True):
        found = [(2 * place * apart, target + shift) for place, target in enumerate(node.targets)]
        found += [(-2 * apart, target + shift) for target in node.after]
        found += [((2 * place + 1) * apart, source + shift) for place, source in incoming]
        yield tuple(found)


def _refine(part: _Part, changed: Iterable[int]) -> bool:
    """Split colours until nodes of one colour have neighbourhoods of the same colours; False where sides come apart.

    Args:
        part: its colouring is refined in place.
        changed: nodes whose neighbourhood may have changed since it was last refined; at first all.

    """
    looked_at = set(changed)
    while looked_at:
        recoloured: set[int] = set()
        for colour, groups in _by_signature(part, looked_at).items():
            moved = _split(part, colour, groups)
            if moved is None:
                return False
            recoloured.update(*moved)
        looked_at = {neighbour for node in recoloured for _, neighbour in part.edges[node]}
    return True


def _by_signature(part: _Part, looked_at: Iterable[int]) -> dict[int, dict[Signature, list[int]]]:
    """The nodes by colour, then by what their neighbourhood looks like now."""
    colours = part.colouring.colours
    found: dict[int, dict[Signature, list[int]]] = {}
    for node in looked_at:
        signature = tuple(sorted([kind + colours[neighbour] for kind, neighbour in part.edges[node]]))
        found.setdefault(colours[node], {}).setdefault(signature, []).append(node)
    return found


def _split(part: _Part, colour: int, groups: dict[Signature, list[int]]) -> list[list[int]] | None:
    """Split one colour by signature, the largest group keeping it; the other groups, or None where sides come apart."""
    colouring = part.colouring
    members = colouring.members[colour]
    if sum(map(len, groups.values())) < len(members):  # the rest looks as the colour did before
        groups.setdefault(colouring.signatures[colour], []).extend(members.difference(*groups.values()))
    if len(groups) == 1:
        colouring.signatures[colour] = next(iter(groups))
        return []
    if any(2 * sum(node < part.size for node in group) != len(group) for group in groups.values()):
        return None
    *smaller, (signature, _) = sorted(groups.items(), key=lambda item: len(item[1]))
    colouring.signatures[colour] = signature
    for own, group in smaller:
        colouring.move(group, own)
    return [group for _, group in smaller]


def _search(part: _Part) -> dict[int, int] | None:
    """A bijection that agrees with a refined colouring: origins of the left to origins of the right."""
    found: dict[int, int] = {}
    for group in part.colouring.members.values():
        if len(group) == 2:
            ours, theirs = sorted(group)
            found[part.origins[ours]] = part.origins[theirs]
    components = _components(part)
    waiting = [component for component in components if component[0] >= part.size]
    mine = [component for component in components if component[0] < part.size]
    if len(waiting) != len(mine):
        return None
    if len(mine) == 1:
        deeper = _branch(part, mine[0])
        return None if deeper is None else found | deeper
    for component in mine:
        for place, other in enumerate(waiting):
            paired = _pair(part, component, other)
            if paired is not None:
                found |= paired
                del waiting[place]
                break
        else:
            return None
    return found


def _components(part: _Part) -> list[list[int]]:
    """The nodes that are not told apart yet, in sets that do not constrain each other, each sorted.

    Edges to a node that is told apart, and edges to all nodes of a colour, hold whatever the counterpart is.
    """
    colours, members = part.colouring.colours, part.colouring.members
    binding: dict[int, frozenset[tuple[int, int]]] = {}
    seen: set[int] = set()
    for colour, group in members.items():
        if len(group) == 2:
            seen |= group
            binding[colour] = frozenset()
        else:  # all nodes of a colour have the same kinds of edges to the same colours
            counts = Counter((kind, colours[other]) for kind, other in part.edges[min(group)])
            binding[colour] = frozenset(k for k, count in counts.items() if 2 * count != len(members[k[1]]))
    found: list[list[int]] = []
    for start in range(len(part.edges)):
        if start in seen:
            continue
        seen.add(start)
        component = [start]
        for node in component:  # grows on the way
            binds = binding[colours[node]]
            for kind, other in part.edges[node]:
                if other not in seen and (kind, colours[other]) in binds:
                    seen.add(other)
                    component.append(other)
        found.append(sorted(component))
    return found


def _pair(part: _Part, ours: Sequence[int], theirs: Sequence[int]) -> dict[int, int] | None:
    """A bijection between two components."""
    colours = part.colouring.colours
    if Counter(colours[node] for node in ours) != Counter(colours[node] for node in theirs):
        return None
    if len(ours) == 1:
        return {part.origins[ours[0]]: part.origins[theirs[0]]}
    nodes = [*ours, *theirs]
    places = {node: place for place, node in enumerate(nodes)}
    edges = [
        tuple([(kind, places[neighbour]) for kind, neighbour in part.edges[node] if neighbour in places])
        for node in nodes
    ]
    colouring = _Colouring.of([colours[node] for node in nodes], part.colouring.fresh)
    inner = _Part(edges, [part.origins[node] for node in nodes], colouring)
    return _search(inner) if _refine(inner, range(len(nodes))) else None


def _branch(part: _Part, component: Sequence[int]) -> dict[int, int] | None:
    """Tell one node of the only component apart, with each counterpart that it may have."""
    members = part.colouring.members
    colour = min({part.colouring.colours[node] for node in component}, key=lambda c: (len(members[c]), c))
    group = sorted(members[colour])
    first, counterparts = group[0], group[len(group) // 2 :]
    for other in {frozenset(part.edges[node]): node for node in reversed(counterparts)}.values():
        attempt = _Part(part.edges, part.origins, part.colouring.copy())
        attempt.colouring.move((first, other), attempt.colouring.signatures[colour])
        changed = {neighbour for node in (first, other) for _, neighbour in part.edges[node]}
        if _refine(attempt, changed) and (found := _search(attempt)) is not None:
            return found
    return None
