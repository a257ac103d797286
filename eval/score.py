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
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import BinaryIO, NamedTuple

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError, PlansmithError
from plansmith.contract.parse import parse_json
from plansmith.contract.plan import Json, dumps
from plansmith.contract.processes import follow_parent
from plansmith.contract.progress import Progress, Silent
from plansmith.eval.answers import answer_of, item_values, reference_of, score_answer, scored_item
from plansmith.eval.columns import Answered, Columns, ItemValues, summary
from plansmith.eval.join import Joined, Place, join_files, row_again
from plansmith.eval.metrics import METRICS
from plansmith.eval.rows import open_rows, replaced_file
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
    _require_apart(items, reference, candidate)
    joined = join_files(reference, candidate)
    with _pool(workers, len(joined.wanted)) as pool:
        scoring = _score_joined(catalog, joined, (reference, candidate), items, system, pool, progress, marked=False)
        columns = scoring.columns
        parts = {name: columns.of_part(name) for name in columns.part_names()} if by_part else {}
        blocks = [metrics_of(one, seed=seed, resamples=resamples, pool=pool) for one in (columns, *parts.values())]
    by_name = {name: PartScore(len(parts[name]), metrics) for name, metrics in zip(parts, blocks[1:], strict=True)}
    return FileScore(
        items=len(columns),
        metrics=blocks[0],
        only_in_reference=columns.answered.count(Answered.MISSING),
        only_in_candidate=scoring.only_in_candidate,
        parts=by_name if by_part else None,
        notes=scoring.notes,
    )


def metrics_of(
    columns: Columns, *, seed: int, resamples: int = 2000, pool: ProcessPoolExecutor | None = None
) -> dict[str, Metric]:
    """All metrics over items, by name; the bootstraps side by side where there are processes for them."""
    if pool is None or len(columns) < MANY_ITEMS:
        return {name: columns.summary(name, seed=seed, resamples=resamples) for name in METRICS}
    under_way = {
        name: pool.submit(summary, name, columns.values[name], seed=seed, resamples=resamples) for name in METRICS
    }
    return {name: result.result() for name, result in under_way.items()}


def score_rows(
    catalog: Catalog,
    reference: str | Path,
    candidate: str | Path,
    *,
    workers: int | None = 1,
    progress: Progress | None = None,
) -> Scoring:
    """Score every item, in the order of the reference file, for a comparison; arguments as of `score_files`."""
    joined = join_files(reference, candidate)
    with _pool(workers, len(joined.wanted)) as pool:
        return _score_joined(catalog, joined, (reference, candidate), None, None, pool, progress, marked=True)


def _score_joined(
    catalog: Catalog,
    joined: Joined,
    files: tuple[str | Path, str | Path],
    items: str | Path | None,
    system: str | None,
    pool: ProcessPoolExecutor | None,
    progress: Progress | None,
    *,
    marked: bool,
) -> Scoring:
    """Score what was joined, chunk by chunk, and write the items where that is asked."""
    source = _Source(
        catalog=dumps(catalog.to_json()),
        reference=joined.wanted.path,
        candidate=joined.given.path,
        shown=(str(files[0]), str(files[1])),
        system=(system or Path(files[1]).stem) if items is not None else None,
        marked=marked,
    )
    count = len(joined.wanted)
    shown = progress if progress is not None and count >= MANY_ITEMS else Silent()
    columns, notes = Columns(), _Notes(catalog.name)
    shown.start("items scored", count)
    with replaced_file(items) if items is not None else nullcontext() as file:
        for scored in _scored_chunks(source, joined.places(), pool):
            for item in scored:
                columns.add(item.values)
                notes.add(item)
            if file is not None:
                file.write("".join(item.row for item in scored))
            shown.advance(len(scored))
        notes.require_known_workers()
    shown.finish()
    return Scoring(columns, len(joined.given) - joined.shared, notes.sentences(joined, files))


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


@contextmanager
def _pool(workers: int | None, count: int) -> Generator[ProcessPoolExecutor | None]:
    """Processes for `count` items; None where this one does the work."""
    processes = workers if workers is not None else _cores() if count >= MANY_ITEMS else 1
    if processes <= 1:
        yield None
        return
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=follow_parent)
    try:
        yield pool
    except BrokenProcessPool as error:
        raise PlansmithError(
            "a scoring process ended before its work was done (killed, or out of memory?). Run again with --workers 1."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _scored_chunks(
    source: _Source, places: Iterator[Place], pool: ProcessPoolExecutor | None
) -> Iterator[list[_Scored]]:
    """Scored chunks in the order of the places, whatever process is done first."""
    chunks = iter(lambda: list(islice(places, CHUNK)), [])
    if pool is None:
        yield from (_score_chunk(source, chunk) for chunk in chunks)
        return
    under_way: deque[Future[list[_Scored]]] = deque()
    limit = 4 * _cores()  # enough that no process waits, few enough for the memory
    for chunk in chunks:
        under_way.append(pool.submit(_score_chunk, source, chunk))
        if len(under_way) >= limit:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


def _score_chunk(source: _Source, places: Sequence[Place]) -> list[_Scored]:
    with open_rows(source.reference) as references, open_rows(source.candidate) as candidates:
        return [_score_place(source, place, references, candidates) for place in places]


def _score_place(source: _Source, place: Place, references: BinaryIO, candidates: BinaryIO) -> _Scored:
    catalog = _catalog(source.catalog)
    right = reference_of(row_again(references, source.shown[0], place.reference, place.id), catalog)
    row = row_again(candidates, source.shown[1], place.candidate, place.id) if place.candidate is not None else None
    answer = answer_of(row) if row is not None else None
    score = score_answer(answer, right, catalog)
    text = ""
    if source.system is not None:
        text = scored_item(source.system, place.id, answer, right, score, catalog).model_dump_json() + "\n"
    values = item_values(place.id, answer, right, score, catalog, marked=source.marked)
    return _Scored(values, text, right.invalid, right.steps, right.known_steps)


@lru_cache(maxsize=2)
def _catalog(text: str) -> Catalog:
    return Catalog.from_json(parse_json(text))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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

    def sentences(self, joined: Joined, files: tuple[str | Path, str | Path]) -> tuple[str, ...]:
        found: list[str] = []
        if self.invalid:
            found.append(
                f"{self.invalid} of {self.items} items have reference plans that are not valid against the catalog "
                f"{self.catalog!r}: an answer equal to such a plan is 'equivalent' but not 'valid'. First: item "
                f"{self.first}"
            )
        if os.path.samefile(*files):
            found.append("reference and candidate are the same file: every plan is compared with itself.")
        elif not joined.given.rows:
            found.append(f"{str(files[1])!r} has no rows: every item is a miss.")
        elif not joined.shared:
            found.append(
                "no id of the candidates is an id of the reference: every item is a miss. Are these two a pair?"
            )
        return tuple(found)
