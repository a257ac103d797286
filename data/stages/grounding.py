"""Literal arguments that come from nowhere, and those of them that an earlier result holds.

Reads a valid plan, its query and the results of its steps as far as there are any. What comes from nowhere is said by
`plansmith.contract.grounding.invented`: neither in the query, nor given by the worker's schema, nor worked out from the
query's wording. So a value that also stands in the query stays a literal. A literal that is left and equals a value in
an earlier step's result is linked: it becomes a reference to the earliest step's result that holds it at one place
only. Of several places in one result the one counts whose key is the parameter's name. A link must leave the plan valid
(a worker's closed `returns` may not declare the place). Where that does not decide, the literal stays and says why:

- `ambiguous_literal`: results hold the value, but at several places, so which one was meant is a guess;
- `data_dependent_choice`: only later entries of lists hold it; which entry is right depends on what a result holds, and
  no planner can know that beforehand;
- `invented`: no earlier result holds it.

Values are compared by type and value (`"12"` is not 12). Pure. Not covered: parts of texts, and values worked out from
results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import check_plan
from plansmith.contract.grounding import Invented, Query, invented
from plansmith.contract.plan import FORMAT, FROM, LITERAL, Json, Plan, parse_pointer, pointer_text
from plansmith.contract.records import PlanJson
from plansmith.contract.values import same_value

INVENTED, AMBIGUOUS, CHOICE = "invented", "ambiguous_literal", "data_dependent_choice"
_MOST_PLACES = 64
"""Places of a value that are looked at in one result; one with more holds it at several places anyway."""

Tokens = tuple[str | int, ...]


class Unlinked(NamedTuple):
    """A literal that comes from nowhere and stays."""

    literal: Invented
    reason: str

    def sentence(self) -> str:
        """What was found, for a reject."""
        why = {
            INVENTED: "is neither in the query, nor given by the worker's schema, nor in an earlier result",
            AMBIGUOUS: "is not in the query, and earlier results hold it at several places",
            CHOICE: "is not in the query, and earlier results hold it in a later entry of a list only",
        }[self.reason]
        return f"the literal {self.literal!s:.200} {why}"


class Grounded(NamedTuple):
    """A plan after its literals were looked at."""

    plan: PlanJson
    """With references where literals were linked."""
    linked: int
    left: tuple[Unlinked, ...]


def ground(plan: PlanJson, query: str, catalog: Catalog, results: Mapping[int, Json], *, link: bool) -> Grounded:
    """Look at all literals of a valid plan.

    Args:
        plan: a valid plan.
        query: the user's words.
        catalog: the workers.
        results: results of the plan's steps by index, as far as they are known.
        link: whether literals that results hold become references.

    """
    linked = 0
    left: list[Unlinked] = []
    for literal in invented(Plan.from_json(plan), Query(query), catalog):
        changed, reason = _link(plan, literal, catalog, results) if link else (None, INVENTED)
        if changed is None:
            left.append(Unlinked(literal, reason))
        else:
            plan = changed
            linked += 1
    return Grounded(plan, linked, tuple(left))


def _link(
    plan: PlanJson, literal: Invented, catalog: Catalog, results: Mapping[int, Json]
) -> tuple[PlanJson | None, str]:
    """The plan with a reference in the literal's place, or None and why there is none."""
    step, inside = cast("int", literal.place[0]), literal.place[2:]
    if LITERAL in inside or inside[-1] == FORMAT:
        return None, INVENTED
    reason = INVENTED
    for earlier in sorted(index for index in results if index < step):
        places = [
            place
            for place in _places(results[earlier], literal.value)
            if parse_pointer(pointer_text(earlier, *place)) is not None
        ]
        first = [place for place in places if not any(isinstance(token, int) and token > 0 for token in place)]
        if len(first) > 1:
            named = [place for place in first if place[-1:] == (inside[0],)]
            first = named if len(named) == 1 else first
        if len(first) == 1:
            changed = _replaced(plan, literal.place, {FROM: pointer_text(earlier, *first[0])})
            if check_plan(changed, catalog, max_steps=len(plan)).valid:
                return changed, ""
        elif first:
            reason = AMBIGUOUS
        elif places and reason == INVENTED:
            reason = CHOICE
    return None, reason


def _places(value: Json, wanted: Json, at: Tokens = ()) -> list[Tokens]:
    """Where a result holds a scalar, at most `_MOST_PLACES` of them."""
    found: list[Tokens] = []
    for place in _walk(value, wanted, at):
        found.append(place)
        if len(found) == _MOST_PLACES:
            break
    return found


def _walk(value: Json, wanted: Json, at: Tokens) -> Iterator[Tokens]:
    if isinstance(value, dict):
        for key, item in cast("dict[str, Json]", value).items():
            yield from _walk(item, wanted, (*at, key))
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Json]", value)):
            yield from _walk(item, wanted, (*at, index))
    elif same_value(value, wanted):
        yield at


def _replaced(value: Json, place: Tokens, by: Json) -> Json:
    """A copy of a value with another one at a place; what is beside the place is shared."""
    if not place:
        return by
    token = place[0]
    if isinstance(value, list):
        items = cast("list[Json]", value)
        return [_replaced(item, place[1:], by) if index == token else item for index, item in enumerate(items)]
    node = cast("dict[str, Json]", value)
    return {key: _replaced(item, place[1:], by) if key == token else item for key, item in node.items()}
