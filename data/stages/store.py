"""Rows between the stages, and rejects, in files: memory holds a few bytes a row, whatever the rows hold.

A row gets a number when it is stored, in the order of the source. Stages go through the rows in order, or look some up
by number, and drop rows; dropped rows are passed over from then on. Rejects may come in any order and are written out
in that of the source.
"""

from __future__ import annotations

import json
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, Self

from plansmith.contract.records import Candidate, Reject
from plansmith.data.dedupe import AT_ONCE
from plansmith.data.stages.rows import Kind, Line, reject_json

_BYTES_AT_ONCE = 16 * 2**20
"""Bytes of JSON that rows looked at together have, at most; a longer row stands alone."""


class Stored(NamedTuple):
    """A row that is still there."""

    number: int
    row: Candidate
    warnings: tuple[str, ...]
    """Findings of its plan that are no errors."""


class RejectStore:
    """Rejects: first those of the source, then those of rows reserved for testing, then the others; each in order."""

    def __init__(self, path: Path) -> None:
        self.counts: Counter[str] = Counter()
        """By reason."""
        self._file: IO[bytes] = path.open("w+b")
        self._starts = array("Q", [0])
        self._keys = array("Q")

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: int, reject: Reject | bytes) -> None:
        """Store a reject; it is written out in the order of the keys. Bytes are a reject as JSON."""
        text = reject if isinstance(reject, bytes) else reject_json(reject)
        reason = json.loads(text)["reason"] if isinstance(reject, bytes) else reject.reason
        self._file.write(text + b"\n")
        self._starts.append(self._starts[-1] + len(text) + 1)
        self._keys.append(key)
        self.counts[reason] += 1

    def lines(self) -> Iterator[bytes]:
        """Each reject as a line of JSON, in order."""
        self._file.flush()
        for at in sorted(range(len(self._keys)), key=self._keys.__getitem__):
            yield os.pread(self._file.fileno(), self._starts[at + 1] - self._starts[at], self._starts[at])

    def close(self) -> None:
        _close(self._file)


def _row_key(source_number: int, *, reserved: bool) -> int:
    """Place among the rejects of a row that a stage rejected; rejects of the source have their number itself."""
    return (1 if reserved else 2) << 48 | source_number


class RowStore:
    """Rows that passed the checks of single rows; use in `with`, which gives the files' space back."""

    def __init__(self, folder: Path) -> None:
        """Make the files in a folder; raises `OSError` where that is not possible, as all methods do."""
        self.rejects = RejectStore(folder / "rejects")
        try:
            self._path = folder / "rows"
            self._file: IO[bytes] = self._path.open("w+b")
        except BaseException:
            self.rejects.close()
            raise
        self.groups = array("Q")
        """By number: hash of the query's text."""
        self.reserved = bytearray()
        """By number: whether the row is reserved for testing."""
        self.alive = bytearray()
        """By number: whether no stage has dropped it."""
        self.said: dict[int, list[str]] = {}
        """By number: what stages after the first checks say for a row, in words."""
        self._starts = array("Q", [0])
        self._sources = array("Q")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _close(self._file)
        self.rejects.close()

    def __len__(self) -> int:
        """Rows ever stored."""
        return len(self.alive)

    @property
    def left(self) -> int:
        """Rows that no stage has dropped."""
        return self.alive.count(1)

    def put(self, source_number: int, line: Line) -> None:
        """Store what became of a row; numbers of the source must grow."""
        if line.kind is Kind.UNREADABLE:
            self.rejects.add(source_number, line.text)
        elif line.kind is Kind.DROPPED:
            self.rejects.add(_row_key(source_number, reserved=line.reserved), line.text)
        else:
            self._add(source_number, line)

    def _add(self, source_number: int, line: Line) -> None:
        self._file.write(line.text + b"\n")
        self._starts.append(self._starts[-1] + len(line.text) + 1)
        self._sources.append(source_number)
        self.groups.append(line.group)
        self.reserved.append(line.reserved)
        self.alive.append(True)

    def say(self, number: int, text: str) -> None:
        """Note what speaks for a row."""
        self.said.setdefault(number, []).append(text)

    def drop(self, number: int, reject: Reject) -> None:
        """Drop a row."""
        self.alive[number] = False
        self.rejects.add(_row_key(self._sources[number], reserved=bool(self.reserved[number])), reject)

    def numbers(self, *, reserved: bool | None = None) -> Iterator[int]:
        """Numbers of the rows that are left, in order; only those that are reserved for testing, or only others."""
        for number, alive in enumerate(self.alive):
            if alive and (reserved is None or self.reserved[number] == reserved):
                yield number

    def rows(self, *, reserved: bool | None = None, only: Callable[[int], bool] | None = None) -> Iterator[Stored]:
        """The rows that are left, as `numbers` gives them; rows may be dropped meanwhile.

        Args:
            reserved: as for `numbers`.
            only: says by number which rows are wanted, before they are read; None: all are.

        """
        self._file.flush()
        with self._path.open("rb") as file:
            for number, line in enumerate(file):
                if not self.alive[number] or (reserved is not None and self.reserved[number] != reserved):
                    continue
                if only is None or only(number):
                    yield _read(number, line)

    def batches(self, rows: Iterable[Stored]) -> Iterator[list[Stored]]:
        """Rows in lists of at most `AT_ONCE` rows, shorter ones where rows are long."""
        batch: list[Stored] = []
        size = 0
        for stored in rows:
            size += self._starts[stored.number + 1] - self._starts[stored.number]
            if batch and (len(batch) == AT_ONCE or size > _BYTES_AT_ONCE):
                yield batch
                batch, size = [], self._starts[stored.number + 1] - self._starts[stored.number]
            batch.append(stored)
        if batch:
            yield batch

    def get(self, number: int) -> Stored:
        """A row by its number."""
        self._file.flush()
        start, end = self._starts[number], self._starts[number + 1]
        return _read(number, os.pread(self._file.fileno(), end - start, start))


def _read(number: int, line: bytes) -> Stored:
    warnings, _, row = line.partition(b"\t")
    return Stored(number, Candidate.model_validate_json(row), tuple(json.loads(warnings)) if warnings != b"[]" else ())


def _close(file: IO[bytes]) -> None:
    """Close a file whose content nobody needs any more, full disk or not."""
    with suppress(OSError):
        file.close()
