"""Rows from a user's JSONL file: `{"query","plan"}` with optional `id`, `family`, `part`.

Reads the file as bytes, line by line: a line that is no UTF-8, no JSON or no row becomes a reject `bad_row` with file
and line, so that one bad line never ends a build. A file without a single row is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError
from plansmith.contract.records import Candidate, Reject
from plansmith.data.config import JsonlSource
from plansmith.data.sources.base import Loaded, bad_row, candidate_or_reject


def load_jsonl(config: JsonlSource) -> Loaded:
    """All rows of the file.

    Raises:
        InputError: the file or the catalog cannot be read, or the file holds no row.

    """
    catalog = Catalog.load(config.catalog)
    candidates, rejects = split_rows(read_jsonl(config.path))
    return Loaded(config.path.name, config.licence, catalog, candidates, rejects)


def split_rows(rows: Iterator[Candidate | Reject]) -> tuple[list[Candidate], list[Reject]]:
    candidates: list[Candidate] = []
    rejects: list[Reject] = []
    for row in rows:
        if isinstance(row, Candidate):
            candidates.append(row)
        else:
            rejects.append(row)
    return candidates, rejects


def read_jsonl(path: Path, *, part: str | None = None) -> Iterator[Candidate | Reject]:
    """Rows of one file; `part` is the part of rows that name none.

    Raises:
        InputError: the file cannot be read or holds no row.

    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"data file {str(path)!r} cannot be read: {error.strerror or error}.") from error
    if not any(line.strip() for line in lines):
        raise InputError(f"data file {str(path)!r} holds no rows; expected one object a line with 'query' and 'plan'.")
    for number, line in enumerate(lines, 1):
        if line.strip():
            defaults = {"id": f"{path.stem}-{number}", "source": path.name, "part": part}
            yield _row(line, f"{path}, line {number}", defaults)


def _row(line: bytes, where: str, defaults: dict[str, Any]) -> Candidate | Reject:
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        return bad_row(None, where, f"not UTF-8: {error.reason} at byte {error.start} of the line", defaults)
    except (ValueError, RecursionError) as error:
        return bad_row(None, where, f"not JSON: {error}", defaults)
    return candidate_or_reject(value, where=where, defaults=defaults)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
