"""Recorded NESTFUL calls as plans: which argument values are literals, which are references, which nobody could know.

Reads rows `{"input","output":[{"name","arguments","label","response"}]}`. The recorded references (`$var1.field$`) came
from matching values against responses, so an argument is a reference in one row and a literal in the next, and many
identifiers that can only come from a response stand there as literals. Here every argument value is first traced back
to its plain value and then decided by one rule for all rows:

1. a value that the query names is a literal, except for parameters that are mostly filled from responses (`search_type`
   is `city` whether or not the query has that word);
2. a value of the parameter's enum, its default, or one that is worked out (dates, times, small numbers) is a literal;
   but a date that the query does not name and an earlier response offers, or a time of day that it does not name after
   a response with times in it ("an hour after the flight lands"), is a choice that depends on the data;
3. a value that an earlier response holds is a reference, to the place used most for that parameter, first entries of
   lists before others; one that needs a later entry of a list is a choice that depends on the data;
4. a rewording of the query's words is a literal where such rows are wanted; anything else is unknowable.

Not covered: that a first entry can be a choice as well (the cheapest happened to be first).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from plansmith.contract.catalog import Catalog
from plansmith.contract.grounding import (
    Query,
    as_date,
    as_time,
    dates_named,
    is_derivable,
    times_named,
)
from plansmith.contract.plan import FROM, Json, pointer_text

Tokens = tuple[str | int, ...]
_REFERENCE = re.compile(r"\$(\w+)\.(.+)\$", re.DOTALL)
_TIME_IN_TEXT = re.compile(r"(?<!\d)\d{2}:\d{2}(?!\d)")
_MAX_PLACES = 64
"""How many places of one value are looked at per response."""


class Place(NamedTuple):
    """A place in the recorded responses."""

    step: int
    tokens: Tokens
    value: Json

    @property
    def needs_choice(self) -> bool:
        """Whether it lies in a later entry of a list."""
        return any(isinstance(token, int) and token > 0 for token in self.tokens)


@dataclass(slots=True)
class Leaf:
    """One scalar argument value of a recorded plan."""

    worker: str
    step: int
    tokens: Tokens
    """Its place in the step's arguments."""
    value: Json
    """The plain value: a recorded reference is followed."""
    recorded: Place | None
    """Where the recorded reference points."""
    named: bool
    """Whether the query names the value."""
    places: list[Place] = field(default_factory=list[Place])
    """Where earlier responses hold the value."""
    offered: bool = False
    """Whether an earlier response holds the value, as a value or as a key."""
    chosen: Place | None = None
    """The reference decided on; None: a literal."""
    choice: bool = False
    """Whether the value depends on what a response holds, beyond its place."""
    unknowable: bool = False
    reworded: bool = False
    """Whether it is a literal made of the query's words in another form."""

    @property
    def parameter(self) -> tuple[str, Tokens]:
        return self.worker, general(self.tokens)


@dataclass(slots=True)
class RecordedPlan:
    """One row with its leaves."""

    query: str
    calls: list[dict[str, Json]]
    """`{"name","arguments"}` with recorded references followed."""
    results: list[Json]
    leaves: list[Leaf]
    broken: str | None = None
    """Why a recorded reference leads nowhere."""

    def plan(self) -> list[dict[str, Json]]:
        """The calls in plan form."""
        chosen = {(leaf.step, leaf.tokens): leaf.chosen for leaf in self.leaves}
        return [
            {"type": call["name"], "args": _fill(call["arguments"], step, (), chosen)}
            for step, call in enumerate(self.calls)
        ]


def general(tokens: Tokens) -> Tokens:
    """A path with list indices replaced by `*`."""
    return tuple("*" if isinstance(token, int) else token for token in tokens)


def _fill(value: Json, step: int, at: Tokens, chosen: dict[tuple[int, Tokens], Place | None]) -> Json:
    place = chosen.get((step, at))
    if place is not None:
        return {FROM: pointer_text(place.step, *place.tokens)}
    if isinstance(value, dict):
        return {key: _fill(item, step, (*at, key), chosen) for key, item in cast("dict[str, Json]", value).items()}
    if isinstance(value, list):
        return [_fill(item, step, (*at, index), chosen) for index, item in enumerate(cast("list[Json]", value))]
    return value


def read_plan(row: dict[str, Json]) -> RecordedPlan:
    """A row with its recorded references followed; raises `KeyError`/`TypeError` where it has another shape."""
    query = str(row["input"]).strip()
    known = Query(query)
    steps = {call["label"]: index for index, call in enumerate(row["output"])}
    results = [call["response"] for call in row["output"]]
    plan = RecordedPlan(query, [], results, [])
    for step, call in enumerate(row["output"]):
        name: str = call["name"]
        arguments: dict[str, Json] = {}
        for key, value in call["arguments"].items():
            arguments[key] = _trace(plan, name, step, (key,), value, steps, known)
        plan.calls.append({"name": name, "arguments": arguments})
    _find_places(plan)
    return plan


def _trace(
    plan: RecordedPlan, worker: str, step: int, at: Tokens, value: Json, steps: dict[str, int], known: Query
) -> Json:
    """The plain value of an argument; its leaves are added to the plan."""
    if isinstance(value, dict):
        items = cast("dict[str, Json]", value).items()
        return {k: _trace(plan, worker, step, (*at, k), v, steps, known) for k, v in items}
    if isinstance(value, list):
        entries = enumerate(cast("list[Json]", value))
        return [_trace(plan, worker, step, (*at, i), v, steps, known) for i, v in entries]
    recorded = None
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match and match[1] in steps:
        recorded = follow(steps[match[1]], plan.results[steps[match[1]]], match[2])
        if recorded is None or recorded.step >= step:
            plan.broken = f"step {step}: {value!r} leads to no value of an earlier response"
        else:
            value = recorded.value
    plan.leaves.append(Leaf(worker, step, at, value, recorded, known.names(value)))
    return value


def follow(step: int, response: Json, fields: str) -> Place | None:
    """The place of a recorded reference; it skips list indices and a `data` wrapper, which are put back in."""
    value, tokens = response, list[str | int]()
    for name in fields.split("."):
        value = _enter(value, name, tokens)
        if not isinstance(value, dict) or name not in value:
            return None
        value = cast("dict[str, Json]", value)[name]
        tokens.append(name)
    return Place(step, tuple(tokens), value)


def _enter(value: Json, name: str, tokens: list[str | int]) -> Json:
    """Step into first entries, and into `data`, until the field is there."""
    while True:
        if isinstance(value, list) and value:
            value = cast("list[Json]", value)[0]
            tokens.append(0)
        elif isinstance(value, dict) and name not in value and "data" in value:
            value = cast("dict[str, Json]", value)["data"]
            tokens.append("data")
        else:
            return cast("Json", value)


def _find_places(plan: RecordedPlan) -> None:
    """Note for each leaf where earlier responses hold its value (numbers and their texts are the same value)."""
    wanted: dict[str, list[Leaf]] = {}
    for leaf in plan.leaves:
        if leaf.value is not None and leaf.value != "" and not isinstance(leaf.value, bool):
            wanted.setdefault(str(leaf.value), []).append(leaf)
    for step, response in enumerate(plan.results):
        found: Counter[str] = Counter()
        for tokens, text, value in _scalars(response, (), wanted.keys()):
            found[text] += 1
            if found[text] > _MAX_PLACES:
                continue
            for leaf in wanted[text]:
                if leaf.step > step:
                    leaf.offered = True
                    if value is not None:
                        leaf.places.append(Place(step, tokens, value))


def _scalars(value: Json, at: Tokens, wanted: Any) -> Iterator[tuple[Tokens, str, Json]]:
    """Wanted scalars of a response with their place; a wanted key comes with value None."""
    if isinstance(value, dict):
        for key, item in cast("dict[str, Json]", value).items():
            if key in wanted:
                yield (*at, key), key, None
            yield from _scalars(item, (*at, key), wanted)
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Json]", value)):
            yield from _scalars(item, (*at, index), wanted)
    elif value is not None and not isinstance(value, bool) and (text := str(value)) in wanted:
        yield at, text, value


class Habits:
    """What all rows together do: which parameters are filled from responses, and from which places."""

    def __init__(self, plans: list[RecordedPlan]) -> None:
        self._from_responses: Counter[tuple[str, Tokens]] = Counter()
        self._uses: Counter[tuple[tuple[str, Tokens], str, Tokens]] = Counter()
        for plan in plans:
            for leaf in plan.leaves:
                self._count(plan, leaf)

    def _count(self, plan: RecordedPlan, leaf: Leaf) -> None:
        if leaf.places and (not is_derivable(leaf.value) or leaf.recorded is not None):
            for use in {self._use(plan, leaf, place) for place in leaf.places}:
                self._uses[use] += 1
        if leaf.named:
            self._from_responses[leaf.parameter] -= 1
        elif is_derivable(leaf.value):
            self._from_responses[leaf.parameter] -= leaf.recorded is None
        elif leaf.places:
            self._from_responses[leaf.parameter] += 1

    @staticmethod
    def _use(plan: RecordedPlan, leaf: Leaf, place: Place) -> tuple[tuple[str, Tokens], str, Tokens]:
        return leaf.parameter, plan.calls[place.step]["name"], general(place.tokens)

    def filled_from_responses(self, leaf: Leaf) -> bool:
        """Whether the parameter is mostly filled with values that the query does not tell."""
        return self._from_responses[leaf.parameter] > 0

    def best(self, plan: RecordedPlan, leaf: Leaf) -> Place | None:
        """The place to refer to: no later list entry, most used for the parameter, recorded, earliest, shortest."""

        def rank(place: Place) -> tuple[bool, int, bool, int, int, str]:
            recorded = leaf.recorded is not None and place[:2] == leaf.recorded[:2]
            uses = self._uses[self._use(plan, leaf, place)]
            return (place.needs_choice, -uses, not recorded, place.step, len(place.tokens), str(place.tokens))

        return min(leaf.places, key=rank, default=None)


def decide(plan: RecordedPlan, catalog: Catalog, habits: Habits, *, reworded: bool) -> None:
    """Settle every leaf of a plan; `reworded` accepts texts that only reword the query's words."""
    known = Query(plan.query)
    for leaf in plan.leaves:
        opaque = habits.filled_from_responses(leaf)
        if documented(catalog, leaf) or (not opaque and (leaf.named or is_derivable(leaf.value))):
            continue
        leaf.chosen = habits.best(plan, leaf)
        if leaf.chosen is not None:
            leaf.choice = leaf.chosen.needs_choice
        elif not (leaf.named or is_derivable(leaf.value)):
            leaf.reworded = known.rewords(leaf.value)
            leaf.unknowable = not (leaf.reworded and reworded)
    _decide_days(plan)
    _decide_times(plan)


def _decide_days(plan: RecordedPlan) -> None:
    """A literal date that the query does not name, no earlier call had, and an earlier response offers is a choice."""
    named = dates_named(plan.query)
    told = set[Json]()
    for leaf in plan.leaves:
        day = as_date(leaf.value)
        if day is not None and leaf.chosen is None:
            leaf.choice = leaf.offered and (day.month, day.day) not in named and leaf.value not in told
            told.add(leaf.value)


def _decide_times(plan: RecordedPlan) -> None:
    """A literal time of day that the query does not name is a choice once a response has told times."""
    named = times_named(plan.query)
    unnamed = [leaf for leaf in plan.leaves if (at := as_time(leaf.value)) and leaf.chosen is None and at not in named]
    if unnamed:
        told = next((step for step, result in enumerate(plan.results) if _holds_times(result)), len(plan.results))
        for leaf in unnamed:
            leaf.choice = leaf.step > told


def _holds_times(value: Json) -> bool:
    if isinstance(value, dict):
        return any(_holds_times(item) for item in cast("dict[str, Json]", value).values())
    if isinstance(value, list):
        return any(_holds_times(item) for item in cast("list[Json]", value))
    return isinstance(value, str) and _TIME_IN_TEXT.search(value) is not None


def documented(catalog: Catalog, leaf: Leaf) -> bool:
    """Whether the value is in the parameter's enum or is its default."""
    worker = catalog.get(leaf.worker)
    schema: Any = worker.properties.get(str(leaf.tokens[0])) if worker is not None and len(leaf.tokens) == 1 else None
    if not isinstance(schema, dict):
        return False
    node = cast("dict[str, Any]", schema)
    return leaf.value in node.get("enum", ()) or ("default" in node and leaf.value == node["default"])
