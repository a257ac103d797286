"""What a teacher is told to invent queries, and which of those it gives are usable. Pure.

The system message holds the rules and all workers, the same for every request of a catalog; the user message says
which workers, language and style. The answer is an object `{"queries": [...]}`; a bare array does, too.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, cast

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.endpoint import Message
from plansmith.contract.parse import ParseError, parse_json, parse_lenient
from plansmith.contract.plan import Json, dumps
from plansmith.contract.prompt import signature
from plansmith.data.query_sources.slots import Kind, Slot

GROWTH_VERSION = 1
"""Raised whenever the text here changes."""

ANSWER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"queries": {"type": "array", "items": {"type": "string"}}},
    "required": ["queries"],
    "additionalProperties": False,
}

_RULES = """\
You invent what people ask an assistant. The assistant can do exactly what these workers do:
{workers}

Rules for every request that you invent:
- It is what a person would type who has never heard of workers: no name of a worker or a parameter, no JSON.
- It is complete in itself: it says in plain words every value that the workers need (places, names, dates, amounts), \
except values that one worker gives to another. All values are concrete and differ from request to request; nothing is \
left as a blank to be filled in.
- It needs what is asked for below and nothing more.
Answer with one JSON object and nothing else: {{"queries": [text, text, ...]}}."""

_STYLES = (
    "short, as typed on a phone",
    "whole, polite sentences",
    "casual, with the reason why it is asked",
    "keywords and fragments",
    "long, with details around it that do not matter",
    "as typed in a hurry, with a slip or two",
)
_UNSERVED = (
    "are close to what the workers do, but need something that none of them can do",
    "belong to other fields of life than those of the workers",
    "are no tasks for workers at all: small talk, opinions, general knowledge, or too vague to act on",
)
_NAMES = {
    **{"ar": "Arabic", "bn": "Bengali", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek", "en": "English"},
    **{"es": "Spanish", "fa": "Persian", "fi": "Finnish", "fr": "French", "he": "Hebrew", "hi": "Hindi"},
    **{"hu": "Hungarian", "id": "Indonesian", "it": "Italian", "ja": "Japanese", "ko": "Korean", "nl": "Dutch"},
    **{"no": "Norwegian", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sv": "Swedish"},
    **{"th": "Thai", "tr": "Turkish", "uk": "Ukrainian", "vi": "Vietnamese", "zh": "Chinese"},
}
_SCRIPTS = {
    **dict.fromkeys(("ar", "fa"), r"[\u0600-\u06ff]"),
    **dict.fromkeys(("ru", "uk"), r"[\u0400-\u04ff]"),
    **{"bn": r"[\u0980-\u09ff]", "el": r"[\u0370-\u03ff]", "he": r"[\u0590-\u05ff]", "hi": r"[\u0900-\u097f]"},
    **{"ja": r"[\u3040-\u30ff\u4e00-\u9fff]", "ko": r"[\uac00-\ud7af]", "th": r"[\u0e00-\u0e7f]"},
    "zh": r"[\u4e00-\u9fff]",
}
"""Scripts that a query in the language has some letter of; languages in Latin script are not told apart."""
_BLANK = re.compile(r"\[[A-Za-z _]{2,30}\]|<[A-Za-z _]{2,30}>|\{[A-Za-z _]{2,30}\}|\bXX+\b")
_SHOWN_SCHEMA = 2000


def growth_messages(slot: Slot, catalog: Catalog) -> list[Message]:
    """The conversation that asks for the queries of a slot."""
    system = _RULES.format(workers="\n".join(signature(worker) for worker in catalog.workers))
    language = slot.cell.language
    named = f"{_NAMES[language.split('-')[0]]} ({language})" if language.split("-")[0] in _NAMES else repr(language)
    lines = [
        f"Invent {slot.size} different requests in the language {named} that {_needs(slot, catalog)}",
        f"Style: {_STYLES[(slot.number + slot.round) % len(_STYLES)]}.",
    ]
    return [Message(role="system", content=system), Message(role="user", content="\n".join(lines))]


def _needs(slot: Slot, catalog: Catalog) -> str:
    if slot.cell.kind is Kind.NONE:
        return _UNSERVED[slot.number % len(_UNSERVED)] + ". The assistant must not be able to serve any of them."
    shown = "\n".join(_described(catalog.get(name)) for name in slot.workers)
    if slot.cell.kind is Kind.ONE:
        return f"need exactly this worker, once:\n{shown}"
    if slot.cell.kind is Kind.SEPARATE:
        return (
            f"need these {len(slot.workers)} workers, once each, for wishes that do not depend on each other:\n{shown}"
        )
    given = "\n".join(
        f"- {fit.parameter} of {fit.taker} is {fit.pointer or 'the result'} of what {fit.giver} gives, so the request "
        "does not say it."
        for fit in slot.fits
    )
    return f"need these {len(slot.workers)} workers one after the other:\n{shown}\n{given}"


def _described(worker: Worker | None) -> str:
    assert worker is not None, "slots name workers of the catalog"
    schema = dumps(worker.properties)
    shown = schema if len(schema) <= _SHOWN_SCHEMA else schema[:_SHOWN_SCHEMA] + "..."
    return f"- {worker.name}: {worker.description}\n  parameters: {shown}; required: {sorted(worker.required)}"


class Invented(NamedTuple):
    """What stood in an answer."""

    queries: list[Json]
    repaired: bool
    """Whether it had to be mended to be read."""


def read_growth(text: str) -> Invented | None:
    """The queries in an answer; None where it holds no list."""
    repaired = False
    try:
        value: Json = parse_json(text)
    except ParseError:
        repaired = True
        try:
            value = parse_lenient(text).parsed.value
        except ParseError:
            return None
    if isinstance(value, dict):
        value = cast("dict[str, Json]", value).get("queries")
    return Invented(cast("list[Json]", value), repaired) if isinstance(value, list) else None


def growth_fault(query: Json, slot: Slot, catalog: Catalog, max_characters: int) -> tuple[str, str] | None:
    """Reason code and sentence for an invented query that is not usable."""
    if not isinstance(query, str) or not query.strip():
        return "no_query", f"expected text, found {json.dumps(query)[:80]}"
    try:
        query.encode()
    except UnicodeEncodeError:
        return "not_utf8", "it holds half a surrogate pair"
    if len(query) > max_characters:
        return "too_long", f"{len(query)} characters, at most {max_characters} are kept"
    if blank := _BLANK.search(query):
        return "blank", f"{blank[0]!r} is left to be filled in"
    named = [name for name in catalog.names if _is_code(name) and name.casefold() in query.casefold()]
    if named:
        return "names_worker", f"it names the worker {named[0]!r}, which no user would"
    script = _SCRIPTS.get(slot.cell.language.split("-")[0])
    if script is not None and not re.search(script, query):
        return "wrong_script", f"no letter of it belongs to the language {slot.cell.language!r}"
    return None


def _is_code(name: str) -> bool:
    """Whether a worker's name is no plain word that a query may well hold (`translate`)."""
    return re.search(r"[a-z][A-Z]|[_.0-9]|\w-\w", name) is not None
