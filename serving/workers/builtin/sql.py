"""Queries a SQLite file without being able to change it.

Read-only three times over: the file is opened read-only, `query_only` is set, and an authorizer lets only reading and a
list of functions through (no ATTACH, PRAGMA, extension, write). One statement with bound values; rows, bytes and time
are limited, and what is beyond is a failure or is said, never dropped in silence.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from plansmith.contract.errors import InputError
from plansmith.serving.workers.base import FailureCode, WorkerError
from plansmith.serving.workers.decorator import FunctionWorker, worker

Value = str | int | float | bool | None
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_NAMES = """
abs avg coalesce count date datetime glob group_concat ifnull iif instr julianday length like lower ltrim max min nullif
printf format replace round rtrim sign strftime substr substring sum time total trim typeof unicode unixepoch upper
row_number rank dense_rank lag lead first_value last_value json_extract json_array_length json_type
"""
FUNCTIONS = frozenset(_NAMES.split())
"""Functions that a query may call."""
_STEPS = 2000


class Rows(BaseModel):
    """What a query found."""

    columns: list[str]
    rows: list[list[Value]]
    more: bool
    """Whether there are more rows than were asked for at the most."""


def sql_query(
    path: str | Path, *, max_rows: int = 200, max_bytes: int = 1 << 18, seconds: float = 5.0, name: str = "sql_query"
) -> FunctionWorker[..., Rows]:
    """The worker that queries a database.

    Args:
        path: the SQLite file.
        max_rows: most rows of a result; `more` says whether there were others.
        max_bytes: most characters of all values together; a larger result is refused.
        seconds: time limit of a query.
        name: of the worker.

    Raises:
        InputError: there is no such file.

    """
    file = Path(path).resolve()
    if not file.is_file():
        raise InputError(f"there is no database {str(path)!r}.")

    def query(statement: str, values: list[Value] | None = None) -> Rows:
        """Read rows from the database.

        Args:
            statement: one SELECT statement (SQLite), with ? for each value.
            values: what stands for each ?.
        """
        connection = _connect(file, seconds)
        try:
            cursor = connection.execute(statement, tuple(values or ()))
            if cursor.description is None:
                raise _forbidden("select", "the statement gives no rows; only SELECT is allowed.")
            found = cursor.fetchmany(max_rows + 1)
            columns = [str(column[0]) for column in cursor.description]
        except sqlite3.Error as error:
            raise _failure(error) from error
        finally:
            connection.close()
        rows = [[_shown(value) for value in row] for row in found[:max_rows]]
        size = sum(len(str(value)) for row in rows for value in row)
        if size > max_bytes:
            raise _forbidden("size", f"the result has {size} characters; at most {max_bytes} are given. Ask for less.")
        return Rows(columns=columns, rows=rows, more=len(found) > max_rows)

    return worker(name=name, effect="read", idempotent=True, timeout_s=seconds + 5)(query)


def _connect(file: Path, seconds: float) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=1.0)
    except sqlite3.Error as error:
        raise WorkerError(FailureCode.UNAVAILABLE, "the database cannot be opened.", retryable=True) from error
    connection.execute("PRAGMA query_only=ON")
    connection.execute("PRAGMA trusted_schema=OFF")
    end = time.monotonic() + seconds
    connection.set_progress_handler(lambda: int(time.monotonic() > end), _STEPS)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1 << 22)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 20_000)
    connection.set_authorizer(_authorize)
    return connection


def _authorize(action: int, first: str | None, second: str | None, database: str | None, source: str | None) -> int:
    """Whether a statement may do something; `second` is a function's name."""
    del first, database, source
    if action in _ALLOWED:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (second or "").casefold() in FUNCTIONS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _shown(value: Any) -> Value:
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else value


def _failure(error: sqlite3.Error) -> WorkerError:
    text = str(error)
    if "interrupted" in text:
        return WorkerError(FailureCode.TIMEOUT, "rule 'time': the query took too long. Ask for less.")
    if any(word in text for word in ("not authorized", "authorization denied", "prohibited", "readonly", "read-only")):
        return _forbidden("reading", f"only reading is allowed ({text}).")
    if "You can only execute one statement" in text:
        return _forbidden("one", "one statement at a time.")
    return WorkerError(FailureCode.INVALID_ARGUMENT, f"the statement cannot be run: {text}.")


def _forbidden(rule: str, message: str) -> WorkerError:
    return WorkerError(FailureCode.FORBIDDEN, f"rule {rule!r}: {message}")
