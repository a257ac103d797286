"""Rows on disk: JSONL with appends that are atomic a row, and whole files replaced atomically.

A killed process leaves at most one half row at the end of a file; readers of our own files see it as absent and
count it, and the next append cuts it off first.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from plansmith.contract.errors import InputError, PlansmithError

Row = TypeVar("Row", bound=BaseModel)


class StorageError(PlansmithError):
    """Output cannot be written (no space, no permission); what was there before is still usable."""

    exit_code = 2


def read_rows(path: str | Path, row_type: type[Row]) -> list[Row]:
    """All rows of a JSONL file that we wrote; a half last row (a killed writer) is left out.

    Raises:
        InputError: the file is absent, or a row is not a `row_type`; the message names file and line.

    """
    return list(iter_rows(path, row_type))


def iter_rows(path: str | Path, row_type: type[Row]) -> Iterator[Row]:
    """As `read_rows`, one at a time."""
    for number, line in iter_lines(path):
        try:
            yield row_type.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = "/".join(map(str, first["loc"])) or "row"
            raise InputError(f"{path}, line {number}: {where}: {first['msg']}.") from error


def iter_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Line numbers from 1 and the complete, non-empty lines of a UTF-8 file; a last line without newline is left out.

    Raises:
        InputError: the file is absent or not UTF-8.

    """
    try:
        with Path(path).open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, 1):
                if line.endswith("\n") and line.strip():
                    yield number, line
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{str(path)!r} is not UTF-8: {error.reason} at byte {error.start}.") from error


def append_row(path: str | Path, row: BaseModel) -> None:
    """Append one row durably: a half row from a killed writer is cut off first, then one write and a sync.

    Raises:
        StorageError: the row could not be written; the file is as before.

    """
    data = (row.model_dump_json() + "\n").encode()
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with Path(path).open("a+b") as file:
            end = _end_of_last_row(file.fileno())
            file.truncate(end)
            try:
                if os.write(file.fileno(), data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise
    except OSError as error:
        reason = error.strerror or error
        raise StorageError(f"cannot append to {str(path)!r}: {reason}. Earlier rows are kept.") from error


def _end_of_last_row(handle: int) -> int:
    """Byte offset after the last newline of an open file."""
    end = os.lseek(handle, 0, os.SEEK_END)
    while end:
        start = max(0, end - 65536)
        chunk = os.pread(handle, end - start, start)
        found = chunk.rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def write_rows(path: str | Path, rows: Iterable[BaseModel]) -> int:
    """Replace a JSONL file as a whole and return how many rows it has; readers see the old file or the new one."""
    lines = [row.model_dump_json() for row in rows]
    write_text(path, "".join(line + "\n" for line in lines))
    return len(lines)


def write_text(path: str | Path, text: str) -> None:
    """Replace a text file atomically.

    Raises:
        StorageError: it could not be written; the earlier file is kept.

    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StorageError(f"cannot write {str(path)!r}: {error.strerror or error}. Earlier output is kept.") from error


def file_hash(path: str | Path) -> str:
    """Sha256 (64 hex digits) of a file's bytes."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
