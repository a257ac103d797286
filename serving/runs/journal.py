"""The journal of runs: what was asked, what was sent, what came back, so that a crash loses and repeats nothing.

A SQLite file in WAL mode that holds JSON and numbers only, with a schema version. One thread of its own writes; what
waits is written in one transaction (group commit) and acknowledged when it is on disk (`synchronous=FULL`). A run is
claimed by a POSIX lock on a byte of the file beside it, which ends with its process, so two processes never run one.
Not covered: journals on network file systems, systems without `fcntl`, and several hosts.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from plansmith.contract.errors import InputError
from plansmith.contract.plan import Json, dumps

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE runs (number INTEGER PRIMARY KEY, run_id TEXT UNIQUE NOT NULL, catalog TEXT NOT NULL, query TEXT NOT NULL,
    plan TEXT NOT NULL, status TEXT NOT NULL, begun REAL NOT NULL);
CREATE TABLE steps (run_id TEXT NOT NULL REFERENCES runs(run_id), step INTEGER NOT NULL, key TEXT NOT NULL,
    status TEXT NOT NULL, outcome TEXT, PRIMARY KEY (run_id, step)) WITHOUT ROWID;
"""
RUNNING = "running"
"""Status of a run that has not ended, as far as the journal knows."""
DISPATCHED = "dispatched"
"""Status of a step that was sent and has not come back, as far as the journal knows."""
T = TypeVar("T")


class JournalError(InputError):
    """The journal cannot be used, or does not have what was asked for."""


class SavedStep(NamedTuple):
    """A step as the journal knows it."""

    key: str
    status: str
    outcome: Json


class SavedRun(NamedTuple):
    """A run as the journal knows it."""

    run_id: str
    catalog: str
    """Hash of the catalog that it was checked against."""
    query: str
    plan: Json
    status: str
    steps: dict[int, SavedStep]


class _Locks:
    """Locks of one journal's runs in this process; its descriptor stays open, since closing one drops all locks."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.held: set[int] = set()


_LOCKS: dict[str, _Locks] = {}
_LOCKS_GUARD = threading.Lock()


class Journal:
    """Runs in a file; an async context manager."""

    def __init__(self, path: str | Path) -> None:
        """Open or make it.

        Raises:
            JournalError: it is no journal, or one of a newer version.

        """
        self.path = Path(path)
        self._jobs: queue.SimpleQueue[tuple[Callable[[sqlite3.Connection], Any], Callable[..., None]] | None] = (
            queue.SimpleQueue()
        )
        self._closed = False
        self._claims: dict[str, int] = {}
        try:
            self._db = _open(self.path)
            real = str(self.path.resolve())
            with _LOCKS_GUARD:
                self._locks = _LOCKS.get(real) or _LOCKS.setdefault(real, _Locks(real + ".locks"))
        except (sqlite3.Error, OSError) as error:
            raise JournalError(f"{self.path} cannot be used as a journal: {error}. Name another file.") from error
        self._thread = threading.Thread(target=self._write, name="plansmith-journal", daemon=True)
        self._thread.start()

    async def begin(self, run_id: str, catalog: str, query: str, plan: Json) -> None:
        """Record a new run and claim it; raises `JournalError` where the name is taken."""

        def write(db: sqlite3.Connection) -> None:
            row = (run_id, catalog, dumps(query), dumps(plan), RUNNING, time.time())
            db.execute("INSERT INTO runs (run_id, catalog, query, plan, status, begun) VALUES (?,?,?,?,?,?)", row)

        try:
            await self._do(write)
        except sqlite3.IntegrityError:
            raise JournalError(f"the journal has a run {run_id!r} already; resume it or take another id.") from None
        await self.claim(run_id)

    async def claim(self, run_id: str) -> None:
        """Make sure that nobody else runs it until it is released or this process ends.

        Raises:
            JournalError: there is no such run, or somebody else has it.

        """
        number = await self._do(lambda db: db.execute("SELECT number FROM runs WHERE run_id=?", (run_id,)).fetchone())
        if number is None:
            raise JournalError(f"{self.path} has no run {run_id!r}.")
        with _LOCKS_GUARD:
            taken = number[0] in self._locks.held
            if not taken:
                try:
                    fcntl.lockf(self._locks.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number[0])
                except OSError:
                    taken = True
                else:
                    self._locks.held.add(number[0])
                    self._claims[run_id] = number[0]
        if taken:
            raise JournalError(f"run {run_id!r} is being run by somebody else; wait until it ends.")

    def release(self, run_id: str) -> None:
        """Let others go on with it; one that is not claimed is left alone."""
        with _LOCKS_GUARD:
            number = self._claims.pop(run_id, None)
            if number is not None:
                self._locks.held.discard(number)
                fcntl.lockf(self._locks.descriptor, fcntl.LOCK_UN, 1, number)

    async def dispatched(self, run_id: str, step: int, key: str) -> None:
        """Record that a step is about to be sent; returns when that is on disk."""
        sql = "INSERT OR REPLACE INTO steps (run_id, step, key, status) VALUES (?,?,?,?)"
        await self._do(lambda db: db.execute(sql, (run_id, step, key, DISPATCHED)) and None)

    async def ended(self, run_id: str, step: int, key: str, status: str, outcome: Json) -> None:
        """Record how a step ended; returns when that is on disk."""
        text = dumps(outcome)
        sql = "INSERT OR REPLACE INTO steps (run_id, step, key, status, outcome) VALUES (?,?,?,?,?)"
        await self._do(lambda db: db.execute(sql, (run_id, step, key, status, text)) and None)

    async def finished(self, run_id: str, status: str) -> None:
        """Record how a run ended."""
        await self._do(lambda db: db.execute("UPDATE runs SET status=? WHERE run_id=?", (status, run_id)) and None)

    async def load(self, run_id: str) -> SavedRun:
        """What it knows of a run; raises `JournalError` where there is none."""

        def read(db: sqlite3.Connection) -> SavedRun | None:
            sql = "SELECT catalog, query, plan, status FROM runs WHERE run_id=?"
            row = db.execute(sql, (run_id,)).fetchone()
            if row is None:
                return None
            rows = db.execute("SELECT step, key, status, outcome FROM steps WHERE run_id=?", (run_id,))
            steps = {index: SavedStep(key, status, json.loads(text or "null")) for index, key, status, text in rows}
            return SavedRun(run_id, row[0], json.loads(row[1]), json.loads(row[2]), row[3], steps)

        found = await self._do(read)
        if found is None:
            raise JournalError(f"{self.path} has no run {run_id!r}.")
        return found

    async def aclose(self) -> None:
        """Write what waits and close the file; a second time does nothing."""
        if self._closed:
            return
        self._closed = True
        for run_id in list(self._claims):
            self.release(run_id)
        self._jobs.put(None)
        while self._thread.is_alive():
            await asyncio.sleep(0.001)

    async def __aenter__(self) -> Journal:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _do(self, job: Callable[[sqlite3.Connection], T]) -> T:
        if self._closed:
            raise JournalError(f"{self.path} is closed.")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: Any, error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def answer(result: Any, error: Exception | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, error)

        self._jobs.put((job, answer))
        try:
            return await future
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise JournalError(f"{self.path} could not be written or read: {error}.") from error

    def _write(self) -> None:
        """The thread: everything that waits becomes one transaction."""
        last = False
        while not last:
            waiting = [self._jobs.get()]
            while not self._jobs.empty():
                waiting.append(self._jobs.get())
            last = None in waiting
            answers: list[tuple[Callable[..., None], Any, Exception | None]] = []
            try:
                self._db.execute("BEGIN IMMEDIATE")
                answers = [(entry[1], *_one(self._db, entry[0])) for entry in waiting if entry is not None]
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                answers = [(entry[1], None, error) for entry in waiting if entry is not None]
            for answer, result, error in answers:
                answer(result, error)
        self._db.close()


def _one(db: sqlite3.Connection, job: Callable[[sqlite3.Connection], Any]) -> tuple[Any, Exception | None]:
    db.execute("SAVEPOINT one")
    try:
        result = job(db)
    except Exception as error:
        db.execute("ROLLBACK TO one")
        return None, error
    finally:
        db.execute("RELEASE one")
    return result, None


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("BEGIN IMMEDIATE")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version == 0 and tables == 0:
            for statement in _SCHEMA.split(";")[:-1]:
                db.execute(statement)
            db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        elif version != SCHEMA_VERSION:
            found = f"version {version}" if version else "tables of something else"
            raise JournalError(
                f"{path} has {found}; this plansmith reads journals of version {SCHEMA_VERSION}. "
                "Use the plansmith that wrote it, or name another file."
            )
        db.execute("COMMIT")
    except BaseException:
        db.close()
        raise
    return db
