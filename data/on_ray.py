"""Checks rows with Ray Data, on one machine or many: the same `RowChecker` as everywhere, in Ray's workers.

Reads the chunks of a source, on the machine where the command runs: a piece of a file is sent as its bytes, rows as
they are, so the other machines need none of the user's files. Gives what became of each chunk, in order. Rows wait in a
folder of the run (removed at the end) and in Ray's object store, never all in memory.

A chunk whose worker was killed is done again by another one. One that ends its workers again and again, or on which the
code fails as a whole, is checked row by row in a process of its own here: the rows at fault end as rejects
`check_failed`, the others as if nothing had happened. Not covered: stages that look at several rows.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import shutil
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from plansmith.contract.errors import InputError, PlansmithError
from plansmith.contract.progress import Progress
from plansmith.contract.records import Reject
from plansmith.data.ray_config import NoRayError, RayConfig
from plansmith.data.ray_session import ray_session, require_ray
from plansmith.data.sources.lines import FileRange, read_bytes, rows_in
from plansmith.data.stages.rows import Checked, CheckSettings, Item, RowChecker, given_up
from plansmith.data.stages.runners import Chunk
from plansmith.data.stages.tally import Tallies

_WAITING = ".ray-work"
_MOST_TRIES = 3
"""How often a chunk is begun whose workers end over it, before it is given back undone."""
_UNDONE_IN_A_ROW = 20
"""Chunks that may come back undone one after the other, before Ray counts as unusable."""


class _EndedError(Exception):
    """The process that checks rows here has ended."""


class Place(NamedTuple):
    """Where a chunk lies on this machine."""

    path: Path
    start: int
    size: int
    piece: FileRange | None
    """The piece of the user's file; None: rows of ours, pickled."""

    def read(self) -> bytes:
        """The bytes of the chunk; raises `InputError` where the file cannot be read."""
        return read_bytes(self.piece or FileRange(self.path, self.start, self.size, 1, 0))


class Sent(NamedTuple):
    """What a worker gives back for a chunk."""

    checked: Checked | None
    """None: it could not be read, ended its workers, or the code failed on it as a whole."""
    tries: int
    """How often it was begun."""


@dataclass(frozen=True)
class RayRunner:
    """A `Runner` on Ray. Ray is started when the first chunk is wanted, and is gone when the last one was given."""

    config: RayConfig
    folder: Path
    """Where rows may wait; nobody else works in it at that time."""
    progress: Progress

    def __post_init__(self) -> None:
        require_ray()

    def run(self, chunks: Iterable[Chunk], settings: CheckSettings) -> Generator[Checked]:
        """Check chunks.

        Raises:
            NoRayError: Ray cannot be used.
            InputError: a file cannot be read.

        """
        with ExitStack() as stack:
            places = put_down(chunks, stack.enter_context(_waiting(self.folder)))
            if not places:
                return
            ray = stack.enter_context(ray_session(self.config))
            sent = stack.enter_context(closing(_sent(ray, places, settings, self.config.workers)))
            mended = Mended()
            try:
                yield from in_order(sent, places, settings, mended)
            except ray.exceptions.RayError as error:
                raise NoRayError(
                    f"Ray ended before all rows were checked: {_first_line(error)} Run the command again."
                ) from error
            if told := mended.told():
                self.progress.note(f"ray: {told}")


@contextmanager
def _waiting(folder: Path) -> Generator[Path]:
    """A folder for rows on their way to workers; what a killed run left there is removed first."""
    path = folder / _WAITING
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def put_down(chunks: Iterable[Chunk], folder: Path) -> list[Place]:
    """Where each chunk lies; rows that lie nowhere are written down."""
    places: list[Place] = []
    path = folder / "rows"
    with path.open("wb") as file:
        for chunk in chunks:
            if isinstance(chunk, FileRange):
                places.append(Place(chunk.path.absolute(), chunk.start, chunk.size, chunk))
                continue
            start = file.tell()
            pickle.dump(chunk, file, pickle.HIGHEST_PROTOCOL)
            places.append(Place(path.absolute(), start, file.tell() - start, None))
    return places


def _rows_of(piece: FileRange | None, data: bytes) -> list[Item | Reject]:
    if piece is None:
        return pickle.loads(data)
    return [row if isinstance(row, Reject) else Item(row) for row in rows_in(piece, data)]


class _Ledger:
    """An actor of its own on this machine: how often each chunk was begun, which a killed worker cannot tell."""

    def __init__(self) -> None:
        self._begun: Counter[int] = Counter()

    def begin(self, at: int) -> int:
        """How often the chunk was begun, this time included."""
        self._begun[at] += 1
        return self._begun[at]


class _Worker:
    """What Ray Data keeps in each worker process; takes tables of one row, a chunk."""

    def __init__(self, settings: CheckSettings, begin: Callable[[int], int]) -> None:
        self._checker = RowChecker(settings)
        self._begin = begin

    def __call__(self, table: Any) -> Any:
        numbers: list[int] = table["at"].to_pylist()
        texts: list[bytes] = table["chunk"].to_pylist()
        return _table(
            numbers, "sent", [self._one(at, *pickle.loads(text)) for at, text in zip(numbers, texts, strict=True)]
        )

    def _one(self, at: int, piece: FileRange | None, data: bytes | None) -> Sent:
        tries = self._begin(at)
        if data is None or tries > _MOST_TRIES:
            return Sent(None, tries)
        try:
            return Sent(self._checker.check(_rows_of(piece, data)), tries)
        except Exception:  # the driver looks for the row at fault
            return Sent(None, tries)


class _Begin:
    """Asks the ledger, from a worker."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger

    def __call__(self, at: int) -> int:
        ray: Any = importlib.import_module("ray")
        return ray.get(self._ledger.begin.remote(at))


def _read(table: Any) -> Any:
    """Chunks as their bytes, None where they cannot be read; runs on the machine where the files are."""
    places: list[Place] = [pickle.loads(text) for text in table["place"].to_pylist()]
    return _table(table["at"].to_pylist(), "chunk", [(place.piece, _bytes_of(place)) for place in places])


def _bytes_of(place: Place) -> bytes | None:
    try:
        return place.read()
    except InputError:  # the driver reads it again, and says what is wrong
        return None


def _table(numbers: list[int], name: str, values: Iterable[object]) -> Any:
    """An Arrow table of chunk numbers and pickled values."""
    pyarrow: Any = importlib.import_module("pyarrow")
    texts = [pickle.dumps(value, pickle.HIGHEST_PROTOCOL) for value in values]
    return pyarrow.table({"at": numbers, name: pyarrow.array(texts, pyarrow.large_binary())})


def _sent(ray: Any, places: list[Place], settings: CheckSettings, workers: int) -> Generator[tuple[int, Sent]]:
    """What the workers give back, in order."""
    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.execution_options.preserve_order = True
    here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    ledger = ray.remote(num_cpus=0, label_selector=here)(_Ledger).remote()
    table: dict[str, Any] = {"batch_size": 1, "batch_format": "pyarrow"}
    with ray.data.DataContext.current(context):
        rows = [{"at": at, "place": pickle.dumps(place)} for at, place in enumerate(places)]
        data = ray.data.from_items(rows, override_num_blocks=len(rows))
        data = data.map_batches(_read, **table, num_cpus=0.5, label_selector=here)
        data = data.map_batches(
            _Worker,
            **table,
            fn_constructor_args=(settings, _Begin(ledger)),
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(rows))),
            num_cpus=1,
        )
        for found in data.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1):
            for at, text in zip(found["at"].to_pylist(), found["sent"].to_pylist(), strict=True):
                yield at, pickle.loads(text)


@dataclass
class Mended:
    """What went wrong on the way, and was done again."""

    again: int = 0
    apart: int = 0

    def told(self) -> str:
        """In words; empty where nothing went wrong."""
        parts = [f"{self.again} pieces were begun again because their worker ended"] if self.again else []
        if self.apart:
            parts.append(f"{self.apart} pieces that no worker could check were checked here, row by row where need be")
        return "; ".join(parts)


def in_order(
    sent: Iterable[tuple[int, Sent]], places: list[Place], settings: CheckSettings, mended: Mended
) -> Generator[Checked]:
    """Every chunk once; those that no worker could check are checked here, in processes of their own."""
    expected = undone = 0
    for at, one in sent:
        if at != expected:
            raise NoRayError(f"Ray gave piece {at} of the data where {expected} was due. Run the command again.")
        expected += 1
        mended.again += one.tries > 1
        undone = 0 if one.checked is not None else undone + 1
        if undone > _UNDONE_IN_A_ROW:
            raise NoRayError(
                f"{undone} pieces of the data one after the other could not be checked by the workers of Ray. See that "
                "every machine has the same plansmith, and memory enough; then run the command again."
            )
        mended.apart += one.checked is None
        yield one.checked if one.checked is not None else _here(places[at], settings)
    if expected != len(places):
        raise NoRayError(f"Ray gave {expected} of {len(places)} pieces of the data. Run the command again.")


def _here(place: Place, settings: CheckSettings) -> Checked:
    return check_apart(_rows_of(place.piece, place.read()), settings)


def check_apart(rows: list[Item | Reject], settings: CheckSettings) -> Checked:
    """Check rows one by one in a process of its own; one that ends it, also when alone, is a reject."""
    found: list[Checked] = []
    suspect: int | None = None
    while (at := len(found)) < len(rows):
        try:
            _one_by_one(rows[at : at + 1] if at == suspect else rows[at:], settings, found)
        except _EndedError:
            if (row := len(found)) == suspect:
                found.append(given_up(rows[row : row + 1], "checking the row ended the process that did it"))
            suspect = row
    tallies = Tallies()
    for one in found:
        tallies.add(one.tallies)
    return Checked([line for one in found for line in one.lines], tallies)


def _one_by_one(rows: list[Item | Reject], settings: CheckSettings, found: list[Checked]) -> None:
    """Check rows in a process of their own, and append what became of each; raises `_EndedError`."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=_begin_apart, initargs=(settings,)) as pool:
        try:
            pool.submit(os.getpid).result()
        except BrokenProcessPool as error:
            raise PlansmithError(
                "no process can be started here to check rows in. A script that builds data needs the line "
                "if __name__ == '__main__': around what it does."
            ) from error
        try:
            for row in rows:
                found.append(pool.submit(_check_row, row).result())
        except BrokenProcessPool as error:
            raise _EndedError from error


class _Apart:
    """What a spawned process keeps."""

    checker: RowChecker | None = None


def _begin_apart(settings: CheckSettings) -> None:
    _Apart.checker = RowChecker(settings)


def _check_row(row: Item | Reject) -> Checked:
    assert _Apart.checker is not None, "the process was not started by '_one_by_one'"
    try:
        return _Apart.checker.check([row])
    except Exception as error:  # whatever a row does to the code, it must not end the build
        return given_up([row], f"checking the row failed with {type(error).__name__}: {error}")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".") + "."
