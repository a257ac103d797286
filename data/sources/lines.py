"""Rows of a JSONL file by byte range: what is read anywhere is the same row, with the same line number.

`scan` looks at a file once, as bytes, and cuts it at line ends; `read_range` gives the rows of one piece, in this
process or another, so that a file of any size needs the memory of a few pieces only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.contract.errors import InputError
from plansmith.contract.records import Candidate, Reject
from plansmith.data.sources.base import bad_row, candidate_or_reject

LINES_AT_ONCE = 1000
_BYTES_AT_ONCE = 16 * 2**20
_BOM = b"\xef\xbb\xbf"
"""What some editors put before the first line."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """Whole lines of a file, one after the other."""

    path: Path
    start: int
    """Byte of the first line's start."""
    size: int
    """Bytes."""
    first_line: int
    """Number of the first line, counted from 1."""
    rows: int
    """Lines that are not blank."""
    part: str | None = None
    """The part of rows that name none."""


def scan(path: Path, *, part: str | None = None, lines_at_once: int = LINES_AT_ONCE) -> list[FileRange]:
    """Cut a file into pieces of so many lines, fewer where lines are long.

    Raises:
        InputError: the file cannot be read or holds no row.

    """
    ranges: list[FileRange] = []
    start = size = rows = 0
    first = 1
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                size += len(line)
                rows += not line.isspace()
                if number - first + 1 == lines_at_once or size >= _BYTES_AT_ONCE:
                    ranges.append(FileRange(path, start, size, first, rows, part))
                    start, size, rows, first = start + size, 0, 0, number + 1
    except OSError as error:
        raise InputError(f"data file {str(path)!r} cannot be read: {error.strerror or error}.") from error
    if size:
        ranges.append(FileRange(path, start, size, first, rows, part))
    if not any(piece.rows for piece in ranges):
        raise InputError(f"data file {str(path)!r} holds no rows; expected one object a line with 'query' and 'plan'.")
    return ranges


def read_range(piece: FileRange) -> Iterator[Candidate | Reject]:
    """The rows of a piece; a line that is no row is a reject `bad_row` with file and line.

    Raises:
        InputError: the file cannot be read.

    """
    yield from rows_in(piece, read_bytes(piece))


def read_bytes(piece: FileRange) -> bytes:
    """The bytes of a piece.

    Raises:
        InputError: the file cannot be read.

    """
    try:
        with piece.path.open("rb") as file:
            file.seek(piece.start)
            return file.read(piece.size)
    except OSError as error:
        raise InputError(f"data file {str(piece.path)!r} cannot be read: {error.strerror or error}.") from error


def rows_in(piece: FileRange, data: bytes) -> Iterator[Candidate | Reject]:
    """The rows of a piece whose bytes were read, here or elsewhere."""
    for number, line in enumerate(data.split(b"\n"), piece.first_line):
        if line.strip():
            defaults = {"id": f"{piece.path.stem}-{number}", "source": piece.path.name, "part": piece.part}
            line = line.removeprefix(_BOM) if number == 1 else line
            yield row_of_line(line, f"{piece.path}, line {number}", defaults)


def row_of_line(line: bytes, where: str, defaults: dict[str, Any]) -> Candidate | Reject:
    """One line as a row; `where` and `defaults` as in `candidate_or_reject`."""
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=unique_keys)
    except UnicodeDecodeError as error:
        return bad_row(None, where, f"not UTF-8: {error.reason} at byte {error.start} of the line", defaults)
    except (ValueError, RecursionError) as error:
        return bad_row(None, where, f"not JSON: {error}", defaults)
    return candidate_or_reject(value, where=where, defaults=defaults)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's members; raises `ValueError` where a key stands twice, since one of the two values would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for at, (key, _) in enumerate(pairs) if key in dict(pairs[:at]))
        raise ValueError(f"the key {twice!r} stands twice in its object")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
