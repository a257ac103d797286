"""Scores two files made by anything: right plans and candidate plans, joined by id.

Reads JSONL with one row an item (`answers.py` says what rows hold, `rows.py` how files are read) and gives what
`plansmith score` prints; on request writes one `ScoredItem` row an item. Ids are strings or integers; 1 and "1" are the
same id. A file that is not as described is refused with its name and line: no row is skipped. Both files are read
twice, first for their ids, then row by row in chunks that several processes may score: only ids and scores are kept, so
memory does not grow with the length of the plans, and the result is the same for any number of processes. Not covered:
running plans; files that are being written while they are scored (refused where it shows).
"""

from __future__ import annotations

import os
import signal
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import BinaryIO, NamedTuple, TextIO

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError, PlansmithError
from plansmith.contract.parse import parse_json
from plansmith.contract.plan import Json, dumps
from plansmith.contract.progress import Progress, Silent
from plansmith.eval.answers import answer_of, item_values, reference_of, score_answer, scored_item
from plansmith.eval.columns import Answered, Columns, ItemValues
from plansmith.eval.metrics import METRICS
from plansmith.eval.rows import Row, iter_rows, open_rows, replaced_file, row_at, row_id
from plansmith.eval.stats import Metric

CHUNK = 200
"""Items that a process scores at once."""
MANY_ITEMS = 4000
"""From this many items on, all cores are used and progress is shown."""

_PRINTED = {"value", "hits", "scored", "unscored", "low", "high"}


@dataclass(frozen=True, slots=True)
class PartScore:
    """Metrics of some of the items."""

    items: int
    metrics: dict[str, Metric]

    def to_json(self) -> dict[str, Json]:
        metrics = {name: metric.model_dump(include=_PRINTED) for name, metric in self.metrics.items()}
        return {"items": self.items, "metrics": metrics}


@dataclass(frozen=True, slots=True)
class FileScore:
    """What `plansmith score` prints."""

    items: int
    """Items of the reference file: the denominator."""
    metrics: dict[str, Metric]
    only_in_reference: int
    """Items without a candidate: misses in every metric that they are scored in."""
    only_in_candidate: int
    """Candidates without a reference row; not scored."""
    parts: dict[str, PartScore] | None = None
    """The same by part, where that was asked."""
    notes: tuple[str, ...] = ()
    """What a reader of the numbers should know, one sentence each; not part of the JSON."""

    def to_json(self) -> dict[str, Json]:
        found = PartScore(self.items, self.metrics).to_json() | {
            "only_in_reference": self.only_in_reference,
            "only_in_candidate": self.only_in_candidate,
        }
        if self.parts is not None:
            found["parts"] = {name: part.to_json() for name, part in self.parts.items()}
        return found


class Scoring(NamedTuple):
    """Scores of all items of two files, before any summary."""

    columns: Columns
    only_in_candidate: int
    notes: tuple[str, ...]


def score_files(
    catalog: Catalog,
    reference: str | Path,
    candidate: str | Path,
    *,
    seed: int = 0,
    resamples: int = 2000,
    by_part: bool = False,
    items: str | Path | None = None,
    system: str | None = None,
    workers: int | None = 1,
    progress: Progress | None = None,
) -> FileScore:
    """Score a candidate file against a reference file.

    Args:
        catalog: the workers that may be called.
        reference: right plans; every row is an item.
        candidate: plans to score; an item without a row is a miss in every metric that it is scored in.
        seed: of the bootstrap behind the intervals of means and F1.
        resamples: of that bootstrap.
        by_part: also score each part (`part` of the reference rows) on its own.
        items: file to write one `ScoredItem` row an item to; replaced as a whole.
        system: name of the system in those rows; the candidate file's name without its ending if not given.
        workers: processes; None: all cores where there are many items. They are spawned, so a script that calls this
            with other than 1 must guard its own start with `if __name__ == "__main__"`.
        progress: told of items scored where there are many.

    Raises:
        InputError: a file cannot be used, a line is broken, an id stands twice or is absent, or the catalog has no
            worker of the right plans; names file and line.

    """
    scoring = score_rows(
        catalog, reference, candidate, items=items, system=system, workers=workers, progress=progress, marked=False
    )
    columns = scoring.columns
    parts = {name: columns.of_part(name) for name in columns.part_names()} if by_part else {}
    return FileScore(
        items=len(columns),
        metrics=metrics_of(columns, seed=seed, resamples=resamples),
        only_in_reference=columns.answered.count(Answered.MISSING),
        only_in_candidate=scoring.only_in_candidate,
        parts={
            name: PartScore(len(part), metrics_of(part, seed=seed, resamples=resamples)) for name, part in parts.items()
        }
        if by_part
        else None,
        notes=scoring.notes,
    )


def metrics_of(columns: Columns, *, seed: int, resamples: int = 2000) -> dict[str, Metric]:
    """All metrics over items, by name."""
    return {name: columns.summary(name, seed=seed, resamples=resamples) for name in METRICS}


def score_rows(
    catalog: Catalog,
    reference: str | Path,
    candidate: str | Path,
    *,
    items: str | Path | None = None,
    system: str | None = None,
    workers: int | None = 1,
    progress: Progress | None = None,
    marked: bool = True,
) -> Scoring:
    """Score every item, in the order of the reference file; arguments and errors as of `score_files`.

    `marked`: also say what each item is known by, for comparisons.
    """
    _require_apart(items, reference, candidate)
    wanted, given = _index(reference), _index(candidate)
    if not wanted.lines:
        raise InputError(f"{str(reference)!r} has no rows; expected one right plan a line.")
    source = _Source(
        catalog=dumps(catalog.to_json()),
        reference=wanted.path,
        candidate=given.path,
        shown=(str(reference), str(candidate)),
        system=(system or Path(candidate).stem) if items is not None else None,
        marked=marked,
    )
    count = len(wanted.lines)
    processes = workers if workers is not None else _cores() if count >= MANY_ITEMS else 1
    shown = progress if progress is not None and count >= MANY_ITEMS else Silent()
    columns, notes = Columns(), _Notes(catalog.name)
    shown.start("items scored", count)
    with replaced_file(items) if items is not None else nullcontext() as file:
        for scored in _scored_chunks(source, _places(wanted, given), processes):
            for item in scored:
                columns.add(item.values)
                notes.add(item)
            _write(file, scored)
            shown.advance(len(scored))
        notes.require_known_workers()
    shown.finish()
    shared = sum(item in given.rows for item in wanted.rows)
    return Scoring(columns, len(given.lines) - shared, notes.sentences(reference, candidate, shared, len(given.lines)))


class _Place(NamedTuple):
    """Where the rows of one item stand."""

    id: str
    reference: tuple[int, int]
    """Offset and line number."""
    candidate: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class _Source:
    """What a process needs to know to score places."""

    catalog: str
    """As JSON text, which every process can read."""
    reference: str
    candidate: str
    shown: tuple[str, str]
    """Both files as the user named them."""
    system: str | None
    """Name in the items' rows; None where no rows are wanted."""
    marked: bool


class _Scored(NamedTuple):
    """One item, scored."""

    values: ItemValues
    row: str
    """Its row of the items file; empty where none is wanted."""
    invalid: str | None
    steps: int
    known_steps: int


@dataclass(slots=True)
class _Index:
    """Where the row of each id stands in a file."""

    path: str
    """The file itself, links resolved: `/dev/stdin` is another file in another process."""
    rows: dict[str, int] = field(default_factory=dict[str, int])
    """Position among the rows, by id."""
    offsets: array[int] = field(default_factory=lambda: array("q"))
    lines: array[int] = field(default_factory=lambda: array("q"))

    def place(self, item: str) -> tuple[int, int] | None:
        position = self.rows.get(item)
        return (self.offsets[position], self.lines[position]) if position is not None else None


def _index(path: str | Path) -> _Index:
    index = _Index(os.path.realpath(path))
    for row in iter_rows(path):
        item = row_id(row)
        position = index.rows.setdefault(item, len(index.lines))
        if position < len(index.lines):
            earlier = f"{path}, line {index.lines[position]}"
            hint = " The rows name a 'system': keep those of one." if "system" in row.values else ""
            raise row.refuse(f"the id {item!r} stands already in {earlier}; ids must be unique (as text).{hint}")
        index.offsets.append(row.offset)
        index.lines.append(row.number)
    return index


def _places(wanted: _Index, given: _Index) -> Iterator[_Place]:
    for item, position in wanted.rows.items():
        yield _Place(item, (wanted.offsets[position], wanted.lines[position]), given.place(item))


def _scored_chunks(source: _Source, places: Iterator[_Place], processes: int) -> Iterator[list[_Scored]]:
    """Scored chunks in the order of the places, whatever process is done first."""
    chunks = iter(lambda: list(islice(places, CHUNK)), [])
    if processes <= 1:
        yield from (_score_chunk(source, chunk) for chunk in chunks)
        return
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_ignore_interrupts)
    try:
        under_way: deque[Future[list[_Scored]]] = deque()
        for chunk in chunks:
            under_way.append(pool.submit(_score_chunk, source, chunk))
            if len(under_way) >= 4 * processes:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    except BrokenProcessPool as error:
        raise PlansmithError(
            "a scoring process ended before its work was done (killed, or out of memory?). Run again with --workers 1."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _score_chunk(source: _Source, places: Sequence[_Place]) -> list[_Scored]:
    with open_rows(source.reference) as references, open_rows(source.candidate) as candidates:
        return [_score_place(source, place, references, candidates) for place in places]


def _score_place(source: _Source, place: _Place, references: BinaryIO, candidates: BinaryIO) -> _Scored:
    catalog = _catalog(source.catalog)
    right = reference_of(_again(references, source.shown[0], place.reference, place.id), catalog)
    row = _again(candidates, source.shown[1], place.candidate, place.id) if place.candidate is not None else None
    answer = answer_of(row) if row is not None else None
    score = score_answer(answer, right, catalog)
    text = ""
    if source.system is not None:
        text = scored_item(source.system, place.id, answer, right, score, catalog).model_dump_json() + "\n"
    values = item_values(place.id, answer, right, score, catalog, marked=source.marked)
    return _Scored(values, text, right.invalid, right.steps, right.known_steps)


def _again(file: BinaryIO, path: str, place: tuple[int, int], item: str) -> Row:
    """The row of an item, which must be the one that was found there before."""
    row = row_at(file, path, *place)
    if row_id(row) != item:
        raise row.refuse("the file was changed while it was read; run again when nothing writes to it.")
    return row


@lru_cache(maxsize=2)
def _catalog(text: str) -> Catalog:
    return Catalog.from_json(parse_json(text))


def _ignore_interrupts() -> None:
    """Ctrl-C ends the process that was started by hand, and that one ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _write(file: TextIO | None, scored: Sequence[_Scored]) -> None:
    if file is not None:
        file.write("".join(item.row for item in scored))


def _require_apart(items: str | Path | None, *inputs: str | Path) -> None:
    """An items file must not replace what it is made from."""
    for path in inputs:
        if items is not None and os.path.realpath(items) == os.path.realpath(path):
            raise InputError(f"the items would replace {str(path)!r}, from which they are made; name another file.")


@dataclass(slots=True)
class _Notes:
    """What is seen on the way that a reader of the numbers should know."""

    catalog: str
    items: int = 0
    invalid: int = 0
    first: str = ""
    steps: int = 0
    known_steps: int = 0

    def add(self, item: _Scored) -> None:
        self.items += 1
        self.steps += item.steps
        self.known_steps += item.known_steps
        if item.invalid is not None:
            self.invalid += 1
            self.first = self.first or f"{item.values.id!r}: {item.invalid}"

    def require_known_workers(self) -> None:
        if self.steps and not self.known_steps:
            raise InputError(
                f"the catalog {self.catalog!r} has none of the workers of the reference plans (first: item "
                f"{self.first}). Give the catalog that the plans were made for."
            )

    def sentences(self, reference: str | Path, candidate: str | Path, shared: int, given: int) -> tuple[str, ...]:
        found: list[str] = []
        if self.invalid:
            found.append(
                f"{self.invalid} of {self.items} items have reference plans that are not valid against the catalog "
                f"{self.catalog!r}: an answer equal to such a plan is 'equivalent' but not 'valid'. First: item "
                f"{self.first}"
            )
        if os.path.samefile(reference, candidate):
            found.append("reference and candidate are the same file: every plan is compared with itself.")
        elif not given:
            found.append(f"{str(candidate)!r} has no rows: every item is a miss.")
        elif not shared:
            found.append(
                "no id of the candidates is an id of the reference: every item is a miss. Are these two a pair?"
            )
        return tuple(found)
