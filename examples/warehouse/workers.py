"""A warehouse in a SQLite file: workers that read it, and two that write.

Shows what writing takes. `stock_reorder` spends money: it asks a person (`approval`), needs a permission, and puts its
row under the call's idempotency key, so a call that is made twice orders once. `stock_note` is idempotent: the same
note twice is one note. The file is `PLANSMITH_WAREHOUSE` or `out/warehouse.sqlite`, made with a few items at first use.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from plansmith.serving.workers.base import CallInfo, FailureCode, WorkerError
from plansmith.serving.workers.decorator import worker
from plansmith.serving.workers.registry import Registry

ITEMS = (("A-100", "steel bolt M8", 40, 200), ("B-200", "oak plank 2 m", 12, 10), ("C-300", "wood glue 1 l", 3, 24))
_TABLES = """
CREATE TABLE IF NOT EXISTS items (sku TEXT PRIMARY KEY, name TEXT, stock INTEGER, least INTEGER);
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, key TEXT UNIQUE, sku TEXT, count INTEGER);
CREATE TABLE IF NOT EXISTS notes (sku TEXT, text TEXT, UNIQUE (sku, text));
"""


class Item(BaseModel):
    """An item as the warehouse knows it."""

    sku: str
    name: str


class Level(BaseModel):
    """How much of an item there is."""

    stock: int
    least: int
    missing: int


class Order(BaseModel):
    """An order that was placed."""

    order_id: str
    count: int


@contextmanager
def warehouse() -> Generator[sqlite3.Connection]:
    """The file, committed at the end."""
    path = Path(os.environ.get("PLANSMITH_WAREHOUSE", "out/warehouse.sqlite"))
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=10)
    try:
        with connection:
            connection.executescript(_TABLES)
            connection.executemany("INSERT OR IGNORE INTO items VALUES (?, ?, ?, ?)", ITEMS)
            yield connection
    finally:
        connection.close()


@worker(effect="read", idempotent=True, timeout_s=5)
def stock_find(text: str) -> Item:
    """Find the item that a text names.

    Args:
        text: part of its name or its number.
    """
    with warehouse() as db:
        row = db.execute(
            "SELECT sku, name FROM items WHERE sku = ? OR instr(lower(name), lower(?)) ORDER BY sku", (text, text)
        ).fetchone()
    if row is None:
        raise WorkerError(FailureCode.NOT_FOUND, f"the warehouse has no item like {text!r}.")
    return Item(sku=row[0], name=row[1])


@worker(effect="read", idempotent=True, timeout_s=5)
def stock_level(sku: str) -> Level:
    """How much of an item there is, and how much is missing.

    Args:
        sku: number of the item.
    """
    with warehouse() as db:
        row = db.execute("SELECT stock, least FROM items WHERE sku = ?", (sku,)).fetchone()
    if row is None:
        raise WorkerError(FailureCode.NOT_FOUND, f"the warehouse has no item {sku!r}.")
    return Level(stock=row[0], least=row[1], missing=max(0, row[1] - row[0]))


@worker(effect="write", permission="purchasing", approval=True, timeout_s=10)
def stock_reorder(sku: str, count: Annotated[int, Field(ge=1, le=10_000)], call: CallInfo) -> Order:
    """Order more of an item; a person has to agree.

    Args:
        sku: number of the item.
        count: how many.
        call: which call this is; no plan can set it.
    """
    key = call.idempotency_key
    with warehouse() as db:
        db.execute("INSERT OR IGNORE INTO orders (key, sku, count) VALUES (?, ?, ?)", (key, sku, count))
        number, ordered = db.execute("SELECT id, count FROM orders WHERE key = ?", (key,)).fetchone()
    return Order(order_id=f"PO-{number}", count=ordered)


@worker(effect="write", idempotent=True, permission="notes", timeout_s=5)
def stock_note(sku: str, text: str) -> str:
    """Write a note to an item.

    Args:
        sku: number of the item.
        text: what it says.
    """
    with warehouse() as db:
        db.execute("INSERT OR IGNORE INTO notes VALUES (?, ?)", (sku, text))
    return f"noted at {sku}"


REGISTRY = Registry("warehouse", [stock_find, stock_level, stock_reorder, stock_note])
