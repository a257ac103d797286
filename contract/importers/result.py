"""What all importers share: the result with its notes, reading JSON, and guards against values that are no plain JSON.

An importer changes as little as it can. What it has to drop or to map is a note, so that nothing happens silently.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

from pydantic import ValidationError

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.errors import CatalogError, InputError
from plansmith.contract.plan import Json

MAX_DEPTH = 64
"""Deepest nesting of an imported value, as for plans."""
MAX_BYTES = 512 * 1024 * 1024
"""Largest file that is read."""
_MAX_DIGITS = 400
"""Longest integer; a JSON number of more digits is no number for anybody else."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """A catalog, and one sentence for each kind of thing that was dropped, mapped or left open on the way."""

    catalog: Catalog
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Notes:
    """Collects notes; the same note from many places becomes one line with a count."""

    _places: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def add(self, message: str, where: str) -> None:
        """Note `message` for one place, e.g. `worker 'x', /args/properties/day`."""
        self._places.setdefault(message, []).append(where)

    def lines(self) -> tuple[str, ...]:
        """One line a message: where it holds, and how often."""
        return tuple(
            f"{places[0]}: {message}" + (f" ({len(places) - 1} more like this)" if len(places) > 1 else "")
            for message, places in self._places.items()
        )


def read_text(path: str | Path) -> str:
    """Text of a UTF-8 file (a byte-order mark is skipped); raises `InputError` that names the file."""
    try:
        if Path(path).stat().st_size > MAX_BYTES:
            raise InputError(f"{str(path)!r} is larger than {MAX_BYTES // 2**20} MiB, which no catalog should be.")
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{str(path)!r} is not UTF-8: {error.reason} at byte {error.start}.") from error
    except ValueError as error:
        raise InputError(f"{str(path)!r} is not a path: {error}.") from error


def read_json(path: str | Path) -> Json:
    """JSON of a file; a file of JSON lines (one object a line) comes back as a list.

    Raises:
        InputError: the file is absent, not UTF-8, or neither JSON nor JSON lines.

    """
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        if len(lines) < 2 or not _starts_as_lines(lines[0][1]):
            raise InputError(f"{str(path)!r} is not JSON: {error}.") from error
    return [_parse_line(path, number, line) for number, line in lines]


def parse_json(text: str) -> Json:
    """Strict JSON (no NaN, no Infinity, no key twice in an object); raises `ValueError`."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except RecursionError as error:
        raise ValueError(f"nested deeper than {MAX_DEPTH}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"an object has the key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return made


def _starts_as_lines(line: str) -> bool:
    try:
        return isinstance(parse_json(line), dict)
    except ValueError:
        return False


def _parse_line(path: str | Path, number: int, line: str) -> Json:
    try:
        return parse_json(line)
    except ValueError as error:
        raise InputError(f"{str(path)!r}, line {number}, is not JSON: {error}.") from error


def require_plain_json(value: Json, what: str) -> None:
    """Refuse what no JSON file can hold, or nobody can use: NaN, lone surrogates, other types, deep nesting.

    Raises:
        InputError: the value is not plain JSON; the message says what was found.

    """
    pending: list[tuple[Any, int]] = [(value, 0)]
    while pending:
        node, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise InputError(f"{what} is nested deeper than {MAX_DEPTH}, which no worker needs.")
        if isinstance(node, dict):
            for key, item in cast("dict[Any, Any]", node).items():
                pending += [(key if isinstance(key, str) else {key}, depth), (item, depth + 1)]
        elif isinstance(node, list):
            pending += [(item, depth + 1) for item in cast("list[Any]", node)]
        elif (reason := _scalar_problem(node)) is not None:
            raise InputError(f"{what} is not plain JSON: {reason}.")


def _scalar_problem(node: Any) -> str | None:
    if node is None or isinstance(node, bool):
        return None
    if isinstance(node, str):
        bad = next((c for c in node if "\ud800" <= c <= "\udfff"), None)
        return None if bad is None else f"a text holds the lone surrogate {bad!r}"
    if isinstance(node, int):
        return None if abs(node) < 10**_MAX_DIGITS else f"an integer has more than {_MAX_DIGITS} digits"
    if isinstance(node, float):
        return None if math.isfinite(node) else f"{node} is no JSON number"
    return f"found a {type(node).__name__}"


def entries(value: Json, what: str) -> list[dict[str, Json]]:
    """The value as a non-empty list of objects; raises `InputError` that names the first entry that is none."""
    if not isinstance(value, list) or not value:
        raise InputError(f"expected a non-empty list of {what}, found {short(value)}.")
    for index, entry in enumerate(cast("list[Json]", value)):
        if not isinstance(entry, dict):
            raise InputError(f"entry {index} of the {what} must be an object, found {short(entry)}.")
    return cast("list[dict[str, Json]]", value)


def build_catalog(
    name: str, found: Iterable[dict[str, Json]], convert: Callable[[dict[str, Json]], Worker], notes: Notes
) -> ImportResult:
    """Convert entry by entry and build the catalog; problems of all entries are reported together.

    Raises:
        CatalogError: entries that cannot be converted, or workers that cannot form a catalog.

    """
    workers: list[Worker] = []
    problems: list[str] = []
    for index, entry in enumerate(found):
        try:
            workers.append(convert(entry))
        except InputError as error:
            problems.append(f"entry {index}: {error}")
    if problems:
        raise CatalogError(f"catalog {name!r} cannot be imported: " + "; ".join(problems))
    return ImportResult(make_catalog(name, workers), notes.lines())


def make_catalog(name: str, workers: Iterable[Worker]) -> Catalog:
    """The catalog of these workers; raises `CatalogError` also for a name that no catalog file may have."""
    if not 1 <= len(name) <= 128:
        raise CatalogError(f"a catalog's name has 1 to 128 characters, found {len(name)}. Give it another one.")
    require_plain_json(name, "the catalog's name")
    return Catalog(name, list(workers))


def make_worker(**values: Any) -> Worker:
    """A worker, with pydantic's findings as one `InputError`."""
    try:
        return Worker(**values)
    except ValidationError as error:
        faults = "; ".join(f"{'/'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise InputError(f"worker {values.get('name')!r}: {faults}") from error


def require_name(entry: Mapping[str, Json]) -> str:
    """The entry's name, unchanged; raises `InputError` where it is absent or no text."""
    name = entry.get("name")
    if not isinstance(name, str):
        raise InputError(f"expected a text under 'name', found {short(name)}")
    return name


def description_of(entry: Mapping[str, Json], name: str) -> str:
    """The entry's description, empty where it has none; raises `InputError` where it is no text."""
    description = entry.get("description")
    if description is not None and not isinstance(description, str):
        raise InputError(f"the description of {name!r} must be a text, found {short(description)}")
    return description or ""


def note_dropped(entry: Mapping[str, Json], kept: Iterable[str], name: str, notes: Notes) -> None:
    """Note every key of an entry that the catalog has no place for."""
    for key in entry.keys() - set(kept):
        notes.add(f"{key!r} is dropped: a catalog has no place for it", f"worker {name!r}")


def short(value: Any) -> str:
    """A value for a message, at most 80 characters."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
