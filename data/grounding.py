"""Which argument values a planner could know from the query: named, derivable, or neither.

Pure functions over texts. A value is *named* when the query holds it as whole words; it is *derivable* when reading
the query leads to it (a date, a time of day, a small number, a list of small numbers, a rewording). Dates are read
from English wording only. The idea of grounding arguments is the evaluation's `grounded`; this module is about
recorded plans and knows nothing of schemas.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import date

from plansmith.contract.plan import Json

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


def words(text: str) -> str:
    """Text as lower-case words without accents and punctuation, between single spaces, with a space at both ends."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    return " " + re.sub(r"[\W_]+", " ", plain).strip() + " "


class Query:
    """A query prepared for looking values up in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.words = words(text)
        self.numbers = {float(match[0].replace(",", "")) for match in _NUMBER.finditer(text)}

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
