"""Which worker's result can be what parameter of another: the pairs and chains that queries are grown for.

Two places fit where their JSON Schema types do (null aside) and, where the parameter lists its values, the result's
values are among them. That alone pairs every text with every text, so fits whose names share a word (`hotel.city` ->
`city`, `search_hotels.id` -> `hotel_id`) are told apart. Places whose schema says nothing fit nothing. Read from the
schemas alone; whether a pair makes sense is the teacher's to see.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.plan import pointer_text
from plansmith.contract.schema import ALL_TYPES, Schema, branches, compatible, types_of
from plansmith.contract.values import value_key
from plansmith.data.teacher_config import FitRule

_MAX_DEPTH = 4
_MAX_PLACES = 200
_ENOUGH_CHAINS = 500
_KEPT_SHARE = 1 / 3
"""Share of their words that two names have in common to fit by name."""
_GENERIC = frozenset(
    (
        *("id", "name", "value", "result", "data", "type", "text", "list", "item", "code", "key", "info"),
        *(
            "of",
            "number",
            "num",
            "count",
            "total",
            "min",
            "max",
            "search",
            "get",
            "is",
            "by",
            "in",
            "for",
            "from",
            "to",
        ),
    )
)
"""Words that say little about what a value is."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


class Fit(NamedTuple):
    """A place of one worker's result that can be a parameter of another."""

    giver: str
    place: tuple[str, ...]
    """Tokens below the giver's result; `0` stands for any entry of a list."""
    taker: str
    parameter: str
    strength: float
    """Which share of the words of both names they have in common, 0 to 1."""

    @property
    def named(self) -> bool:
        """Whether they fit by name, too."""
        return self.strength >= _KEPT_SHARE

    @property
    def pointer(self) -> str:
        return pointer_text(*self.place)


class _Slot(NamedTuple):
    """A place or a parameter, as far as fitting goes."""

    tokens: tuple[str, ...]
    types: frozenset[str]
    values: frozenset[Any] | None
    """Keys of the values that the schema lists; None where it lists none."""
    words: frozenset[str]


def find_fits(catalog: Catalog, rule: FitRule = FitRule.NAMED) -> list[Fit]:
    """The best fit of each worker's result for each parameter of each other worker.

    With `FitRule.NAMED` those that fit by name; all of them where none does.
    """
    fits = list(_all_fits(catalog))
    named = [fit for fit in fits if fit.named]
    return named if named and rule is FitRule.NAMED else fits


def _all_fits(catalog: Catalog) -> Iterator[Fit]:
    places = {worker.name: list(_places(worker)) for worker in catalog.workers}
    parameters = {worker.name: _parameters(worker) for worker in catalog.workers}
    for giver in catalog.workers:
        for taker in catalog.workers:
            if giver.name == taker.name:
                continue
            for parameter in parameters[taker.name]:
                fitting = [place for place in places[giver.name] if _types_fit(place, parameter)]
                if not fitting:
                    continue
                known = _words(giver.name)
                best = max(fitting, key=lambda place: (_strength(place, parameter, known), -len(place.tokens)))
                strength = _strength(best, parameter, known)
                yield Fit(giver.name, best.tokens, taker.name, parameter.tokens[0], strength)


def _types_fit(place: _Slot, parameter: _Slot) -> bool:
    if parameter.values is not None and (place.values is None or not place.values <= parameter.values):
        return False
    return compatible(place.types, parameter.types)


def _strength(place: _Slot, parameter: _Slot, giver: frozenset[str]) -> float:
    """Share of common words; where the place is a mere `id` or `name`, it is the giver's."""
    own, wanted = place.words - _GENERIC, parameter.words - _GENERIC
    if not own and place.words & parameter.words:
        own = (giver - _GENERIC) & wanted
    return len(own & wanted) / max(len(own | wanted), 1)


def _places(worker: Worker) -> Iterator[_Slot]:
    """Places of a worker's result, the shallow ones first, without the result as a whole."""
    if worker.returns is None:
        return
    level: list[tuple[tuple[str, ...], Schema]] = [((), worker.returns)]
    given = 0
    for _ in range(_MAX_DEPTH):
        following: list[tuple[tuple[str, ...], Schema]] = []
        for tokens, schema in level:
            following += [((*tokens, token), child) for token, child in _members(schema, worker.returns)]
        for tokens, schema in following[: _MAX_PLACES - given]:
            types = types_of(schema, worker.returns) - {"null"}
            if types and types != ALL_TYPES - {"null"}:
                name = next((token for token in reversed(tokens) if token != "0"), "")
                yield _Slot(tokens, types, _listed(schema, worker.returns), _words(name))
        given += len(following)
        if given >= _MAX_PLACES:
            return
        level = following


def _members(schema: Schema, root: Schema) -> Iterator[tuple[str, Schema]]:
    for branch in branches(schema, root):
        if not isinstance(branch, dict):
            continue
        node = cast("dict[str, Any]", branch)
        yield from cast("dict[str, Schema]", node.get("properties", {})).items()
        if isinstance(node.get("items"), dict):
            yield "0", node["items"]


def _parameters(worker: Worker) -> list[_Slot]:
    found: list[_Slot] = []
    for name, schema in worker.properties.items():
        types = types_of(schema, worker.args) - {"null"}
        if types and types != ALL_TYPES - {"null"}:
            found.append(_Slot((name,), types, _listed(schema, worker.args), _words(name)))
    return found


def _listed(schema: Schema, root: Schema) -> frozenset[Any] | None:
    """Keys of the values of an `enum` or `const`; None where some alternative is free."""
    found: set[Any] = set()
    for branch in branches(schema, root):
        node = cast("dict[str, Any]", branch) if isinstance(branch, dict) else {}
        if "const" in node:
            found.add(value_key(node["const"]))
        elif isinstance(node.get("enum"), list):
            found.update(value_key(item) for item in node["enum"])
        else:
            return None
    return frozenset(found)


def _words(name: str) -> frozenset[str]:
    """Words of a name in any style (`hotelId`, `hotel_id`, `Hotel.GetId`), without the `s` of a plural."""
    words = (word.lower() for word in _WORD.findall(name))
    return frozenset(word[:-1] if len(word) > 3 and word.endswith("s") else word for word in words)


def find_chains(fits: Sequence[Fit], steps: int, seed: int) -> list[tuple[Fit, ...]]:
    """Chains of so many different workers, each taking something from the one before; a sample where there are many."""
    following: dict[str, dict[str, Fit]] = {}
    for fit in sorted(fits, key=lambda fit: -fit.strength):
        following.setdefault(fit.giver, {}).setdefault(fit.taker, fit)
    chains: list[tuple[Fit, ...]] = []
    for giver in sorted(following):
        chains += _chains_from(giver, following, steps, random.Random(f"{seed}/{steps}/{giver}"))
    return chains


def _chains_from(
    start: str, following: dict[str, dict[str, Fit]], steps: int, rng: random.Random
) -> list[tuple[Fit, ...]]:
    """Chains from one worker, found by depth-first search in random order."""
    enough = max(8, _ENOUGH_CHAINS // len(following))
    found: list[tuple[Fit, ...]] = []
    pending: list[tuple[Fit, ...]] = [()]
    for _ in range(100 * enough):
        if not pending or len(found) >= enough:
            break
        chain = pending.pop()
        if len(chain) == steps - 1:
            found.append(chain)
            continue
        used = {start, *(fit.taker for fit in chain)}
        last = chain[-1].taker if chain else start
        more = [fit for taker, fit in sorted(following.get(last, {}).items()) if taker not in used]
        rng.shuffle(more)
        pending += [(*chain, fit) for fit in more]
    return found
