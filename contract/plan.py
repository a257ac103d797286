"""Plans: steps, operators, dependencies, canonical text and one-pass reference resolution.

A plan is a JSON array of steps, `[{"type": worker, "args": {...}, "after": [...]}, ...]`. Three operators may
stand where an argument value may stand: `$from` (RFC 6901 pointer into the results), `$format` (template) and
`$literal` (JSON kept as it is). Everything here is pure. The checker (`check.py`) decides whether a plan is valid;
the functions here assume shapes, not validity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from plansmith.contract.errors import ResolutionError

if TYPE_CHECKING:
    from plansmith.contract.catalog import Catalog

Json = Any
"""Any JSON value as Python's `json` reads it."""

FROM, FORMAT, LITERAL, WITH = "$from", "$format", "$literal", "with"

_STEP_INDEX = re.compile(r"0|[1-9][0-9]*")
_BAD_ESCAPE = re.compile(r"~(?![01])")
_FIELD = re.compile(r"\{\{|\}\}|\{(0|[1-9][0-9]*)\}|[{}]")
_ESCAPED = re.compile("[\x7f\ud800-\udfff]")


class Step(NamedTuple):
    """One call: a worker's name, its arguments, and optional order without data."""

    type: str
    args: dict[str, Json]
    after: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Json]:
        step: dict[str, Json] = {"type": self.type, "args": self.args}
        return step | {"after": list(self.after)} if self.after else step


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan whose shape is known to be right; step *i*'s result is `context[i]`."""

    steps: tuple[Step, ...]

    @classmethod
    def from_json(cls, value: Json) -> Plan:
        """Build from a JSON array of well-shaped steps; raises `KeyError`/`TypeError` on other shapes (check first)."""
        return cls(tuple([Step(s["type"], s["args"], _indices(s["after"]) if "after" in s else ()) for s in value]))

    def to_json(self) -> list[dict[str, Json]]:
        return [step.to_json() for step in self.steps]

    def canonical(self, catalog: Catalog | None = None) -> str:
        """Canonical text; without a catalog (or for an unknown worker) arguments keep their order."""
        return dumps(canonical_json(self.to_json(), catalog))

    def dependencies(self) -> tuple[frozenset[int], ...]:
        """For each step, the indices of the steps it needs: its references and its `after`."""
        return tuple(
            frozenset(ref.step for ref in references(step.args)) | frozenset(step.after) for step in self.steps
        )


def _indices(after: list[int | float]) -> tuple[int, ...]:
    return tuple(int(index) for index in after)


class Pointer(NamedTuple):
    """A parsed `$from`: the step that it points to and the unescaped tokens below that step's result."""

    step: int
    tokens: tuple[str, ...]


def parse_pointer(text: Json) -> Pointer | None:
    """Parse a reference pointer; None where it is not `/STEP[/token...]` (empty, no index, leading zeros, `-`)."""
    return _parse_pointer(text) if isinstance(text, str) else None


@lru_cache(maxsize=4096)
def _parse_pointer(text: str) -> Pointer | None:
    if not text.startswith("/") or _BAD_ESCAPE.search(text):
        return None
    head, *rest = text[1:].split("/")
    if not _STEP_INDEX.fullmatch(head) or len(head) > 9 or "-" in rest:
        return None
    return Pointer(int(head), tuple(token.replace("~1", "/").replace("~0", "~") for token in rest))


def pointer_text(*tokens: str | int) -> str:
    """RFC 6901 text of the tokens: `pointer_text(0, "a/b")` is `/0/a~1b`."""
    return "".join("/" + str(token).replace("~", "~0").replace("/", "~1") for token in tokens)


class Reference(NamedTuple):
    """A reference found in arguments: its own place (tokens below the value scanned) and where it points."""

    place: tuple[str | int, ...]
    step: int
    tokens: tuple[str, ...]


def references(value: Json, place: tuple[str | int, ...] = ()) -> Iterator[Reference]:
    """Every well-formed `$from` in a value, nested ones and those of `$format` included; `$literal` is not scanned."""
    if isinstance(value, dict):
        node = cast("dict[str, Json]", value)
        if LITERAL in node:
            return
        if FROM in node:
            pointer = parse_pointer(node[FROM])
            if pointer is not None:
                yield Reference(place, *pointer)
            return
        for key, item in node.items():
            yield from references(item, (*place, key))
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Json]", value)):
            yield from references(item, (*place, index))


def is_operator(value: Json) -> bool:
    """Whether a value is an object with a key that starts with `$`."""
    return isinstance(value, dict) and any(k.startswith("$") for k in cast("dict[str, Json]", value))


class TemplateError(ValueError):
    """A `$format` template has a stray brace or a field without a value."""


def template_fields(template: str) -> list[int]:
    """Indices of the fields of a `$format` template in order; raises `TemplateError` on a stray brace."""
    fields: list[int] = []
    for match in _FIELD.finditer(template):
        if match[0] in "{}":
            raise TemplateError(f"stray {match[0]!r} at character {match.start()}; write {match[0] * 2!r} for a brace")
        if match[1] is not None:
            fields.append(int(match[1]) if len(match[1]) < 9 else 10**9)
    return fields


def fill_template(template: str, values: Sequence[str]) -> str:
    """Fill `{n}` with `values[n]` in one pass; values are never scanned for fields."""
    if any(index >= len(values) for index in template_fields(template)):
        raise TemplateError(f"a field of {template!r} has no value; 'with' holds {len(values)}")
    return _FIELD.sub(lambda m: values[int(m[1])] if m[1] is not None else m[0][0], template)


def resolve(value: Json, context: Sequence[Json]) -> Json:
    """Replace operators by values in one pass; what is put in is never scanned again.

    Args:
        value: arguments (or any part of them).
        context: results by step index; step *i*'s result is `context[i]`.

    Raises:
        ResolutionError: a pointer has no value, or a template cannot be filled.

    """
    if isinstance(value, list):
        return [resolve(item, context) for item in cast("list[Json]", value)]
    if not isinstance(value, dict):
        return value
    node = cast("dict[str, Json]", value)
    if FROM in node:
        return lookup(node[FROM], context)
    if LITERAL in node:
        return node[LITERAL]
    if FORMAT in node:
        try:
            return fill_template(node[FORMAT], [_as_text(resolve(item, context)) for item in node[WITH]])
        except TemplateError as error:
            raise ResolutionError(str(error)) from error
    return {key: resolve(item, context) for key, item in node.items()}


def lookup(pointer: Json, context: Sequence[Json]) -> Json:
    """The value at a reference pointer, with its JSON type."""
    parsed = parse_pointer(pointer)
    if parsed is None:
        raise ResolutionError(f"{pointer!r} is not a reference pointer; expected '/STEP/field/...'.")
    if parsed.step >= len(context):
        raise ResolutionError(f"{pointer!r} points to step {parsed.step}, but only {len(context)} steps have results.")
    value = context[parsed.step]
    for token in parsed.tokens:
        if isinstance(value, dict) and token in value:
            value = cast("dict[str, Json]", value)[token]
        elif isinstance(value, list) and _STEP_INDEX.fullmatch(token) and int(token) < len(cast("list[Json]", value)):
            value = cast("list[Json]", value)[int(token)]
        else:
            raise ResolutionError(f"{pointer!r} has no value: the result of step {parsed.step} has no {token!r} there.")
    return value


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else dumps(value)


def dumps(value: Json) -> str:
    """Compact JSON: separators `,` and `:`, non-ASCII characters as they are, numbers keep their kind.

    Lone surrogates (no UTF-8 has them) and DEL (llguidance refuses it raw) are escaped.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _ESCAPED.sub(lambda m: f"\\u{ord(m[0]):04x}", text)


def canonical_json(plan: Json, catalog: Catalog | None = None) -> list[dict[str, Json]]:
    """A plan with its keys in canonical order: `type, args, after`; `args` in the catalog's property order."""
    steps: list[dict[str, Json]] = []
    for step in plan:
        worker = catalog.get(step["type"]) if catalog is not None else None
        args = step["args"] if worker is None else worker.order_args(step["args"])
        ordered = {"type": step["type"], "args": args}
        steps.append(ordered | {"after": list(step["after"])} if step.get("after") else ordered)
    return steps
