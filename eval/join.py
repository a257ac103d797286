"""Joins two files of rows by id without holding their rows: only ids and where each row stands.

Reads both files once (`rows.py` says how); the rows themselves are read again where they are needed, by offset. Ids are
compared as text. 100,000 ids take about 20 MiB. Not covered: files that change in between, which `row_again` refuses.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from plansmith.contract.errors import InputError
from plansmith.eval.rows import Row, iter_ids, row_at, row_id


class Spot(NamedTuple):
    """Where one row stands in its file."""

    offset: int
    line: int


class Place(NamedTuple):
    """Where the rows of one item stand."""

    id: str
    reference: Spot
    candidate: Spot | None


@dataclass(slots=True)
class Index:
    """Where the row of each id stands in a file, in the order of the file."""

    path: str
    """The file itself, links resolved: `/dev/stdin` is another file in another process."""
    rows: dict[str, int] = field(default_factory=dict[str, int])
    """Position among the rows, by id."""
    offsets: array[int] = field(default_factory=lambda: array("q"))
    lines: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.lines)

    def spot(self, item: str) -> Spot | None:
        position = self.rows.get(item)
        return Spot(self.offsets[position], self.lines[position]) if position is not None else None


@dataclass(frozen=True, slots=True)
class Joined:
    """A reference file and a candidate file."""

    wanted: Index
    given: Index
    shared: int
    """Items that both have."""

    def places(self) -> Iterator[Place]:
        """Every item of the reference file, in its order."""
        for item, position in self.wanted.rows.items():
            spot = Spot(self.wanted.offsets[position], self.wanted.lines[position])
            yield Place(item, spot, self.given.spot(item))


def join_files(reference: str | Path, candidate: str | Path) -> Joined:
    """Find the rows of both files.

    Raises:
        InputError: a file cannot be used, the reference has no rows, or an id is absent or stands twice.

    """
    wanted = _index(reference, read_again=lambda item: True)
    if not wanted.rows:
        raise InputError(f"{str(reference)!r} has no rows; expected one right plan a line.")
    given = _index(candidate, read_again=wanted.rows.__contains__)
    return Joined(wanted, given, sum(item in wanted.rows for item in given.rows))


def row_again(file: BinaryIO, path: str, spot: Spot, item: str) -> Row:
    """The row of an item, which must be the one that was found there before.

    Raises:
        InputError: it is another row now, or none; or what the first reading did not look for is wrong with it.

    """
    row = row_at(file, path, spot.offset, spot.line)
    if row_id(row) != item:
        raise row.refuse("the file was changed while it was read; run again when nothing writes to it.")
    return row


def _index(path: str | Path, *, read_again: Callable[[str], bool]) -> Index:
    index = Index(os.path.realpath(path))
    for item, row in iter_ids(path, read_again=read_again):
        position = index.rows.setdefault(item, len(index))
        if position < len(index):
            earlier = f"{path}, line {index.lines[position]}"
            hint = " The rows name a 'system': keep those of one." if "system" in row.values else ""
            raise row.refuse(f"the id {item!r} stands already in {earlier}; ids must be unique (as text).{hint}")
        index.offsets.append(row.offset)
        index.lines.append(row.number)
    return index
