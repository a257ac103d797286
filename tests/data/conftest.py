"""A small catalog and rows for the data stage's tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

CATALOG: dict[str, Any] = {
    "version": 1,
    "name": "demo",
    "workers": [
        {
            "name": name,
            "description": f"Does {name}.",
            "args": {
                "type": "object",
                "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
                "required": ["a"],
            },
            "returns": {"type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": False},
            "effect": "read",
        }
        for name in ("one", "two", "three")
    ],
}

RowWriter = Callable[[Iterable[Any]], Path]


@pytest.fixture
def catalog_file(tmp_path: Path) -> Path:
    path = tmp_path / "catalog.json"
    path.write_text(json.dumps(CATALOG))
    return path


@pytest.fixture
def write_jsonl(tmp_path: Path) -> RowWriter:
    """Write `rows.jsonl`: objects as JSON, bytes as they are."""

    def write(rows: Iterable[Any]) -> Path:
        path = tmp_path / "rows.jsonl"
        lines = [row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows]
        path.write_bytes(b"".join(lines))
        return path

    return write
