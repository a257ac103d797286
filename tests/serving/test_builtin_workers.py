"""The workers that come along: what they give, and everything that they have to refuse, by the rule that refuses it."""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plansmith.contract.plan import Json
from plansmith.serving.workers.base import CallInfo, WorkerError
from plansmith.serving.workers.builtin.calculator import calculator, evaluate
from plansmith.serving.workers.builtin.clock import clock_workers
from plansmith.serving.workers.builtin.files import file_read
from plansmith.serving.workers.builtin.sql import sql_query
from plansmith.serving.workers.decorator import FunctionWorker
from plansmith.serving.workers.registry import Registry


def call(one: FunctionWorker[..., Any], **args: Json) -> Any:
    return asyncio.run(one.call(args, CallInfo("run", 0)))


def refusal(one: FunctionWorker[..., Any], **args: Json) -> str:
    with pytest.raises(WorkerError) as caught:
        call(one, **args)
    return f"{caught.value.code}: {caught.value.message}"


def test_all_of_them_make_one_registry():
    registry = Registry("builtin", [calculator(), *clock_workers()])
    assert registry.catalog.names == ("calc_evaluate", "time_now", "time_shift", "time_between")


# calculator


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("2 ** 3 ** 2", 512),
        ("-2 ** 2", -4),
        ("2 ** -2", 0.25),
        ("7 // 2 + 7 % 2", 4),
        ("--3 - -2", 5),
        ("1e3 + .5", 1000.5),
        ("sqrt(16) + max(1, 2, 3)", 7.0),
        ("round(2.567, 1)", 2.6),
        ("log(8, 2)", 3.0),
        ("LOG10(1000) * Pi / pi", 3.0),
        ("10 ** 30 + 1", 10**30 + 1),
    ],
)
def test_the_calculator_computes(expression: str, value: float):
    assert evaluate(expression) == pytest.approx(value, rel=1e-12)
    assert type(evaluate(expression)) is type(value)


@pytest.mark.parametrize(
    ("expression", "rule"),
    [
        ("9**9**9", "size"),
        ("9**9**9**9**9", "size"),
        ("(9**99)**99", "size"),
        ("1e308 * 10", "size"),
        ("1e999", "size"),
        ("10.0 ** 400", "size"),
        ("exp(1000)", "domain"),
        ("(10**300)*(10**300)", "size"),
        ("(10**300)*(10**50)*1.5", "size"),
        ("1" * 301, "digits"),
        ("1/0", "zero"),
        ("1 % 0", "zero"),
        ("0 ** -1", "zero"),
        ("(-8) ** 0.5", "domain"),
        ("sqrt(-1)", "domain"),
        ("(" * 60 + "1" + ")" * 60, "depth"),
        ("2**" * 60 + "1", "depth"),
        ("1+" * 300 + "1", "length"),
        ("round(1.5, 99)", "digits"),
        ("", "grammar"),
        ("1 +", "grammar"),
        ("1 2", "grammar"),
        ("(1", "grammar"),
        ("1)", "grammar"),
        ("sqrt", "grammar"),
        ("sqrt()", "grammar"),
        ("min(1)", "grammar"),
        ("__import__('os').system('true')", "grammar"),
        ("().__class__", "grammar"),
        ("lambda: 1", "grammar"),
        ("x = 1", "grammar"),
        ("1; 2", "grammar"),
        ("factorial(99999)", "grammar"),
        ("0x10", "grammar"),
        ("１+１", "grammar"),
        ("1\x00", "grammar"),
        ("$(reboot)", "grammar"),
        ("`id`", "grammar"),
    ],
)
def test_the_calculator_refuses_quickly_by_a_rule(expression: str, rule: str):
    begun = time.process_time()
    with pytest.raises(WorkerError) as caught:
        evaluate(expression)
    assert f"rule {rule!r}" in caught.value.message
    assert time.process_time() - begun < 0.5


numbers = st.integers(0, 50)
expressions = st.recursive(
    numbers.map(str),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
    max_leaves=8,
)


@given(expressions)
def test_the_calculator_agrees_with_python(expression: str):
    assert evaluate(expression) == eval(expression, {"__builtins__": {}})


@given(st.text(max_size=40))
def test_no_text_does_more_to_the_calculator_than_a_refusal(text: str):
    try:
        value = evaluate(text)
    except WorkerError:
        return
    assert math.isfinite(value)


# clock

NOON = datetime(2026, 12, 1, 12, 0, 30, tzinfo=UTC)


def clock(name: str) -> FunctionWorker[..., Any]:
    return {one.worker.name: one for one in clock_workers(lambda: NOON)}[name]


def test_the_clock_shows_the_time_of_a_zone():
    assert call(clock("time_now"), zone="Asia/Tokyo") == {
        "iso": "2026-12-01T21:00:30+09:00",
        "date": "2026-12-01",
        "time": "21:00",
        "weekday": "Tuesday",
    }


def test_moments_are_moved_and_compared():
    assert call(clock("time_shift"), moment="2024-02-28", days=1)["date"] == "2024-02-29"
    assert call(clock("time_shift"), moment="2026-03-01T23:30:00+02:00", minutes=45)["date"] == "2026-03-02"
    assert call(clock("time_between"), start="2026-01-01", end="2026-01-02T12:00")["hours"] == 36


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("time_now", {"zone": "Mars/Base"}, "no time zone 'Mars/Base'"),
        ("time_now", {"zone": "../../etc/passwd"}, "no time zone"),
        ("time_shift", {"moment": "tomorrow"}, "no moment in ISO form"),
        ("time_shift", {"moment": "9999-12-31", "days": 1}, "years 1 to 9999"),
        ("time_shift", {"moment": "2026-01-01", "days": 10**9}, "days"),
        ("time_between", {"start": "2026-13-01", "end": "2026-01-01"}, "no moment"),
    ],
)
def test_the_clock_refuses_in_words(name: str, args: dict[str, Json], words: str):
    assert words in refusal(clock(name), **args)


# files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a file, links that lead out of it, and things that are no files."""
    inside = tmp_path / "root"
    (inside / "sub").mkdir(parents=True)
    (inside / "note.txt").write_text("héllo")
    (inside / "sub" / "deep.txt").write_text("deep")
    (inside / "large.txt").write_text("x" * 2000)
    (inside / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "note.txt").write_text("secret")
    (inside / "link.txt").symlink_to(tmp_path / "secret.txt")
    (inside / "within.txt").symlink_to(inside / "note.txt")
    (inside / "folder").symlink_to(tmp_path / "outside")
    os.mkfifo(inside / "pipe")
    return inside


def test_a_file_under_the_root_is_read(root: Path):
    assert call(file_read(root), path="note.txt") == {"text": "héllo", "bytes": 6}
    assert call(file_read(root), path="sub/deep.txt")["text"] == "deep"


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("../secret.txt", "parts"),
        ("sub/../../secret.txt", "parts"),
        ("sub/./deep.txt", "parts"),
        ("sub//deep.txt", "parts"),
        ("/etc/passwd", "relative"),
        ("~/note.txt", "relative"),
        ("..\\secret.txt", "relative"),
        ("C:/secret.txt", "relative"),
        ("note.txt\x00.png", "characters"),
        ("note\n.txt", "characters"),
        ("", "length"),
        ("a/" * 600, "length"),
        ("a/" * 50 + "b", "depth"),
        ("link.txt", "links"),
        ("within.txt", "links"),
        ("folder/note.txt", "links"),
        ("note.txt/more", "links"),
        ("sub", "regular"),
        ("pipe", "regular"),
        ("large.txt", "size"),
    ],
)
def test_nothing_beside_the_files_under_the_root_is_read(root: Path, path: str, rule: str):
    said = refusal(file_read(root, max_bytes=1000), path=path)
    assert said.startswith("FORBIDDEN")
    assert f"rule {rule!r}" in said
    assert "secret" not in said.replace("secret.txt", "")


def test_what_is_not_there_or_no_text_is_told_apart(root: Path):
    assert refusal(file_read(root), path="none.txt").startswith("NOT_FOUND")
    assert refusal(file_read(root), path="binary").startswith("NOT_TEXT")


def test_a_directory_that_is_swapped_for_a_link_meanwhile_does_not_lead_out(root: Path):
    reader, stop = file_read(root), threading.Event()
    swapped = root / "swap"
    swapped.mkdir()
    (swapped / "note.txt").write_text("inside")

    def swap() -> None:
        while not stop.is_set():
            swapped.rename(root / "aside")
            swapped.symlink_to(root.parent / "outside")
            swapped.unlink()
            (root / "aside").rename(swapped)

    thread = threading.Thread(target=swap)
    thread.start()
    found: set[str] = set()
    try:
        for _ in range(300):
            try:
                found.add(call(reader, path="swap/note.txt")["text"])
            except WorkerError as error:
                found.add(error.code)
    finally:
        stop.set()
        thread.join()
    assert found <= {"inside", "NOT_FOUND", "FORBIDDEN"}
    assert "inside" in found


# SQL


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "data.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE items (name TEXT, price REAL, image BLOB)")
    connection.executemany("INSERT INTO items VALUES (?, ?, ?)", [("bolt", 1.5, b"\x00\x01"), ("nut", 2.5, None)])
    connection.commit()
    connection.close()
    return path


def test_a_query_gives_columns_and_rows_with_bound_values(database: Path):
    one = sql_query(database)
    found = call(one, statement="SELECT name, price, image FROM items WHERE price < ? ORDER BY name", values=[2])
    assert found == {"columns": ["name", "price", "image"], "rows": [["bolt", 1.5, "<2 bytes>"]], "more": False}
    hostile = "'; DROP TABLE items; --"
    assert call(one, statement="SELECT name FROM items WHERE name = ?", values=[hostile])["rows"] == []


def test_rows_beyond_the_limit_are_said_to_be_there(database: Path):
    assert call(sql_query(database, max_rows=1), statement="SELECT name FROM items")["more"] is True
    assert call(sql_query(database, max_rows=2), statement="SELECT name FROM items")["more"] is False


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("DELETE FROM items", "reading"),
        ("UPDATE items SET price = 0", "reading"),
        ("INSERT INTO items VALUES ('x', 1, NULL)", "reading"),
        ("DROP TABLE items", "reading"),
        ("CREATE TABLE t (a)", "reading"),
        ("CREATE TEMP TABLE t (a)", "reading"),
        ("ATTACH DATABASE '/tmp/x.sqlite' AS x", "reading"),
        ("PRAGMA query_only = OFF", "reading"),
        ("PRAGMA table_info(items)", "reading"),
        ("VACUUM INTO '/tmp/y.sqlite'", "reading"),
        ("BEGIN", "reading"),
        ("SELECT load_extension('x')", "reading"),
        ("SELECT readfile('/etc/passwd')", ""),
        ("SELECT randomblob(1000000000)", "reading"),
        ("SELECT 1; DROP TABLE items", "one"),
        ("SELECT printf('%.*c', 300000, 'x')", "size"),
    ],
)
def test_only_reading_is_possible(database: Path, statement: str, rule: str):
    before = database.read_bytes()
    said = refusal(sql_query(database), statement=statement)
    assert (f"rule {rule!r}" if rule else "INVALID_ARGUMENT") in said
    assert database.read_bytes() == before


def test_a_query_that_never_ends_ends_in_time(database: Path):
    bomb = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c"
    begun = time.monotonic()
    assert "rule 'time'" in refusal(sql_query(database, seconds=0.3), statement=bomb)
    assert time.monotonic() - begun < 5


def test_a_statement_that_is_no_sql_is_a_failure_in_words(database: Path):
    assert "cannot be run" in refusal(sql_query(database), statement="SELEC name")
    assert "cannot be run" in refusal(sql_query(database), statement="SELECT name FROM items WHERE name = ?", values=[])
