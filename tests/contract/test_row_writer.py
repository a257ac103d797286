"""The row writer: whole rows in order, one writer a file, and errors that reach the caller."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pydantic import BaseModel

from plansmith.contract.errors import InputError
from plansmith.contract.row_writer import RowWriter
from plansmith.contract.store import StorageError, read_rows


class Row(BaseModel):
    number: int
    text: str = ""


def numbers(path: Path) -> list[int]:
    return [row.number for row in read_rows(path, Row)]


def test_rows_of_many_threads_are_whole_and_each_threads_rows_in_order(tmp_path: Path):
    path = tmp_path / "deep" / "rows.jsonl"
    with RowWriter(path) as writer:
        threads = [
            threading.Thread(target=lambda n=n: [writer.put(Row(number=100 * n + i, text="é\n")) for i in range(50)])
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = numbers(path)
    assert len(found) == 200
    for n in range(4):
        assert [number for number in found if number // 100 == n] == list(range(100 * n, 100 * n + 50))
    with RowWriter(path) as writer:
        writer.put(Row(number=999))
    assert numbers(path) == [*found, 999]


def test_a_half_row_of_a_killed_writer_is_cut_off(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"number":1}\n{"number":2,"te')
    with RowWriter(path) as writer:
        writer.put(Row(number=3))
    assert path.read_bytes() == b'{"number":1}\n{"number":3,"text":""}\n'
    path.write_bytes(b"x" * 200_000)
    RowWriter(path).close()
    assert path.read_bytes() == b""


def test_a_second_writer_is_refused_until_the_first_is_closed(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    with RowWriter(path), pytest.raises(InputError, match="another plansmith process"):
        RowWriter(path)
    RowWriter(path).close()


def put_and_raise(path: Path) -> None:
    with RowWriter(path) as writer:
        with pytest.raises(StorageError):
            writer.put(Row(number=2))
        raise KeyError


def test_a_full_disk_reaches_the_caller_and_keeps_the_rows_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "rows.jsonl"
    with RowWriter(path) as writer:
        writer.put(Row(number=1))
    real = os.write

    def half(handle: int, data: bytes) -> int:
        if b'"number":2' in data:
            return real(handle, data[:5])
        return real(handle, data)

    monkeypatch.setattr(os, "write", half)
    writer = RowWriter(path)
    with pytest.raises(StorageError, match="cannot append"):
        writer.put(Row(number=2))
    with pytest.raises(StorageError, match=os.strerror(errno.ENOSPC)):
        writer.close()
    with pytest.raises(StorageError):
        writer.put(Row(number=3))
    assert numbers(path) == [1]
    with pytest.raises(StorageError, match="cannot append"), RowWriter(tmp_path):
        pass
    with pytest.raises(KeyError):  # the first error is the one that is told
        put_and_raise(path)


def test_a_row_put_after_the_end_is_an_error_of_the_program(tmp_path: Path):
    writer = RowWriter(tmp_path / "rows.jsonl")
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.put(Row(number=1))


KILLED = """
import sys, time
from pydantic import BaseModel
from plansmith.contract.row_writer import RowWriter
class Row(BaseModel):
    number: int
    text: str = "x" * 5000
with RowWriter(sys.argv[1]) as writer:
    for number in range(10**9):
        writer.put(Row(number=number))
        print(number, flush=True)
        time.sleep(0.0005)
"""


def test_a_killed_writer_leaves_whole_rows_and_no_lock(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 300:
                process.send_signal(signal.SIGKILL)
                break
    found = numbers(path)
    assert found == list(range(len(found)))
    assert len(found) > 300, "a row that was put before the kill is not on disk"
    RowWriter(path).close()
    assert path.read_bytes().endswith(b"\n")
