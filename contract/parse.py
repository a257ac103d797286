"""Text to JSON: strict (RFC 8259, duplicate keys found, limits on size and depth) and lenient (repairs, all listed).

Strict parsing is the default everywhere. `parse_lenient` is for output of other systems; what it repaired is listed and
such text never counts as strictly parsed. Repairs are made by the json-repair library.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn, cast

from plansmith.contract.findings import Fault
from plansmith.contract.plan import Json

MAX_BYTES = 256 * 1024
"""Largest plan text in bytes of UTF-8."""
MAX_DEPTH = 64
"""Deepest nesting; `[]` has depth 1."""

_MAX_OPENERS = 4096
_FENCE = re.compile(r"```[a-zA-Z]*\n(.*?)```", re.DOTALL)
_SEVERAL = "several JSON values in the text; only the last was kept"
_OPENERS = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[{]')


class ParseError(ValueError):
    """Text or a value that cannot be read as a plan's JSON, with the fault that says why."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class ObjectWithDuplicates(dict[str, Any]):
    """An object whose text had a key more than once; the last value stands."""

    duplicates: tuple[str, ...] = ()


class Parsed(NamedTuple):
    """A strictly parsed value and where its text had duplicate keys (tokens of each place)."""

    value: Json
    duplicates: tuple[tuple[str | int, ...], ...] = ()
    maybe_infinite: bool = False
    """Whether a number may be too large for a float (it is then infinity in `value`)."""


class Repaired(NamedTuple):
    """A leniently parsed value and what was repaired to get it, one sentence each."""

    parsed: Parsed
    repairs: tuple[str, ...]


def parse_json(text: str, *, max_bytes: int | None = None) -> Json:
    """Strict JSON; objects with duplicate keys come back as `ObjectWithDuplicates`, which `check_plan` reports.

    Raises:
        ParseError: `too_large`, `not_json` or `too_deep`.

    """
    value, _ = _parse(text, max_bytes)
    return value


def parse_plan_text(text: str) -> Parsed:
    """Strict JSON of at most 256 KiB and depth 64, with the places of duplicate keys.

    Raises:
        ParseError: `too_large`, `not_json` or `too_deep`.

    """
    value, seen = _parse(text, MAX_BYTES)
    if text.count("[") + text.count("{") > MAX_DEPTH and deeper_than(value, MAX_DEPTH):
        raise _too_deep()
    if seen:
        return Parsed(plain(value), tuple(duplicate_places(value)), "infinite" in seen)
    return Parsed(value)


def parse_plan_value(value: Json) -> Parsed:
    """The same limits for a value that somebody else parsed; what JSON cannot hold is `not_json`.

    Raises:
        ParseError: `too_large`, `not_json` or `too_deep`.

    """
    if deeper_than(value, MAX_DEPTH):
        raise _too_deep()
    copy = plain(value)
    try:
        size = len(_ENCODER.encode(copy))
    except ValueError as error:
        raise ParseError(Fault.NOT_JSON, f"the plan holds a number that cannot be written: {error}.") from error
    if size > MAX_BYTES and (size := len(_as_utf8(copy))) > MAX_BYTES:
        raise _too_large(size)
    return Parsed(copy, tuple(duplicate_places(value)))


def _as_utf8(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _parse(text: str, max_bytes: int | None) -> tuple[Json, set[str]]:
    """The value, and what was seen on the way: `duplicates`, `infinite`."""
    # A character takes at most 4 bytes (3 for a lone surrogate, which encode() would refuse).
    if max_bytes is not None and len(text) * 4 > max_bytes:
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > max_bytes:
            raise _too_large(size)
    try:
        value = _decode(text)
    except json.JSONDecodeError as error:
        raise ParseError(
            Fault.NOT_JSON,
            f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}; expected JSON and nothing around it.",
        ) from error
    except RecursionError as error:
        raise _too_deep() from error
    return value, set(_SEEN.__dict__)


def _decode(text: str) -> Json:
    _SEEN.__dict__.clear()
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer with more digits than Python converts: a number that nothing here can hold
        decoder = json.JSONDecoder(
            object_pairs_hook=_object, parse_float=_float, parse_constant=_refuse_constant, parse_int=_integer
        )
        return decoder.decode(text)


def _integer(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:
        _SEEN.infinite = True
        return math.inf


def _float(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        _SEEN.infinite = True
    return number


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    node = dict(pairs)
    if len(node) == len(pairs):
        return node
    _SEEN.duplicates = True
    seen: set[str] = set()
    twice = [key for key, _ in pairs if key in seen or seen.add(key)]
    marked = ObjectWithDuplicates(node)
    marked.duplicates = tuple(dict.fromkeys(twice))
    return marked


def _refuse_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is not a JSON value", name, 0)


_ENCODER = json.JSONEncoder(allow_nan=False)
_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_refuse_constant)
_SEEN = threading.local()
"""What this thread's parse met (duplicate keys, infinite numbers): the decoder's hooks have no cheaper way to tell."""


def _too_large(size: int) -> ParseError:
    return ParseError(Fault.TOO_LARGE, f"the plan has {size} bytes; at most {MAX_BYTES} are read.")


def _too_deep() -> ParseError:
    return ParseError(Fault.TOO_DEEP, f"the plan is nested deeper than {MAX_DEPTH} levels.")


def deeper_than(value: Json, limit: int) -> bool:
    """Whether a value nests deeper than `limit` (`[]` has depth 1); a cycle counts as endlessly deep."""
    level: list[Json] = [value] if isinstance(value, (dict, list, tuple)) else []
    for _ in range(limit):
        following: dict[int, Json] = {}  # by identity: a value that holds itself twice does not double each level
        for item in level:
            members = cast("dict[Any, Json]", item).values() if isinstance(item, dict) else cast("list[Json]", item)
            for member in members:
                if isinstance(member, (dict, list, tuple)):
                    following[id(cast("Json", member))] = member
        if not following:
            return False
        level = list(following.values())
    return bool(level)


def plain(value: Json) -> Json:
    """A copy in plain dicts, lists and scalars.

    Raises:
        ParseError: `not_json` for what JSON cannot hold (keys that are no strings, NaN, other types).

    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            raise ParseError(Fault.NOT_JSON, "the plan holds NaN, which JSON does not have.")
        return value
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[Json]", value)]
    if isinstance(value, dict):
        node = cast("dict[Any, Json]", value)
        for key in node:
            if not isinstance(key, str):
                raise ParseError(Fault.NOT_JSON, f"the plan has the key {key!r}; JSON keys are strings.")
        return {key: plain(item) for key, item in node.items()}
    raise ParseError(Fault.NOT_JSON, f"the plan holds a {type(value).__name__}, which JSON does not have.")


def duplicate_places(value: Json, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Tokens of every key that its object had twice."""
    if isinstance(value, dict):
        if isinstance(value, ObjectWithDuplicates):
            yield from ((*place, key) for key in value.duplicates)
        for key, item in cast("dict[str, Json]", value).items():
            yield from duplicate_places(item, (*place, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(cast("list[Json]", value)):
            yield from duplicate_places(item, (*place, index))


def parse_lenient(text: str) -> Repaired:
    """Read text that is almost a plan: code fences, prose around it, single quotes, trailing commas, missing brackets.

    Raises:
        ParseError: nothing like an array is left, or the result is over the limits.

    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise _too_large(size)
    repairs: list[str] = []
    for cut, repair in ((_inside_fence, "code fence removed"), (_inside_prose, "text around the array removed")):
        inner = cut(text)
        if inner != text:
            text = inner
            repairs.append(repair)
    try:
        return Repaired(parse_plan_text(text), tuple(repairs))
    except ParseError as error:
        if error.fault is not Fault.NOT_JSON:
            raise
    value, more = _repair(text)
    return Repaired(parse_plan_value(value), (*repairs, *more))


def _inside_fence(text: str) -> str:
    fences = _FENCE.findall(text)
    return fences[0] if len(fences) == 1 else text


def _inside_prose(text: str) -> str:
    start, end = text.find("["), text.rfind("]")
    inner = text[start : end + 1] if 0 <= start < end else text[max(start, 0) :]
    return text if inner == text.strip() else inner


def _repair(text: str) -> tuple[Json, tuple[str, ...]]:
    import json_repair

    if sum(1 for match in _OPENERS.finditer(text) if match[0][0] != '"') > _MAX_OPENERS:
        raise ParseError(Fault.NOT_JSON, "not JSON, and too many brackets to repair.")
    try:
        value, log = cast("tuple[Json, list[dict[str, str]]]", json_repair.repair_json(text, logging=True))
    except Exception as error:  # a library's failure on hostile text is a finding, not a crash
        raise ParseError(Fault.NOT_JSON, f"not JSON, and not repairable: {type(error).__name__}.") from error
    if not isinstance(value, list | dict):
        raise ParseError(Fault.NOT_JSON, "not JSON, and nothing like an array was found in the text.")
    notes = dict.fromkeys(_SEVERAL if "returned early" in entry["text"] else entry["text"] for entry in log)
    notes.pop("There were no more elements, returning the element without the array", None)
    return cast("Json", value), tuple(notes) or ("quotes, commas or brackets mended",)
