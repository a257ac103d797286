"""Compaction: old observations become a list of facts, so that a long run stays inside the model's context. Pure.

Errors, identifiers and numbers stay verbatim; short texts stay; long texts go, and how many went is said. The order of
messages and their `tool_call_id`s stay, since endpoints insist on them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

from plansmith.contract.parse import ParseError, parse_json
from plansmith.contract.plan import Json, dumps, pointer_text

COMPACTED = "(moved to the list of facts)"
_SHORT_TEXT = 48
_TEXT_WITH_DIGIT = 160
_MAX_FACTS = 64


class Compacted(NamedTuple):
    """A shorter history."""

    history: list[dict[str, Any]]
    facts: list[str]
    """One line an observation that was moved."""


def compact(history: Sequence[dict[str, Any]]) -> Compacted:
    """Move all observations but those of the last turn into facts; no facts where there was nothing to move."""
    last = max((at for at, message in enumerate(history) if message["role"] == "assistant"), default=0)
    names = {
        call["id"]: f"{call['function']['name']}({call['function']['arguments']})"
        for message in history
        for call in message.get("tool_calls", ())
    }
    shorter: list[dict[str, Any]] = []
    facts: list[str] = []
    for at, message in enumerate(history):
        if message["role"] != "tool" or at > last or message["content"] == COMPACTED:
            shorter.append(message)
            continue
        facts.append(f"{names.get(message['tool_call_id'], 'a call')}: {fact_line(message['content'])}")
        shorter.append(message | {"content": COMPACTED})
    return Compacted(shorter, facts)


def fact_line(observation: str) -> str:
    """What stays of an observation: the error as it is, or the short values of a result with their places."""
    try:
        value = parse_json(observation)
    except ParseError:
        return _kept_text(observation)
    if isinstance(value, dict) and cast("dict[str, Json]", value).get("error") is True:
        return dumps(cast("Json", value))
    kept: list[str] = []
    left_out = 0
    for place, leaf in _leaves(value):
        if _stays(leaf) and len(kept) < _MAX_FACTS:
            kept.append(f"{place}={json.dumps(leaf, ensure_ascii=False)}" if place else dumps(leaf))
        else:
            left_out += 1
    more = [f"({left_out} further values left out)"] if left_out else []
    return ", ".join([*kept, *more]) or "(an empty result)"


def _kept_text(text: str) -> str:
    """Of an observation that was cut, and so is no JSON any more: its beginning."""
    return text if len(text) <= _TEXT_WITH_DIGIT else f"{text[:_TEXT_WITH_DIGIT]} ... ({len(text)} characters)"


def _stays(leaf: Json) -> bool:
    if not isinstance(leaf, str):
        return True
    return len(leaf) <= _SHORT_TEXT or (len(leaf) <= _TEXT_WITH_DIGIT and any(map(str.isdigit, leaf)))


def _leaves(value: Json, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str, Json]]:
    if isinstance(value, dict):
        for key, item in cast("dict[str, Json]", value).items():
            yield from _leaves(item, (*place, key))
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Json]", value)):
            yield from _leaves(item, (*place, index))
    else:
        yield pointer_text(*place), value
