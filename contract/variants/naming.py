"""New names for workers and parameters, and the words of names and descriptions.

Masked names follow the function masking of Hammer (Lin et al., 2024): a name without a hint, so that only what is said
about it counts. Reworded names keep the content words in another form. Pure; no name is given twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any

from plansmith.contract.catalog import Worker
from plansmith.contract.variants.base import MAX_NAME
from plansmith.contract.variants.lots import lot

_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n")
_LETTERS, _DIGITS = "abcdefghijklmnopqrstuvwxyz", "0123456789"

SYNONYMS: dict[str, tuple[str, ...]] = {
    "add": ("create", "insert"),
    "advise": ("recommend", "suggest"),
    "analyze": ("assess", "evaluate"),
    "book": ("reserve",),
    "calculate": ("compute", "determine"),
    "check": ("verify", "inspect"),
    "compute": ("calculate",),
    "convert": ("exchange", "transform"),
    "create": ("make", "add"),
    "delete": ("remove", "erase"),
    "fetch": ("get", "retrieve"),
    "find": ("search", "seek"),
    "get": ("fetch", "retrieve", "read"),
    "list": ("enumerate", "show"),
    "read": ("get", "load"),
    "refund": ("repay", "reimburse"),
    "remove": ("delete", "drop"),
    "search": ("find", "query"),
    "send": ("deliver", "dispatch"),
    "set": ("assign", "put"),
    "update": ("change", "edit"),
}
"""Verbs of workers' names, and words that may stand in their place."""

_AFFIXES = (("", "value"), ("given", ""), ("input", ""), ("", "arg"))
"""Words put before or after a parameter's name in the reworded style."""


class NameStyle(StrEnum):
    """What new names look like."""

    MASKED = "masked"
    """no hint at all: `func_a7` for a worker, `arg_3` for a parameter"""
    REWORDED = "reworded"
    """the same content in another form: `fin_get_quote` becomes `QuoteFetchFin`, `city` becomes `given_city`"""


class NameKind(StrEnum):
    """What a name is for; the value is the first word of masked names."""

    WORKER = "func"
    """a worker"""
    PARAMETER = "arg"
    """a parameter of a worker"""


class _Joint(StrEnum):
    """How words are made one name."""

    SNAKE = "snake"
    """`get_quote`"""
    CAMEL = "camel"
    """`getQuote`"""
    PASCAL = "pascal"
    """`GetQuote`"""
    DOTTED = "dotted"
    """`get.quote`"""


def words_of(name: str) -> list[str]:
    """The words of a name, in their own case: `Get_Hotel_Reviews(Tips)` has four, `getQuote` two."""
    return _WORD.findall(_CAMEL.sub(" ", name))


def spoken(name: str) -> str:
    """A name as people read it, all in lower case; the name itself where it has no word."""
    return " ".join(words_of(name)).lower() or "".join(name.split()).strip(".!?")


def cut_sentence(text: str) -> tuple[str, str]:
    """The first sentence of a description, which stands in the prompt, and the rest."""
    first, *rest = _SENTENCE_END.split(text.strip(), maxsplit=1)
    return first.strip(), "".join(rest).strip()


def changed(worker: Worker, **values: Any) -> Worker:
    """A worker with some fields changed; nothing that was computed from the old fields is kept."""
    return Worker(**({name: getattr(worker, name) for name in Worker.model_fields} | values))


def new_names(
    names: Iterable[str], style: NameStyle, kind: NameKind, *, taken: Iterable[str], seed: int, scope: Sequence[str]
) -> dict[str, str]:
    """A new name for each name, none of them taken.

    Args:
        names: the old names.
        style: what the new ones look like.
        kind: what the names are for.
        taken: names that no new name may be; the old names belong to it.
        seed: another seed gives other names.
        scope: what the names belong to, so that equal names in two places get different new ones.

    """
    used = set(taken)
    found: dict[str, str] = {}
    for name in names:
        found[name] = next(new for new in _candidates(name, style, kind, seed, scope) if new not in used)
        used.add(found[name])
    return found


def _candidates(name: str, style: NameStyle, kind: NameKind, seed: int, scope: Sequence[str]) -> Iterator[str]:
    if style is NameStyle.REWORDED and (words := words_of(name)):
        made = _reworded(words, kind, seed, name)
        yield from (text for text in (made, *(f"{made}{number}" for number in range(2, 6))) if len(text) <= MAX_NAME)
    attempt = 0
    while True:
        yield f"{kind}_{_code(lot(seed, 'masked', *scope, name, str(attempt)), kind, attempt)}"
        attempt += 1


def _code(number: int, kind: NameKind, attempt: int) -> str:
    """A letter and a digit for a worker, a digit for a parameter; longer where the short ones are taken."""
    length = attempt // 8
    tail = "".join(_DIGITS[number // 260 // 10**place % 10] for place in range(length))
    letter = _LETTERS[number % 26] if kind is NameKind.WORKER else ""
    return letter + _DIGITS[number // 26 % 10] + tail


def _reworded(words: list[str], kind: NameKind, seed: int, name: str) -> str:
    """The words in the form that the seed gives to the whole catalog; of a worker's name the verb is replaced."""
    made = [word.lower() for word in words]
    if kind is NameKind.PARAMETER:
        before, after = _AFFIXES[lot(seed, "affix") % len(_AFFIXES)]
        return _joined([word for word in (before, *made, after) if word], _Joint.SNAKE)
    verb = next((index for index, word in enumerate(made) if word in SYNONYMS), None)
    if verb is not None:
        others = SYNONYMS[made[verb]]
        made[verb] = others[lot(seed, "synonym", name) % len(others)]
    if len(made) > 2 and lot(seed, "order") % 2:
        made = made[1:] + made[:1]
    joints = list(_Joint)
    return _joined(made, joints[lot(seed, "joint") % len(joints)])


def _joined(words: list[str], joint: _Joint) -> str:
    if joint is _Joint.SNAKE:
        return "_".join(words)
    if joint is _Joint.DOTTED:
        return ".".join(words)
    first = words[0] if joint is _Joint.CAMEL else words[0].capitalize()
    return first + "".join(word.capitalize() for word in words[1:])


def near_names(name: str, seed: int) -> Iterator[str]:
    """Names that are easily taken for this one, in its own form: another verb, singular and plural, a word more."""
    spans = [match.span() for match in re.finditer(r"[^\W\d_]+", _CAMEL.sub("\0", name))]
    marked = _CAMEL.sub("\0", name)
    found: list[str] = []
    verb = next((span for span in spans if marked[slice(*span)].lower() in SYNONYMS), None)
    if verb is not None:
        word = marked[slice(*verb)]
        found += [marked[: verb[0]] + _in_case(other, word) + marked[verb[1] :] for other in SYNONYMS[word.lower()]]
    if spans:
        start, end = spans[-1]
        word = marked[start:end]
        number = word[:-1] if word.endswith("s") and len(word) > 2 else word + ("S" if word.isupper() else "s")
        found.append(marked[:start] + number + marked[end:])
    found = [text.replace("\0", "") for text in found]
    yield from sorted(found, key=lambda text: (lot(seed, "near", text), text))
    yield from (f"{name[: MAX_NAME - 4]}_{number}" for number in range(2, 1000))


def _in_case(word: str, like: str) -> str:
    if like.isupper() and len(like) > 1:
        return word.upper()
    return word.capitalize() if like[:1].isupper() else word
