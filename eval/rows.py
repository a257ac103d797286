"""Rows of JSONL files made by anything: read one at a time, each with its place, and found again by their offset.

Reads UTF-8 text with one JSON object a line; a byte order mark, CRLF, blank lines and a last line without newline are
fine. Everything else is refused with file and line: a row is never skipped. Files that were given by mistake (a folder,
a pipe, something compressed, CSV, one big JSON array) are named as what they are. Rows of more than 16 MiB are refused,
so that no file can fill the memory. `replaced_file` writes rows; `plansmith.contract.store` reads and appends our own
files.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from plansmith.contract.errors import InputError
from plansmith.contract.findings import Fault
from plansmith.contract.parse import ObjectWithDuplicates, ParseError, parse_json
from plansmith.contract.plan import Json
from plansmith.contract.store import StorageError

MAX_ROW_BYTES = 16 * 2**20
"""Longest row in bytes; a row of many plans of the largest size fits."""

_BOM = b"\xef\xbb\xbf"
_MAGIC = {
    b"\x1f\x8b": "compressed with gzip; unpack it first",
    b"BZh": "compressed with bzip2; unpack it first",
    b"\xfd7zXZ": "compressed with xz; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it first",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"PAR1": "a Parquet file; convert it to JSONL first",
    b"\xff\xfe": "UTF-16 text; convert it to UTF-8 first",
    b"\xfe\xff": "UTF-16 text; convert it to UTF-8 first",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One row with its place."""

    path: str
    number: int
    """Line number from 1."""
    offset: int
    """Where the line begins, in bytes."""
    values: dict[str, Json]

    @property
    def place(self) -> str:
        return f"{self.path}, line {self.number}"

    def refuse(self, reason: str) -> InputError:
        return InputError(f"{self.place}: {reason}")


def iter_rows(path: str | Path) -> Iterator[Row]:
    """The rows of a file, in order.

    Raises:
        InputError: the file is none of rows, or a line is no JSON object; the message names file and line.

    """
    for number, offset, line in _lines(path):
        yield _row(line, str(path), number, offset)


def iter_ids(path: str | Path, *, read_again: Callable[[str], bool]) -> Iterator[tuple[str, Row]]:
    """The id and row of every line, in order; errors as of `iter_rows` and `row_id`.

    Rows of which `read_again` says that the caller will read them by `row_at` are parsed with less care here, which is
    several times faster: what stands twice or is no JSON for other reasons than its grammar is found then.
    """
    for number, offset, line in _lines(path):
        values = _quickly(line)
        if values is not None:
            row = Row(str(path), number, offset, values)
            item = row_id(row)
            if read_again(item):
                yield item, row
                continue
        row = _row(line, str(path), number, offset)
        yield row_id(row), row


def _lines(path: str | Path) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and bytes of every line that is not blank."""
    with open_rows(path) as file:
        offset = 0
        for number in itertools.count(1):
            line = _line(file, str(path), number)
            if not line:
                return
            if line.removeprefix(_BOM if number == 1 else b"").strip():
                yield number, offset, line
            offset += len(line)


def _quickly(line: bytes) -> dict[str, Json] | None:
    """The object in a line; None where it takes a closer look."""
    try:
        value = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Json]", value) if isinstance(value, dict) else None


def row_at(file: BinaryIO, path: str | Path, offset: int, number: int) -> Row:
    """The row that begins at an offset of an open file.

    Raises:
        InputError: there is no such row (any more).

    """
    file.seek(offset)
    return _row(_line(file, str(path), number), str(path), number, offset)


@contextmanager
def open_rows(path: str | Path) -> Generator[BinaryIO]:
    """Open a file of rows for reading bytes.

    Raises:
        InputError: it cannot be read, is no regular file (a folder, a pipe), or is not text.

    """
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise InputError(f"{str(path)!r} is {_kind(mode)}; expected a JSONL file.")
        with Path(path).open("rb") as file:
            head = file.read(512)
            if what := next((what for magic, what in _MAGIC.items() if head.startswith(magic)), None):
                raise InputError(f"{str(path)!r} is {what}; expected a JSONL file.")
            if b"\0" in head:
                raise InputError(f"{str(path)!r} is a binary file; expected a JSONL file.")
            file.seek(0)
            yield file
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from error


def row_id(row: Row) -> str:
    """The id of a row as text: a string, or an integer in decimal digits, so that 1 and "1" are the same id.

    Raises:
        InputError: there is none, it is of another type, or it holds half a character.

    """
    item = row.values.get("id")
    if isinstance(item, bool) or not isinstance(item, str | int):
        found = "none" if "id" not in row.values else f"{item!r:.60}"
        raise row.refuse(f"expected an 'id' that is a string or an integer, found {found}.")
    text = str(item)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise row.refuse(
            f"the id {text!r:.60} holds a lone surrogate, which is no character; no file holds it."
        ) from None
    return text


@contextmanager
def replaced_file(path: str | Path) -> Generator[TextIO]:
    """A text file to write; it takes the place of the earlier one as a whole when the block ends without an error.

    Raises:
        StorageError: it could not be written; the earlier file is kept.

    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("w", encoding="utf-8", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError as error:
        raise StorageError(f"cannot write {str(path)!r}: {error.strerror or error}. Earlier output is kept.") from error
    finally:
        draft.unlink(missing_ok=True)


def _line(file: BinaryIO, path: str, number: int) -> bytes:
    line = file.readline(MAX_ROW_BYTES + 1)
    if len(line) > MAX_ROW_BYTES:
        raise InputError(
            f"{path}, line {number}: the row has more than {MAX_ROW_BYTES >> 20} MiB; expected one item a line."
        )
    return line


def _row(line: bytes, path: str, number: int, offset: int) -> Row:
    place = f"{path}, line {number}"
    try:
        text = line.removeprefix(_BOM).decode() if number == 1 else line.decode()
        value = parse_json(text)
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: the file is not UTF-8: {error.reason} at byte {offset + error.start}.") from error
    except ParseError as error:
        raise InputError(f"{place}: {_reason(error, line)}") from error
    if not isinstance(value, dict):
        one_array = number == 1 and isinstance(value, list)
        hint = " This looks like one JSON array of rows; write each row on a line of its own." if one_array else ""
        raise InputError(f"{place}: expected an object with an 'id', found {text.strip():.40}.{hint}")
    if isinstance(value, ObjectWithDuplicates):
        raise InputError(f"{place}: the key {value.duplicates[0]!r} stands twice; keep one.")
    return Row(path, number, offset, cast("dict[str, Json]", value))


def _reason(error: ParseError, line: bytes) -> str:
    """Why a line cannot be read, with the likely mistake."""
    if error.fault is Fault.TOO_DEEP:
        return (
            "the row is nested too deeply to be read. An answer like that can be given as a string under 'text', "
            "where it counts as a miss."
        )
    start = line.removeprefix(_BOM).strip()
    if start in (b"{", b"["):
        return f"{error} This looks like JSON over several lines; write each row on one line."
    if not start.startswith((b"{", b"[")):
        return f"{error} Expected JSONL, one JSON object a line (CSV and other formats must be converted first)."
    return str(error)


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISFIFO(mode):
        return "a pipe, which can be read only once; save it to a file first"
    return "a device or socket"
