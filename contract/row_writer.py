"""Appends rows from many callers to one JSONL file, and has a thread sync it, so that no caller waits for the disk.

A row is handed to the system before `put` returns, so a killed process loses none that it put, and leaves at most one
half row, which readers see as absent and the next writer cuts off. The thread syncs many times a second while rows
come, so a machine that stops loses at most the rows of the last few hundredths of a second. One writer a file: a second
one, in this process or another, is refused. Not covered: file systems without locks, where the second one is not
noticed.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import IO, Self

from pydantic import BaseModel

from plansmith.contract.errors import InputError
from plansmith.contract.store import StorageError

_CHUNK = 65536
_GATHERED_S = 0.01
"""Rows of so many seconds are synced together: waking a thread for each costs more than all else."""


class RowWriter:
    """Use in `with`: leaving the block waits until all rows are on disk."""

    def __init__(self, path: str | Path) -> None:
        """Open the file for appending, and cut off a half row of a killed writer.

        Raises:
            InputError: another writer has the file open.
            StorageError: the file cannot be opened.

        """
        self.path = Path(path)
        self._changed = threading.Condition()
        self._closed = False
        self._unsynced = False
        self._error: OSError | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b", buffering=0)
        except OSError as error:
            raise self._storage_error(error) from error
        try:
            _lock(self._file, self.path)
            self._end = _end_of_last_row(self._file.fileno())
            self._file.truncate(self._end)
        except BaseException:
            self._file.close()
            raise
        self._thread = threading.Thread(target=self._work, name="plansmith-rows", daemon=True)
        self._thread.start()

    def put(self, row: BaseModel) -> None:
        """Write a row; it is on disk a moment later. From any thread.

        Raises:
            StorageError: this row or an earlier one could not be written; the rows before it are kept.

        """
        data = (row.model_dump_json() + "\n").encode()
        with self._changed:
            if self._error is None and self._closed:
                raise ValueError("the writer is closed")
            if self._error is None:
                try:
                    self._write(data)
                except OSError as error:
                    self._error = error
            if self._error is not None:
                raise self._storage_error(self._error)
            if not self._unsynced:
                self._unsynced = True
                self._changed.notify()

    def close(self) -> None:
        """Wait until every row is on disk, and close the file; raises `StorageError` if one could not be written."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        self._file.close()
        if self._error is not None:
            raise self._storage_error(self._error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except StorageError:
            if kind is None:
                raise

    def _work(self) -> None:
        """Sync as long as there is something to sync."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unsynced or self._closed)
                if not self._unsynced:
                    return
                self._changed.wait_for(lambda: self._closed, _GATHERED_S)
                self._unsynced = False
            try:
                os.fsync(self._file.fileno())
            except OSError as error:
                with self._changed:
                    self._error = error
                return

    def _write(self, data: bytes) -> None:
        """One write; where it fails, the row is cut off again."""
        try:
            if os.write(self._file.fileno(), data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._file.truncate(self._end)
            raise
        self._end += len(data)

    def _storage_error(self, error: OSError) -> StorageError:
        return StorageError(f"cannot append to {str(self.path)!r}: {error.strerror or error}. Earlier rows are kept.")


def _lock(file: IO[bytes], path: Path) -> None:
    """Hold the file for this writer; the lock goes with the file's handle, also when the process is killed."""
    try:
        import fcntl
    except ImportError:
        return  # no such locks on this system
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(
            f"another plansmith process is appending to {str(path)!r}. Wait until it ends, or write elsewhere."
        ) from error
    except OSError:
        return  # a file system without locks


def _end_of_last_row(handle: int) -> int:
    """Byte offset after the last newline of an open file."""
    end = os.lseek(handle, 0, os.SEEK_END)
    while end:
        start = max(0, end - _CHUNK)
        found = os.pread(handle, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
