"""Threads for sync workers: daemons of our own, bounded in number, from which a caller can walk away.

asyncio's default executor is not used: its threads are joined at the end of the process and of the loop, so one hanging
worker would hang both, and would take a thread from everybody else's work. A thread cannot be ended from outside. So a
caller who is cancelled goes at once, the thread goes on, and what it gives later is dropped and counted. A call that
still waits for a thread is taken back and never starts.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """What a call gave: a value, or what it raised. An exception as data harms neither thread nor event loop."""

    value: Any = None
    error: BaseException | None = None


class ThreadCounts(NamedTuple):
    """A moment of a pool."""

    threads: int
    """alive, at most the limit"""
    busy: int
    """inside a worker, also those that nobody waits for any more"""
    queued: int
    """calls that wait for a thread"""
    late: int
    """results so far that came after the caller had gone; they were dropped"""
    withdrawn: int
    """calls so far that were taken back before a thread took them; they never ran"""


@dataclass(slots=True, eq=False)
class _Job:
    context: contextvars.Context
    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Outcome]


class WorkerThreads:
    """A pool of daemon threads that grows when work waits, and shrinks when there is none."""

    def __init__(self, limit: int = 128, *, idle_s: float = 10.0) -> None:
        """Start no thread yet.

        Args:
            limit: most threads alive, hanging ones included; further calls wait.
            idle_s: seconds after which a thread without work ends.

        """
        if limit < 1:
            raise ValueError(f"a pool needs at least one thread, found limit={limit}.")
        self.limit = limit
        self._idle_s = idle_s
        self._queue: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._threads = self._idle = self._late = self._withdrawn = 0

    def counts(self) -> ThreadCounts:
        """How it stands."""
        with self._changed:
            busy = self._threads - self._idle
            return ThreadCounts(self._threads, busy, len(self._queue), self._late, self._withdrawn)

    async def run(self, work: Callable[[], Any]) -> Outcome:
        """Run `work` in a thread, in a copy of the caller's context; whatever it raises comes back as data.

        Raises:
            CancelledError: the caller was cancelled; the wait ends at once, the thread may go on.
            RuntimeError: the system gives no thread, and none is alive.

        """
        loop = asyncio.get_running_loop()
        job = _Job(contextvars.copy_context(), work, loop, loop.create_future())
        self._submit(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            self._withdraw(job)
            raise

    def _submit(self, job: _Job) -> None:
        with self._changed:
            self._queue.append(job)
            if self._idle >= len(self._queue):
                self._changed.notify()
            elif self._threads < self.limit:
                self._start(job)

    def _start(self, job: _Job) -> None:
        """Start one more thread; the lock is held."""
        thread = threading.Thread(target=self._serve, name=f"plansmith-worker-{self._threads}", daemon=True)
        self._threads += 1
        try:
            thread.start()
        except RuntimeError:
            self._threads -= 1
            if self._threads == 0:
                self._queue.remove(job)
                raise

    def _withdraw(self, job: _Job) -> None:
        with self._changed:
            if job in self._queue:
                self._queue.remove(job)
                self._withdrawn += 1

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            outcome = _run(job)
            try:
                job.loop.call_soon_threadsafe(self._deliver, job.future, outcome)
            except RuntimeError:  # the loop is closed: its process or its run has ended
                self._drop()
            del job, outcome

    def _next(self) -> _Job | None:
        with self._changed:
            self._idle += 1
            while not self._queue:
                if not self._changed.wait(self._idle_s) and not self._queue:
                    self._idle -= 1
                    self._threads -= 1
                    return None
            self._idle -= 1
            return self._queue.popleft()

    def _deliver(self, future: asyncio.Future[Outcome], outcome: Outcome) -> None:
        if future.done():
            self._drop()
        else:
            future.set_result(outcome)

    def _drop(self) -> None:
        with self._changed:
            self._late += 1


def _run(job: _Job) -> Outcome:
    try:
        return Outcome(job.context.run(job.work))
    except BaseException as error:  # SystemExit and its like end neither the thread nor the process
        return Outcome(error=error)


def shared_threads() -> WorkerThreads:
    """The pool of this process that workers use unless they are given one of their own."""
    return _shared(os.getpid())


@cache
def _shared(process: int) -> WorkerThreads:
    """One pool a process: the threads of a parent are not there after a fork."""
    return WorkerThreads()
