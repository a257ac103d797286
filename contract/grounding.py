"""Which argument values a planner could know from the query: named, derivable, or neither.

Pure functions over texts and plans. A value is *named* when the query holds it as whole words; it is *derivable* when
reading the query leads to it (a date, a time of day, a small number, a list of small numbers, a rewording). Dates,
times and numbers in words are read from English wording only.

`Query` and what is about recorded values knows nothing of schemas and is lenient on purpose (the recorded plans of a
benchmark were made by people). `invented` is the strict question, asked of a plan against a catalog: which of its
literal arguments come from nowhere. Not covered: whether the right part of the query was used (`Rome` for the origin
instead of the destination is grounded), general knowledge (`FCO` for Rome's airport is invented unless the schema
names it), sums and other calculations, and the keys of objects.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Hashable, Iterator
from datetime import date
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, cast

from plansmith.contract.amounts import numbers_in_words, scaled_numbers
from plansmith.contract.catalog import Catalog
from plansmith.contract.plan import FORMAT, FROM, LITERAL, WITH, Json, Plan, dumps, pointer_text
from plansmith.contract.schema import branches, child_schema
from plansmith.contract.values import value_key

_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIME = re.compile(r"(\d{1,2}):(\d{2})")
_NAMED_TIME = re.compile(r"\b(\d{1,2})(?:[:.](\d{2}))?\s*(a\.?\s?m|p\.?\s?m|o'?clock|in the|at night)?")
_BEFORE_TIME = re.compile(r"\b(at|from|by|until|and|to) $")
_NUMBER = re.compile(r"(?:(?<!\w)-)?\d[\d,]*(?:\.\d+)?")
_SMALL_NUMBERS = re.compile(r"\d{1,2}(,\d{1,2})*")
_MONTHS: list[str] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?"
_MONTH_DAY = re.compile(rf"\b{_MONTH}\s+(?:the\s+)?{_DAY}\b")
_DAY_MONTH = re.compile(rf"\b{_DAY}\s+(?:of\s+)?{_MONTH}\b")
_FURTHER_DAY = re.compile(r"(?:to|until|till|and|or|-|–|through|the)\s*(?:the\s+)?(\d{1,2})(?:st|nd|rd|th)?\b(?!:)")
_CLOCK = re.compile(r"\d{1,2}(:\d{2}){0,2}\s?[ap]\.?m\.?|\d{1,2}:\d{2}(:\d{2})?", re.IGNORECASE)
_DATETIME = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?")
_NUMERIC = re.compile(r"-?\d+(\.\d+)?")
_TEMPLATE_FIELD = re.compile(r"\{\{|\}\}|\{\d+\}")
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Characters of scripts that put no space between words."""

Tokens = tuple[str | int, ...]


def words(text: str) -> str:
    """Text as lower-case words without accents and punctuation, between single spaces, with a space at both ends."""
    plain = text.casefold()
    if not plain.isascii():  # ASCII has no accents
        plain = "".join(c for c in unicodedata.normalize("NFKD", plain) if not unicodedata.combining(c))
    return " " + re.sub(r"[\W_]+", " ", plain).strip() + " "


class Query:
    """A query prepared for looking values up in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.words = words(text)
        self.tokens = frozenset(self.words.split())
        self.numbers = {float(match[0].replace(",", "")) for match in _NUMBER.finditer(text)}

    @cached_property
    def amounts(self) -> frozenset[float]:
        """Numbers that the query states in digits or in words, with their scale: `1.2k`, `5%`, `two hundred`."""
        return frozenset(self.numbers) | scaled_numbers(self.text) | numbers_in_words(self.words)

    def names(self, value: Json) -> bool:
        """Whether the query holds the value: a number as a number, a text as whole words."""
        if isinstance(value, bool) or value is None:
            return False
        if isinstance(value, int | float):
            return value in self.numbers
        own = words(str(value))
        return own.strip() != "" and own in self.words

    def rewords(self, value: Json) -> bool:
        """Whether at least half of a text's words are the query's: `Colosseum, Italy` for a trip to the Colosseum."""
        own = words(value).split() if isinstance(value, str) and " " in value.strip() else []
        return bool(own) and 2 * sum(f" {word} " in self.words for word in own) >= len(own)


def is_derivable(value: Json) -> bool:
    """Whether a value is of a kind that is worked out rather than copied: truth values, dates, times, small numbers."""
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, int | float):
        return abs(value) < 100 and value == int(value)
    text = str(value).strip()
    return bool(_SMALL_NUMBERS.fullmatch(text) or _TIME.fullmatch(text)) or as_date(text) is not None


def as_date(text: Json) -> date | None:
    """The date that a text is, as `2024-11-30`."""
    if not isinstance(text, str) or not _ISO_DATE.fullmatch(text.strip()):
        return None
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        return None


def dates_named(query: str) -> set[tuple[int, int]]:
    """Month and day of the dates that a query names, in words or digits, `the 5th` after a month included."""
    text = query.casefold()
    named: set[tuple[int, int]] = set()
    for match in _ISO_DATE.finditer(text):
        if (found := as_date(match[0])) is not None:
            named.add((found.month, found.day))
    months: list[int] = []
    for pattern, month_group, day_group in ((_MONTH_DAY, 1, 2), (_DAY_MONTH, 2, 1)):
        for match in pattern.finditer(text):
            months.append(_MONTHS.index(match[month_group]) + 1)
            named.add((months[-1], int(match[day_group])))
    for match in _FURTHER_DAY.finditer(text):
        named.update((month, int(match[1])) for month in months)
    return named


def as_time(text: Json) -> tuple[int, int] | None:
    """Hour and minute of a text such as `18:45`."""
    match = _TIME.fullmatch(text.strip()) if isinstance(text, str) else None
    return (int(match[1]), int(match[2])) if match else None


def times_named(query: str) -> set[tuple[int, int]]:
    """Hours and minutes that a query names; where it leaves open which half of the day, both."""
    text = query.casefold().replace("’", "'")
    named = {(12, 0)} if re.search(r"\b(noon|midday)\b", text) else set[tuple[int, int]]()
    if "midnight" in text:
        named.add((0, 0))
    for match in _NAMED_TIME.finditer(text):
        if not (match[2] or match[3] or _BEFORE_TIME.search(text[: match.start()])):
            continue
        hour, minute, half = int(match[1]), int(match[2] or 0), (match[3] or "")[:1]
        if half in ("a", "p") and match[3] != "at night":
            named.add((hour % 12 + 12 * (half == "p"), minute))
        elif hour < 24:
            named |= {(hour, minute), ((hour + 12) % 24, minute)}
    return named


class Invented(NamedTuple):
    """A literal of a plan that comes from nowhere."""

    place: Tokens
    """Its place in the plan: `(0, "args", "city")`."""
    value: Json

    def __str__(self) -> str:
        """Place and JSON text: `/0/args/city: "Rome"`."""
        try:
            return f"{pointer_text(*self.place)}: {dumps(self.value)}"
        except ValueError:  # a number that JSON cannot hold, in a plan that the checker refuses
            return f"{pointer_text(*self.place)}: {self.value!r}"


def invented(plan: Plan, query: Query, catalog: Catalog) -> tuple[Invented, ...]:
    """The literal arguments of a plan that are neither in the query nor known from elsewhere, in plan order.

    Literals are the scalars in `args` at any depth, inside `$literal` and the `with` of a `$format` too, and the text
    of a `$format` template without its fields; not references, and not what the worker's schema gives for that place
    or one around it by `enum`, `const` or `default`. What grounds a literal: `is_grounded`.
    """
    found: list[Invented] = []
    documented = _documented(catalog)
    for index, step in enumerate(plan.steps):
        worker = catalog.get(step.type)
        seen = {(): _Seen(worker.args if worker is not None else True, step.args, False)}
        for name, value in step.args.items():
            known = documented.get((step.type, name), frozenset())
            if value_key(value) in known:
                continue
            for place, item in _literals(value, (name,)):
                if not is_grounded(item, query) and not _is_given(place, seen):
                    found.append(Invented((index, "args", *place), item))
    return tuple(found)


def is_grounded(value: Json, query: Query) -> bool:
    """Whether a scalar can be known from the query.

    - null, truth values, whole numbers below 100 in size, texts that are dates (`2024-11-30`), dates with a time, times
      of day, or lists of numbers below 100: these are worked out from the query's wording, which is not checked;
    - a number that the query states, in digits or in English words, with its scale (`1.2k`, `5%` as 5 or 0.05,
      `two hundred`), or the same number with the other sign; also as a text (`"1200"`);
    - a text each of whose words is a word of the query, in any order and number, after normalisation (no case, no
      accents, no punctuation; `s` at the end of a word aside); words of scripts without spaces may stand anywhere in
      the query's text. So a message put together from the query's words is grounded, and one word more makes it
      invented. A text without any word (`""`, `"+"`) is grounded where it is empty or stands in the query as it is.
    """
    if is_derivable(value):
        return True
    if isinstance(value, int | float):
        return value in query.amounts or -value in query.amounts
    text = str(value).strip()
    own = words(text).split()
    if not own:
        return text in query.text
    if all(_is_word_of(word, query) for word in own):
        return True
    if _DATETIME.fullmatch(text) or _CLOCK.fullmatch(text):
        return True
    plain = text.replace(",", "")
    return bool(_NUMERIC.fullmatch(plain)) and float(plain) in query.amounts


def _is_word_of(word: str, query: Query) -> bool:
    if word in query.tokens or word + "s" in query.tokens:
        return True
    if len(word) > 3 and word.endswith("s") and word[:-1] in query.tokens:
        return True
    return _UNSPACED.search(word) is not None and word in query.words


def _literals(value: Json, place: Tokens) -> Iterator[tuple[Tokens, Json]]:
    if isinstance(value, list):
        for index, item in enumerate(cast("list[Json]", value)):
            yield from _literals(item, (*place, index))
    elif not isinstance(value, dict):
        yield place, value
    else:
        yield from _literals_of_object(cast("dict[str, Json]", value), place)


def _literals_of_object(node: dict[str, Json], place: Tokens) -> Iterator[tuple[Tokens, Json]]:
    if node.keys() == {FROM}:
        return
    if node.keys() == {FORMAT, WITH} and isinstance(node[FORMAT], str):
        text = _TEMPLATE_FIELD.sub(" ", node[FORMAT])
        if words(text).strip():
            yield (*place, FORMAT), text.strip()
        yield from _literals(node[WITH], (*place, WITH))
        return
    for key, item in node.items():
        if key == LITERAL:
            yield from _plain_literals(item, (*place, key))
        else:
            yield from _literals(item, (*place, key))


def _plain_literals(value: Json, place: Tokens) -> Iterator[tuple[Tokens, Json]]:
    """Scalars of JSON that is not scanned for operators."""
    if isinstance(value, list):
        for index, item in enumerate(cast("list[Json]", value)):
            yield from _plain_literals(item, (*place, index))
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Json]", value).items():
            yield from _plain_literals(item, (*place, key))
    else:
        yield place, value


@lru_cache(maxsize=64)
def _documented(catalog: Catalog) -> dict[tuple[str, str], frozenset[Hashable]]:
    """By worker and parameter: keys of the values that the schema gives."""
    return {
        (worker.name, name): _given(schema, worker.args)
        for worker in catalog.workers
        for name, schema in worker.properties.items()
    }


def _given(schema: Any, root: Any) -> frozenset[Hashable]:
    """Keys of the values that a schema gives by `enum`, `const` or `default`, in any of its alternatives."""
    found: set[Hashable] = set()
    for branch in branches(schema, root):
        if isinstance(branch, dict):
            node = cast("dict[str, Any]", branch)
            found.update(value_key(item) for item in node.get("enum", ()))
            found.update(value_key(node[key]) for key in ("const", "default") if key in node)
    return frozenset(found)


class _Seen(NamedTuple):
    """A place in the arguments of a step."""

    schema: Any
    value: Json
    given: bool
    """Whether the schema gives this value, or one around it, inside an argument."""


def _is_given(place: Tokens, seen: dict[Tokens, _Seen]) -> bool:
    """Whether the schema gives the value at a place inside an argument, or one around it.

    Args:
        place: tokens below the step's arguments.
        seen: places that were looked at, at first `args` itself with the worker's schema; grows.

    """
    if len(place) < 2 or LITERAL in place or FORMAT in place or WITH in place:
        return False
    return _look(place, seen).given


def _look(place: Tokens, seen: dict[Tokens, _Seen]) -> _Seen:
    if (known := seen.get(place)) is not None:
        return known
    around = _look(place[:-1], seen)
    if around.given or isinstance(around.schema, bool):  # the same holds for all that is inside
        return around
    root, token = seen[()].schema, place[-1]
    schema, value = child_schema(around.schema, root, token, around.value), around.value[token]
    keys = _given(schema, root) if len(place) > 1 else frozenset[Hashable]()
    seen[place] = _Seen(schema, value, bool(keys) and value_key(value) in keys)
    return seen[place]
