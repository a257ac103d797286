"""The answers that the page shows: which of them are embedded, and each plan step by step beside its reference.

Reads scored items, gives small typed rows for the page's script; pure. Steps correspond as they do in the metrics
(`matching.py`): by the bijection of equivalent plans, else by `align`, so what the page marks is what was counted.
Everything has a limit, because text written by a model may be of any size; what is cut is counted. Not covered:
answers whose text is not of the shape of a plan (their text is shown as it is), and further samples of an item.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, cast

from pydantic import BaseModel, ConfigDict

from plansmith.contract.plan import FROM, LITERAL, Json, Plan, Step, dumps, parse_pointer, references
from plansmith.eval.items import ScoredItem
from plansmith.eval.matching import Graph, align, graph_of, isomorphism, matched_arguments
from plansmith.eval.metrics import FirstFault

MAX_TEXT = 4000
"""Characters of a query and of a candidate that are embedded."""
MAX_VALUE = 400
"""Characters of one argument value."""
MAX_PLAN = 8000
"""Characters of one plan, over all its steps."""
MAX_STEPS = 48
"""Steps of one plan."""
MAX_NOTE = 1000
"""Characters of a finding."""
MAX_INVENTED = 12

Value = tuple[str | tuple[str], ...]
"""An argument as canonical text; a reference stands apart as its pointer in a tuple of one."""


class Row(BaseModel):
    """Base of what is embedded."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class EdgeKind(StrEnum):
    """Why a step comes after another."""

    REFERENCE = "reference"
    """an argument takes a value from its result"""
    AFTER = "after"
    """order without data"""


class Edge(Row):
    """A dependency of a step."""

    source: int
    """Step that is needed; may be beyond the plan where the plan is wrong."""
    target: int
    """Step that needs it."""
    kind: EdgeKind
    label: str = ""
    """The parameter that takes the value."""


class PageStep(Row):
    """One call."""

    worker: str
    args: tuple[tuple[str, Value], ...]
    after: tuple[int, ...] = ()


class PagePlan(Row):
    """A plan as far as it is shown."""

    steps: tuple[PageStep, ...]
    edges: tuple[Edge, ...]
    cut: int = 0
    """Steps that are left out."""


class Pair(Row):
    """A line of the side-by-side view: two steps that correspond, two of different workers, or one alone."""

    reference: int | None
    candidate: int | None
    changed: tuple[str, ...] = ()
    """Parameters of both steps whose values differ."""
    after_differs: bool = False


class PageAnswer(Row):
    """One answer of one system."""

    system: str
    fault: FirstFault | None
    finding: str | None
    finish: str | None
    text: str | None
    """The start of the candidate as generated."""
    length: int
    """Characters of the whole candidate."""
    plan: PagePlan | None
    against: int | None
    """The reference that the pairs are taken against: the nearest one."""
    pairs: tuple[Pair, ...]
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    outcomes: dict[str, bool | float]
    """Rates and means that could be scored."""
    invented: tuple[str, ...]


class PageItem(Row):
    """One item with the answers of all systems."""

    id: str
    part: str
    query: str
    query_length: int
    references: tuple[PagePlan, ...]
    reference_text: tuple[str, ...]
    answers: tuple[PageAnswer, ...]


class Embedded(NamedTuple):
    """The items of the page, and what is not among them."""

    items: list[PageItem]
    answers: int
    """Answers embedded."""
    total: int
    """Answers in all."""
    left_out: dict[str, int]
    """Answers left out, by first fault in words."""


def embed(items: Sequence[ScoredItem], *, max_items: int) -> Embedded:
    """Choose at most `max_items` answers, all systems' answers to an item together, wrong ones first.

    Each kind of fault of each system has its turn, so that no system and no fault crowds out the others.
    """
    faults: dict[str, dict[str, FirstFault | None]] = {}
    for item in items:
        if item.sample == 0:
            faults.setdefault(item.id, {})[item.system] = item.fault
    chosen = _choose(faults, max_items)
    rows: dict[str, dict[str, ScoredItem]] = {name: {} for name in chosen}
    for item in items:
        if item.sample == 0 and item.id in rows:
            rows[item.id][item.system] = item
    left = Counter(
        "not scored" if fault is None else fault.value
        for name, answers in faults.items()
        if name not in rows
        for fault in answers.values()
    )
    page = [_page_item(list(answers.values())) for answers in rows.values()]
    return Embedded(page, sum(map(len, rows.values())), sum(map(len, faults.values())), dict(left))


def _choose(faults: Mapping[str, Mapping[str, FirstFault | None]], limit: int) -> list[str]:
    """Ids from queues by fault and system in turn, then of items without a fault; in their order, wrong ones first."""
    queues: dict[tuple[int, str], deque[str]] = {}
    right: list[str] = []
    order = {fault: place for place, fault in enumerate(FirstFault)}
    for name, answers in faults.items():
        wrong = [(s, f) for s, f in answers.items() if f is not None and f is not FirstFault.RIGHT]
        for system, fault in wrong:
            queues.setdefault((order[fault], system), deque()).append(name)
        if not wrong:
            right.append(name)
    unfaulted = set(right)
    chosen: set[str] = set()
    used = 0
    for name in (*_in_turn([queues[key] for key in sorted(queues)]), *right):
        if name not in chosen and used + len(faults[name]) <= limit:
            chosen.add(name)
            used += len(faults[name])
        if used >= limit:
            break
    return [name for name in faults if name in chosen and name not in unfaulted] + [n for n in right if n in chosen]


def _in_turn(queues: Sequence[deque[str]]) -> Iterable[str]:
    seen: set[str] = set()
    waiting = list(queues)
    while waiting:
        for queue in waiting:
            while queue and queue[0] in seen:
                queue.popleft()
            if queue:
                seen.add(queue[0])
                yield queue.popleft()
        waiting = [queue for queue in waiting if queue]


def _page_item(answers: Sequence[ScoredItem]) -> PageItem:
    first = answers[0]
    texts = first.references
    plans = [_read(text) for text in texts]
    return PageItem(
        id=first.id,
        part=first.part,
        query=first.query[:MAX_TEXT],
        query_length=len(first.query),
        references=tuple(page_plan(plan) for plan in plans),
        reference_text=tuple(text[:MAX_TEXT] for text in texts),
        answers=tuple(_page_answer(item, plans) for item in answers),
    )


def _read(text: str) -> Plan:
    return Plan.from_json(cast("list[Json]", json.loads(text)))


def _page_answer(item: ScoredItem, plans: Sequence[Plan]) -> PageAnswer:
    plan = _read(item.plan) if item.plan is not None else None
    nearest = _nearest(plan, plans) if plan is not None and plans else None
    return PageAnswer(
        system=item.system,
        fault=item.fault,
        finding=item.finding[:MAX_NOTE] if item.finding else None,
        finish=item.finish_reason.value if item.finish_reason is not None else None,
        text=item.candidate[:MAX_TEXT] if item.candidate is not None else None,
        length=len(item.candidate or ""),
        plan=page_plan(plan) if plan is not None else None,
        against=nearest[0] if nearest is not None else (0 if plans else None),
        pairs=nearest[1] if nearest is not None else (),
        prompt_tokens=item.prompt_tokens,
        completion_tokens=item.completion_tokens,
        seconds=round(item.seconds, 4),
        outcomes={name: value for name, value in item.outcomes.items() if value is not None},
        invented=tuple(text[:MAX_VALUE] for text in item.invented[:MAX_INVENTED]),
    )


def page_plan(plan: Plan) -> PagePlan:
    """The first steps of a plan, within the limits, with their dependencies."""
    steps: list[PageStep] = []
    room = MAX_PLAN
    for step in plan.steps[:MAX_STEPS]:
        args = tuple((name, value_parts(value)) for name, value in step.args.items())
        room -= len(step.type) + sum(len(name) + sum(map(_length, parts)) for name, parts in args)
        if room < 0:
            break
        steps.append(PageStep(worker=step.type, args=args, after=step.after[:MAX_STEPS]))
    edges = (edge for index, step in enumerate(plan.steps[: len(steps)]) for edge in _edges(step, index))
    shown = tuple(dict.fromkeys(edges))[: 4 * MAX_STEPS]
    return PagePlan(steps=tuple(steps), edges=shown, cut=len(plan.steps) - len(steps))


def _length(part: str | tuple[str]) -> int:
    return len(part if isinstance(part, str) else part[0])


def _edges(step: Step, index: int) -> Iterable[Edge]:
    for reference in references(step.args):
        label = str(reference.place[0] if reference.place else "args")[:MAX_VALUE]
        yield Edge(source=reference.step, target=index, kind=EdgeKind.REFERENCE, label=label)
    for source in step.after:
        yield Edge(source=source, target=index, kind=EdgeKind.AFTER)


def value_parts(value: Json) -> Value:
    """Canonical text of an argument in which each reference stands apart; cut at `MAX_VALUE` characters."""
    parts: list[str | tuple[str]] = []
    room = MAX_VALUE
    for part in _parts(value):
        cut: str | tuple[str] = part[:room] if isinstance(part, str) else (part[0][:room],)
        if isinstance(cut, str) and parts and isinstance(parts[-1], str):
            parts[-1] += cut
        else:
            parts.append(cut)
        room -= _length(part)
        if room < 0:
            return (*parts, "…")
    return tuple(parts)


def _parts(value: Json) -> Iterable[str | tuple[str]]:
    if isinstance(value, list):
        yield from _between("[", "]", [("", item) for item in cast("list[Json]", value)])
    elif isinstance(value, dict) and LITERAL not in value:
        node = cast("dict[str, Json]", value)
        if node.keys() == {FROM} and parse_pointer(node[FROM]) is not None:
            yield (cast("str", node[FROM]),)
        else:
            yield from _between("{", "}", [(dumps(key) + ": ", item) for key, item in node.items()])
    else:
        yield dumps(value)


def _between(opening: str, closing: str, items: Sequence[tuple[str, Json]]) -> Iterable[str | tuple[str]]:
    yield opening
    for place, (key, item) in enumerate(items):
        yield (", " if place else "") + key
        yield from _parts(item)
    yield closing


def _nearest(plan: Plan, plans: Sequence[Plan]) -> tuple[int, tuple[Pair, ...]]:
    """The reference with the most in common, and the steps side by side."""
    ours = graph_of(Plan(plan.steps[:MAX_STEPS]))
    best: tuple[tuple[bool, int, int], int, Graph, dict[int, int]] | None = None
    for index, reference in enumerate(plans):
        theirs = graph_of(Plan(reference.steps[:MAX_STEPS]))
        whole = isomorphism(ours, theirs)
        mapping = dict(enumerate(whole)) if whole is not None else align(ours, theirs)
        rank = (whole is not None, len(mapping), matched_arguments(ours, theirs, mapping))
        if best is None or rank > best[0]:
            best = rank, index, theirs, mapping
    assert best is not None, "an item without references has no nearest one"
    _, index, theirs, mapping = best
    return index, _pairs(ours, theirs, mapping)


def _pairs(ours: Graph, theirs: Graph, mapping: Mapping[int, int]) -> tuple[Pair, ...]:
    """Lines in the order of the reference. A step of the answer's own follows the answer's step before it: beside a
    step of the reference that lacks a counterpart, so that a wrong worker faces the right one, else on its own line.
    """
    back = {other: index for index, other in mapping.items()}
    lines = [_pair(ours, theirs, back.get(other), other, mapping) for other in range(len(theirs.nodes))]
    for index in range(len(ours.nodes)):
        if index in mapping:
            continue
        place = next((place + 1 for place, line in enumerate(lines) if line.candidate == index - 1), 0)
        if place < len(lines) and lines[place].candidate is None:
            lines[place] = Pair(reference=lines[place].reference, candidate=index)
        else:
            lines.insert(place, Pair(reference=None, candidate=index))
    return tuple(lines)


def _pair(ours: Graph, theirs: Graph, index: int | None, other: int, mapping: Mapping[int, int]) -> Pair:
    if index is None:
        return Pair(reference=other, candidate=None)
    left, right = ours.nodes[index], theirs.nodes[other]
    changed = tuple(
        name
        for name, value in left.params.items()
        if name in right.params
        and not (
            value.form == right.params[name].form
            and all(mapping.get(a) == b for a, b in zip(value.targets, right.params[name].targets, strict=True))
        )
    )
    same_order = {mapping.get(step) for step in left.after} == set(right.after)
    return Pair(reference=other, candidate=index, changed=changed, after_differs=not same_order)
