"""Queries from the user's own files: JSONL with a named key, CSV or TSV with a named column, or one query a line.

Reads bytes, so that one bad row never hides the others: what is no UTF-8, no JSON, no CSV, or holds no query becomes a
reject that names file and line. A quote that is never closed spoils its own line only. A file without a usable query
is not refused here: other sources may have some.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

from plansmith.contract.errors import InputError
from plansmith.contract.parse import ParseError, parse_json
from plansmith.contract.plan import Json
from plansmith.contract.records import Query, Reject
from plansmith.data.query_sources.base import Found, rejected, text_id
from plansmith.data.teacher_config import LogFormat, LogQueries

_SUFFIXES = {".jsonl": LogFormat.JSONL, ".csv": LogFormat.CSV, ".tsv": LogFormat.TSV}
_MAX_LINES = 200
"""Longest CSV record, in lines; an unclosed quote swallows the rest of the file otherwise."""
_BOM = b"\xef\xbb\xbf"


class _Problem(NamedTuple):
    """Why a row has no query."""

    reason: str
    detail: str
    shown: str = ""
    """What is left of the row."""


_Row = tuple[int, "str | _Problem"]
"""Line number from 1, and the query or why there is none."""


def read_log(config: LogQueries) -> Found:
    """Queries of a file.

    Raises:
        InputError: the file cannot be read, or a CSV has no such column.

    """
    path = config.path
    if not path.is_file():
        raise InputError(f"queries {str(path)!r} cannot be read: there is no such file.")
    return Found(path.name, "", _rows(config))


def _rows(config: LogQueries) -> Iterator[Query | Reject]:
    for number, found in islice(_read(config), config.limit):
        problem = found if isinstance(found, _Problem) else _unusable(found, config)
        if problem is not None:
            yield rejected(
                row_id=f"{config.path.stem}-line-{number}",
                query=problem.shown,
                source=config.path.name,
                reason=problem.reason,
                detail=f"{config.path}, line {number}: {problem.detail}",
            )
            continue
        query = cast("str", found).strip()
        yield Query(id=text_id(config.path.stem, query), query=query, source=config.path.name, language=config.language)


def _unusable(query: str, config: LogQueries) -> _Problem | None:
    if not query.strip():
        return _Problem("empty", "the query is empty")
    if len(query) > config.max_characters:
        return _Problem("too_long", f"{len(query)} characters, at most {config.max_characters} are kept", query[:200])
    try:
        query.encode()
    except UnicodeEncodeError:
        return _Problem("not_utf8", "the query holds bytes that are no UTF-8, or half a surrogate pair", query)
    return None


def _read(config: LogQueries) -> Iterator[_Row]:
    kind = config.format
    if kind is LogFormat.AUTO:
        kind = _SUFFIXES.get(config.path.suffix.lower(), LogFormat.TEXT)
    lines = _lines(config.path)
    if kind is LogFormat.JSONL:
        return ((number, _from_json(line, config.field)) for number, line in lines if line.strip())
    if kind is LogFormat.TEXT:
        return ((number, line) for number, line in lines if line.strip())
    return _from_csv(lines, config, "\t" if kind is LogFormat.TSV else ",")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines without their end; bytes that are no UTF-8 become lone surrogates, which `_unusable` finds."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                content = line.removeprefix(_BOM) if number == 1 else line
                yield number, content.decode("utf-8", "surrogateescape").rstrip("\r\n")
    except OSError as error:
        raise InputError(f"queries {str(path)!r} cannot be read: {error.strerror or error}.") from error


def _from_json(line: str, field: str) -> str | _Problem:
    if any("\udc80" <= char <= "\udcff" for char in line):
        return _Problem("not_utf8", "the line holds bytes that are no UTF-8", line[:200])
    try:
        value = parse_json(line)
    except ParseError as error:
        return _Problem("not_json", str(error), line[:200])
    found = _at(value, field)
    if not isinstance(found, str):
        kind = "nothing" if found is None else type(found).__name__
        return _Problem("no_query", f"expected text under {field!r}, found {kind}", line[:200])
    return found


def _at(value: Json, field: str) -> Any:
    """The value under a key, or under a path of keys and indices; None where there is none."""
    if isinstance(value, dict) and field in value:
        return cast("dict[str, Any]", value)[field]
    at: Any = cast("Any", value)
    for token in field.split("."):
        at = _member(at, token)
    return at


def _member(value: Json, token: str) -> Any:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).get(token)
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return items[int(token)] if token.isdecimal() and int(token) < len(items) else None


def _from_csv(lines: Iterator[tuple[int, str]], config: LogQueries, delimiter: str) -> Iterator[_Row]:
    records = _records(lines, delimiter)
    header = next(records, None)
    if header is None or isinstance(header[1], _Problem):
        raise InputError(f"{str(config.path)!r}: expected a first line with the names of the columns.")
    names = [name.strip() for name in header[1]]
    if names.count(config.field) != 1:
        raise InputError(
            f"{str(config.path)!r}: expected exactly one column {config.field!r}, found {', '.join(map(repr, names))}. "
            "Name the right one as 'field'."
        )
    column = names.index(config.field)
    for number, record in records:
        if isinstance(record, _Problem):
            yield number, record
        elif len(record) != len(names):
            shown = delimiter.join(record)[:200]
            yield number, _Problem("bad_csv", f"{len(record)} fields, but the header has {len(names)}", shown)
        else:
            yield number, record[column]


def _records(lines: Iterator[tuple[int, str]], delimiter: str) -> Iterator[tuple[int, list[str] | _Problem]]:
    """Records of a CSV; where one cannot be read its first line alone is given up."""
    ahead: deque[tuple[int, str]] = deque()
    while True:
        ahead.extend(islice(lines, _MAX_LINES - len(ahead)))
        if not ahead:
            return
        number, first = ahead[0]
        if not first.strip():
            ahead.popleft()
            continue
        reader = csv.reader((line + "\n" for _, line in ahead), delimiter=delimiter, strict=True)
        try:
            record: list[str] | _Problem = next(reader)
            taken = reader.line_num
        except csv.Error as error:
            record, taken = _Problem("bad_csv", f"not CSV: {error}", first[:200]), 1
        for _ in range(taken):
            ahead.popleft()
        yield number, record
