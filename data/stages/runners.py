"""Who checks the chunks: this process, or several. Results come in the order of the chunks, whoever is faster.

A chunk is a piece of a file, which the checking process reads by itself, or a list of rows. At most a few chunks a
process are under way, so memory does not grow with the number of rows. Processes are spawned, not forked.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple, Protocol

from plansmith.contract.errors import PlansmithError
from plansmith.contract.processes import follow_parent
from plansmith.contract.records import Reject
from plansmith.data.sources.lines import FileRange, read_range
from plansmith.data.stages.rows import Checked, CheckSettings, Item, RowChecker

Chunk = FileRange | list[Item | Reject]
ROWS_AT_ONCE = 200
"""Rows of a chunk that is a list."""
MANY_ROWS = 20_000
"""Rows from which several processes are worth their start, where nobody says how many."""
_AHEAD = 3


class Runner(Protocol):
    """Checks chunks."""

    def run(self, chunks: Iterable[Chunk], settings: CheckSettings) -> Generator[Checked]:
        """What became of each chunk, in order."""
        ...


def check_chunk(checker: RowChecker, chunk: Chunk) -> Checked:
    """Check one chunk, wherever this runs."""
    if isinstance(chunk, FileRange):
        return checker.check(row if isinstance(row, Reject) else Item(row) for row in read_range(chunk))
    return checker.check(chunk)


class InProcess:
    """Checks in this process, one chunk after the other."""

    def run(self, chunks: Iterable[Chunk], settings: CheckSettings) -> Generator[Checked]:
        checker = RowChecker(settings)
        for chunk in chunks:
            yield check_chunk(checker, chunk)


class Processes(NamedTuple):
    """Checks in processes of its own on this machine."""

    number: int

    def run(self, chunks: Iterable[Chunk], settings: CheckSettings) -> Generator[Checked]:
        """Check chunks.

        Raises:
            PlansmithError: a process was killed.

        """
        pool = ProcessPoolExecutor(
            self.number, multiprocessing.get_context("spawn"), initializer=_start, initargs=(settings,)
        )
        try:
            under_way: deque[Future[Checked]] = deque()
            for chunk in chunks:
                under_way.append(pool.submit(_check, chunk))
                if len(under_way) >= _AHEAD * self.number:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        except BrokenProcessPool as error:
            raise PlansmithError(
                "a process that checks rows has ended (killed, or out of memory; or a script builds data outside of "
                "\"if __name__ == '__main__'\", which processes of its own need). Run the command again; fewer "
                "processes (data.processes) need less memory."
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def runner_for(processes: int | None, rows: int) -> Runner:
    """The runner for so many rows; `processes` None decides by their number and the machine's cores."""
    if processes is None:
        processes = _cores() if rows >= MANY_ROWS else 1
    return Processes(processes) if processes > 1 else InProcess()


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Worker:
    """What a spawned process keeps."""

    checker: RowChecker | None = None


def _start(settings: CheckSettings) -> None:
    follow_parent()
    _Worker.checker = RowChecker(settings)


def _check(chunk: Chunk) -> Checked:
    assert _Worker.checker is not None, "the process was not started by 'Processes'"
    return check_chunk(_Worker.checker, chunk)
