"""Queries: from logs of any quality, from benchmarks, and grown; every row read is kept or rejected with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError
from plansmith.contract.progress import Silent
from plansmith.contract.records import Query, Reject
from plansmith.contract.store import read_rows
from plansmith.data.queries import (
    CATALOG,
    MANIFEST,
    QUERIES,
    QUERY_REJECTS,
    Collected,
    QueriesManifest,
    collect_queries,
    load_queries,
)
from plansmith.data.query_sources.grown import Grower
from plansmith.data.query_sources.logs import read_log
from plansmith.data.teacher_config import GrownQueries, LogQueries, QueriesConfig
from tests.data.conftest import CATALOG as CATALOG_JSON

DEMO = Catalog.from_json(CATALOG_JSON)


def read(path: Path, **options: Any) -> tuple[list[Query], list[Reject]]:
    rows = list(read_log(LogQueries(kind="log", path=path, **options)).rows)
    return [row for row in rows if isinstance(row, Query)], [row for row in rows if isinstance(row, Reject)]


def write(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def collect(out: Path, *sources: Any, catalog: Catalog | None = DEMO, grower: Grower | None = None) -> Collected:
    config = QueriesConfig(sources=sources)
    return collect_queries(config, catalog, out, Silent(), seed=1, grower=grower)


def test_a_text_log_is_one_query_a_line(tmp_path: Path):
    path = write(tmp_path, "log.txt", b"\xef\xbb\xbf first one \r\n\nwith, comma\n\xff\xfe\nlast without end")
    kept, rejects = read(path)
    assert [row.query for row in kept] == ["first one", "with, comma", "last without end"]
    assert [(row.reason, row.id) for row in rejects] == [("not_utf8", "log-line-4")]
    assert f"{path}, line 4" in rejects[0].detail


def test_a_jsonl_log_has_a_key_or_a_path_to_it(tmp_path: Path):
    rows = [
        b'{"query":"plain"}',
        b'{"request":{"messages":[{"content":"deep"}]}}',
        b'{"query":',
        b'{"query":7}',
        b'{"other":"x"}',
        b'["query"]',
        b'{"query":"  "}',
        b'{"query":"half \\ud83d"}',
        b'{"query":"\xff"}',
        b'{"query":NaN}',
    ]
    path = write(tmp_path, "log.jsonl", b"\n".join(rows) + b"\n")
    kept, rejects = read(path)
    assert [row.query for row in kept] == ["plain"]
    expected = ["no_query", "not_json", "no_query", "no_query", "no_query", "empty", "not_utf8", "not_utf8", "not_json"]
    assert [row.reason for row in rejects] == expected
    assert [int(row.id.rpartition("-")[2]) for row in rejects] == list(range(2, 11))
    deep, _ = read(path, field="request.messages.0.content", language="de")
    assert [(row.query, row.language) for row in deep] == [("deep", "de")]


def test_a_csv_log_survives_bad_records(tmp_path: Path):
    lines = [
        "id,query,note",
        '1,"has, a comma",x',
        '2,"two',
        'lines",x',
        "3,too few",
        '4,"never closed,x',
        "5,after it,x",
        '6,"bad " quote",x',
        "7,,x",
        "8,last,x",
    ]
    kept, rejects = read(write(tmp_path, "log.csv", "\n".join(lines)))
    assert [row.query for row in kept] == ["has, a comma", "two\nlines", "after it", "last"]
    assert [(row.reason, row.id) for row in rejects] == [
        ("bad_csv", "log-line-5"),
        ("bad_csv", "log-line-6"),
        ("bad_csv", "log-line-8"),
        ("empty", "log-line-9"),
    ]
    tabs, _ = read(write(tmp_path, "log.tsv", "query\tx\nasked, with comma\t1\n"))
    assert [row.query for row in tabs] == ["asked, with comma"]


@pytest.mark.parametrize(
    ("content", "message"), [("", "names of the columns"), ("a,b\n1,2\n", "exactly one column 'query', found 'a', 'b'")]
)
def test_a_csv_without_the_column_is_refused(tmp_path: Path, content: str, message: str):
    with pytest.raises(InputError, match=message):
        read(write(tmp_path, "log.csv", content))


def test_long_queries_and_a_limit_of_rows(tmp_path: Path):
    path = write(tmp_path, "log.txt", "x" * 50 + "\nshort\nmore\n")
    kept, rejects = read(path, max_characters=20, limit=2)
    assert [row.query for row in kept] == ["short"]
    assert [row.reason for row in rejects] == ["too_long"]
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "none.txt")


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=300), name=st.sampled_from(["log.jsonl", "log.txt"]))
def test_no_log_breaks_the_reading_and_no_line_is_lost(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str
):
    path = write(tmp_path_factory.mktemp("log"), name, content)
    kept, rejects = read(path)
    lines = [line for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n")]
    blank = sum(not line.decode("utf-8", "surrogateescape").strip() for line in lines)
    assert len(kept) + len(rejects) == len(lines) - blank
    for row in (*kept, *rejects):
        row.model_dump_json().encode()


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.text(alphabet='ab ,"\n', min_size=1, max_size=8).filter(lambda text: text.strip()), max_size=8))
def test_a_well_formed_csv_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, rows: list[str]):
    import csv

    path = tmp_path_factory.mktemp("log") / "log.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["query", "n"], *([row, str(n)] for n, row in enumerate(rows))])
    kept, rejects = read(path)
    assert rejects == []
    assert [row.query for row in kept] == [row.strip() for row in rows]


def test_equal_queries_are_kept_once_and_counted_and_ids_stay(tmp_path: Path):
    first = write(tmp_path, "a.txt", "caf\u00e9  open?\ncafe\u0301 open?\nother\n")
    second = write(tmp_path, "b.txt", "other\nnew\n")
    sources = [LogQueries(kind="log", path=path) for path in (first, second)]
    manifest = collect(tmp_path / "out", *sources).manifest
    assert [(one.source, one.read, one.kept, one.rejects) for one in manifest.sources] == [
        ("a.txt", 3, 2, {"duplicate": 1}),
        ("b.txt", 2, 1, {"duplicate": 1}),
    ]
    before = read_rows(tmp_path / "out" / QUERIES, Query)
    assert [row.query for row in before] == ["caf\u00e9  open?", "other", "new"]
    first.write_text("zero\n" + first.read_text() + "more\n")
    collect(tmp_path / "out", *sources)
    after = {row.query: row.id for row in read_rows(tmp_path / "out" / QUERIES, Query)}
    assert all(after[row.query] == row.id for row in before)
    assert after.keys() - {row.query for row in before} == {"zero", "more"}
    rejects = read_rows(tmp_path / "out" / QUERY_REJECTS, Reject)
    assert [row.reason for row in rejects] == ["duplicate", "duplicate"]


def test_collected_queries_load_again_and_changed_files_are_refused(tmp_path: Path):
    collect(tmp_path, LogQueries(kind="log", path=write(tmp_path, "a.txt", "one\ntwo\n"), language="en"))
    loaded = load_queries(tmp_path)
    assert loaded.catalog == DEMO
    assert [row.query for row in loaded.queries] == ["one", "two"]
    assert loaded.manifest.languages == {"en": 2}
    (tmp_path / QUERIES).write_text((tmp_path / QUERIES).read_text().replace("two", "three"))
    with pytest.raises(InputError, match="changed since"):
        load_queries(tmp_path)
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(InputError, match="plansmith data queries first"):
        load_queries(tmp_path)


def test_no_catalog_and_no_usable_query_are_refused(tmp_path: Path):
    log = LogQueries(kind="log", path=write(tmp_path, "a.txt", "one\n"))
    with pytest.raises(InputError, match="no catalog is given"):
        collect(tmp_path, log, catalog=None)
    empty = LogQueries(kind="log", path=write(tmp_path, "b.txt", "\xff\n".encode("latin-1")))
    with pytest.raises(InputError, match="no query is left of 1 rows"):
        collect(tmp_path, empty)
    with pytest.raises(InputError, match="no teacher is given"):
        collect(tmp_path, log, GrownQueries(kind="grown"))


def test_counts_of_a_source_that_do_not_add_up_are_refused(tmp_path: Path):
    collect(tmp_path, LogQueries(kind="log", path=write(tmp_path, "a.txt", "one\n")))
    values = json.loads((tmp_path / MANIFEST).read_text())
    values["sources"][0]["kept"] = 2
    with pytest.raises(ValueError, match="were read"):
        QueriesManifest.model_validate(values)
    assert (tmp_path / CATALOG).exists()
