"""Advice on a catalog: what is allowed but makes planning, decoding or checking weaker.

Reads a `Catalog`, writes nothing. Every note is a warning: a catalog with notes works. What a catalog may not be at all
is an error in `catalog.py`. The facts on the grammar are those of `grammar.py`: it writes only declared properties,
and it leaves lengths, patterns, formats and ranges to the check after decoding. Not covered: whether a description is
true.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

import jsonschema_rs

from plansmith.contract.catalog import Catalog, Effect, Schema, Worker
from plansmith.contract.importers.schemas import subschemas
from plansmith.contract.plan import pointer_text
from plansmith.contract.prompt import render_catalog
from plansmith.contract.schema import ALL_TYPES, types_of

MAX_SENTENCE = 160
"""Longest first sentence of a description in characters; all of it goes into every prompt."""
MAX_ENUM = 100
"""Most values of an enum; all of them go into every prompt and into the grammar."""
MAX_PROMPT = 16_000
"""Longest prompt of a catalog in characters (about 4,000 tokens of English)."""
SIMILAR = 0.8
"""Share of equal characters (`difflib` ratio) from which two words of names count as similar: `order` and `orders`."""

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n")
_UNCHECKED = (
    *("minLength", "maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("multipleOf", "uniqueItems", "minContains", "maxContains", "contains", "minProperties", "maxProperties"),
    *("patternProperties", "propertyNames", "dependentRequired", "dependentSchemas", "not", "if"),
)


class LintCode(StrEnum):
    """What a note is about."""

    NAME_STYLE = "name_style"
    """the name is not snake_case with a domain prefix (`fin_get_quote`)"""
    CONFUSABLE_NAMES = "confusable_names"
    """two names differ so little that a model may take one for the other"""
    NO_DESCRIPTION = "no_description"
    """the planner has only the name to choose by"""
    LONG_SENTENCE = "long_sentence"
    """the first sentence of the description is long, and it stands in every prompt"""
    LONG_PROMPT = "long_prompt"
    """all workers together make a long prompt"""
    UNTYPED = "untyped"
    """a parameter or its items may be anything, so neither grammar nor check can help"""
    OPEN_OBJECT = "open_object"
    """an object takes keys that are not declared, and the grammar cannot write those"""
    DOLLAR_PROPERTY = "dollar_property"
    """a declared property starts with `$`, which is kept for operators: it can be written in `$literal` only"""
    UNDECLARED_REQUIRED = "undeclared_required"
    """a required property is not declared: no value can be valid, or its type is unknown"""
    BAD_DEFAULT = "bad_default"
    """a default is not valid for its own parameter: a planner that writes it out fails the check"""
    LARGE_ENUM = "large_enum"
    """an enum has very many values"""
    UNCHECKED_KEYWORD = "unchecked_keyword"
    """keywords that the grammar leaves out; the check after decoding holds them"""
    NO_RETURNS = "no_returns"
    """no result schema: references to this worker's result cannot be checked"""
    OPEN_RETURNS = "open_returns"
    """the result may hold more than its schema says: a wrong reference is a warning only"""
    UNGUARDED_WRITE = "unguarded_write"
    """a worker that changes the world has no permission, or is not idempotent"""


@dataclass(frozen=True, slots=True)
class LintNote:
    """One piece of advice."""

    code: LintCode
    worker: str | None
    """Name of the worker; None where the note is about the whole catalog."""
    path: str
    """JSON Pointer into the worker, e.g. `/args/properties/city`; empty for the worker as a whole."""
    message: str
    """What was found and what to do."""

    def __str__(self) -> str:
        where = f"{self.worker}{' ' + self.path if self.path else ''}: " if self.worker is not None else ""
        return f"{where}{self.message} [{self.code}]"


def lint_catalog(catalog: Catalog, *, max_prompt: int = MAX_PROMPT) -> list[LintNote]:
    """Advice on a catalog, worker by worker in their order, then on the whole.

    Args:
        catalog: what to look at.
        max_prompt: longest prompt (instruction and signatures, without a query) that gives no note, in characters.

    """
    notes = [note for worker in catalog.workers for note in _worker_notes(worker)]
    notes += _confusable(catalog.names)
    size = len(render_catalog(catalog))
    if size > max_prompt:
        message = (
            f"the prompt of all {len(catalog.workers)} workers has {size:,} characters, more than {max_prompt:,}. "
            "Shorten descriptions and schemas, or plan over a subset."
        )
        notes.append(LintNote(LintCode.LONG_PROMPT, None, "", message))
    return notes


def _worker_notes(worker: Worker) -> Iterator[LintNote]:
    yield from _name_and_description(worker)
    yield from _args_notes(worker)
    yield from _returns_notes(worker)
    risks = ["no permission is asked for"] if worker.permission is None else []
    risks += [] if worker.idempotent else ["a failed call cannot be repeated safely (it is not idempotent)"]
    if worker.effect is Effect.WRITE and risks:
        message = f"it may change the world, and {', and '.join(risks)}. Set 'effect', 'permission' and 'idempotent'."
        yield LintNote(LintCode.UNGUARDED_WRITE, worker.name, "/effect", message)


def _name_and_description(worker: Worker) -> Iterator[LintNote]:
    if not _NAME.fullmatch(worker.name):
        message = "the name is not snake_case with a domain prefix, such as 'fin_get_quote'."
        yield LintNote(LintCode.NAME_STYLE, worker.name, "/name", message)
    text = worker.description.strip()
    sentence = _SENTENCE_END.split(text, maxsplit=1)[0]
    if not text:
        message = "there is no description, so a planner has only the name to choose by. Add one sentence."
        yield LintNote(LintCode.NO_DESCRIPTION, worker.name, "/description", message)
    elif len(sentence) > MAX_SENTENCE:
        message = (
            f"the first sentence of the description has {len(sentence)} characters and stands in every prompt. "
            f"Say what the worker does in {MAX_SENTENCE}, and the rest after a full stop."
        )
        yield LintNote(LintCode.LONG_SENTENCE, worker.name, "/description", message)


def _args_notes(worker: Worker) -> Iterator[LintNote]:
    for path, schema in _walk(worker.args, "/args"):
        if isinstance(schema, dict):
            for code, message in _node_notes(cast("dict[str, Any]", schema), worker.args, is_root=path == "/args"):
                yield LintNote(code, worker.name, path, message)
        if _is_value(path) and types_of(schema, worker.args) == ALL_TYPES:
            message = (
                "it has no type, so the check accepts anything, and the grammar writes no objects. Declare a type."
            )
            yield LintNote(LintCode.UNTYPED, worker.name, path, message)


def _walk(schema: Schema, path: str) -> Iterator[tuple[str, Any]]:
    """Every schema inside one, each once, with its pointer; references are not followed (their targets are inside)."""
    pending: list[tuple[str, Any]] = [(path, schema)]
    while pending:
        place, node = pending.pop()
        yield place, node
        if isinstance(node, dict):
            inner = [(place + pointer_text(*keys), child) for keys, child in subschemas(cast("dict[str, Any]", node))]
            pending += reversed(inner)


def _is_value(path: str) -> bool:
    """Whether the schema at this path describes a value by itself (an alternative or a condition does not)."""
    tokens = path.split("/")
    return tokens[-1] == "items" or (len(tokens) > 1 and tokens[-2] in ("properties", "prefixItems"))


def _node_notes(node: dict[str, Any], root: Schema, *, is_root: bool) -> Iterator[tuple[LintCode, str]]:
    properties = cast("dict[str, Any]", node.get("properties", {}))
    if _is_open_object(node, is_root=is_root):
        message = "it takes keys that are not declared; the grammar writes declared keys or a reference. Declare them."
        yield LintCode.OPEN_OBJECT, message
    for name in properties:
        if name.startswith("$"):
            yield LintCode.DOLLAR_PROPERTY, f"property {name!r} starts with '$' and can be written in '$literal' only."
    missing = [name for name in cast("list[str]", node.get("required", [])) if name not in properties]
    if missing and ("properties" in node or is_root):
        names, closed = ", ".join(map(repr, missing)), node.get("additionalProperties") is False
        effect = "no value can be valid" if closed else "its type is unknown"
        yield LintCode.UNDECLARED_REQUIRED, f"{names} is required but not declared: {effect}. Declare it."
    if _lacks_items(node):
        yield LintCode.UNTYPED, "it is an array without 'items', so its items may be anything. Declare them."
    if len(cast("list[Any]", node.get("enum", []))) > MAX_ENUM:
        count = len(node["enum"])
        yield LintCode.LARGE_ENUM, f"the enum has {count} values, all of them in every prompt. Take a string, or fewer."
    unchecked = [key for key in _UNCHECKED if key in node]
    if "format" in node:
        message = f"the format {node['format']!r} is for readers only: neither the grammar nor the check holds it."
        yield LintCode.UNCHECKED_KEYWORD, message
    if unchecked:
        yield LintCode.UNCHECKED_KEYWORD, f"{', '.join(unchecked)}: not in the grammar, checked after decoding only."
    if "default" in node and not _is_valid(node["default"], node, root):
        yield LintCode.BAD_DEFAULT, f"the default {node['default']!r:.60} is not valid here. Allow it, or leave it out."


def _is_open_object(node: dict[str, Any], *, is_root: bool) -> bool:
    declared = node.get("type")
    is_object = declared == "object" or (isinstance(declared, list) and "object" in declared)
    if not is_object or (node.keys() & {"$ref", "allOf", "anyOf", "oneOf"} and not is_root):
        return False
    extra = node.get("additionalProperties")
    return extra is not False if extra is not None or is_root else not node.get("properties")


def _lacks_items(node: dict[str, Any]) -> bool:
    declared = node.get("type")
    is_array = declared == "array" or (isinstance(declared, list) and "array" in declared)
    return is_array and node.keys().isdisjoint({"items", "prefixItems", "$ref", "allOf", "anyOf", "oneOf"})


def _is_valid(value: Any, node: dict[str, Any], root: Schema) -> bool:
    definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
    try:
        return jsonschema_rs.Draft202012Validator({**node, **definitions}).is_valid(value)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
        return True  # a reference to elsewhere in the root: not looked at here


def _returns_notes(worker: Worker) -> Iterator[LintNote]:
    if worker.returns is None:
        message = "there is no 'returns', so references to its result cannot be checked. Declare the result."
        yield LintNote(LintCode.NO_RETURNS, worker.name, "/returns", message)
        return
    for path, schema in _walk(worker.returns, "/returns"):
        if isinstance(schema, dict) and _is_open_result(cast("dict[str, Any]", schema)):
            message = "its objects may hold more than is declared, so a wrong reference is a warning only. Close it "
            message += "('additionalProperties': false) where the result has nothing else."
            yield LintNote(LintCode.OPEN_RETURNS, worker.name, path, message)
            return


def _is_open_result(node: dict[str, Any]) -> bool:
    declared = node.get("type")
    is_object = declared == "object" or (isinstance(declared, list) and "object" in declared)
    return is_object and node.get("additionalProperties") is not False


def _confusable(names: Sequence[str]) -> Iterator[LintNote]:
    """Pairs of names with the same words (whatever case, punctuation, order), or that differ in one similar word."""
    words = [re.findall(r"[^\W_]+", _CAMEL.sub(" ", name).lower()) for name in names]
    for index, name in enumerate(names):
        for other_index in range(index):
            if _is_confusable(words[index], words[other_index]):
                message = f"the name is easily taken for {names[other_index]!r}. Let them differ by a word of meaning."
                yield LintNote(LintCode.CONFUSABLE_NAMES, name, "/name", message)


def _is_confusable(words: list[str], others: list[str]) -> bool:
    if len(words) != len(others):
        return "".join(words) == "".join(others)
    different = [(word, other) for word, other in zip(words, others, strict=True) if word != other]
    if len(different) == 1:
        return difflib.SequenceMatcher(None, *different[0], autojunk=False).ratio() >= SIMILAR
    return sorted(words) == sorted(others) if words else False
