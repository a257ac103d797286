"""Rows on disk survive a kill, a full disk and hostile files."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from plansmith.contract import InputError
from plansmith.contract.records import Candidate
from plansmith.contract.store import StorageError, append_row, file_hash, iter_lines, read_rows, write_rows, write_text
from tests.contract.strategies import json_values


def row(name: str, plan: Any = ()) -> Candidate:
    return Candidate(id=name, query="q", plan=list(plan), family="f", source="s")


def test_a_half_row_of_a_killed_writer_is_not_read_and_is_cut_off_by_the_next_append(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_row(path, row("a"))
    with path.open("ab") as file:
        file.write(b'{"version":1,"id":"ha')
    assert [r.id for r in read_rows(path, Candidate)] == ["a"]
    append_row(path, row("b"))
    assert [r.id for r in read_rows(path, Candidate)] == ["a", "b"]


def test_a_half_row_longer_than_the_search_window_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_row(path, row("a"))
    with path.open("ab") as file:
        file.write(b"x" * 200_000)
    append_row(path, row("b"))
    assert [r.id for r in read_rows(path, Candidate)] == ["a", "b"]


@given(json_values())
def test_rows_with_mixed_arguments_come_back_unchanged(tmp_path_factory: Any, value: Any) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows = [row("a", [{"type": "w", "args": {"x": value}}]), row("b", [{"type": "w", "args": {"y": [value, 1, 1.0]}}])]
    write_rows(path, rows)
    back = read_rows(path, Candidate)
    assert back == rows
    assert [r.model_dump_json() for r in back] == [r.model_dump_json() for r in rows]


def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(row("a").model_dump_json() + "\n" + '{"id":"b"}\n')
    with pytest.raises(InputError, match=r"rows\.jsonl, line 2: "):
        read_rows(path, Candidate)


def test_absent_and_undecodable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="absent"):
        list(iter_lines(tmp_path / "absent.jsonl"))
    (tmp_path / "latin.jsonl").write_bytes(b"caf\xe9\n")
    with pytest.raises(InputError, match="not UTF-8"):
        list(iter_lines(tmp_path / "latin.jsonl"))


def test_a_full_disk_leaves_earlier_rows_and_files_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, text = tmp_path / "rows.jsonl", tmp_path / "text"
    append_row(path, row("a"))
    write_text(text, "earlier")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        append_row(path, row("b"))
    with pytest.raises(StorageError, match="No space left"):
        write_text(text, "later")
    monkeypatch.undo()
    assert [r.id for r in read_rows(path, Candidate)] == ["a"]
    assert text.read_text() == "earlier"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rows.jsonl", "text"]


def test_the_file_hash_is_sha256(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    assert file_hash(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
