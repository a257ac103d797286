"""User files as sources: bad rows are counted with file and line, bad files are refused."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from plansmith.contract.errors import InputError
from plansmith.data.config import JsonlSource, ScriptSource
from plansmith.data.sources.jsonl import load_jsonl
from plansmith.data.sources.script import load_script

from .conftest import RowWriter

GOOD = {"query": "do one", "plan": [{"type": "one", "args": {"a": "x"}}]}


def test_each_bad_line_is_a_reject_with_file_and_line_and_the_good_ones_stay(
    catalog_file: Path, write_jsonl: RowWriter
):
    path = write_jsonl(
        [
            GOOD,
            {"query": "no plan"},
            {"plan": []},
            [1, 2],
            b'{"query":"bad utf \xff","plan":[]}\n',
            {"query": "  ", "plan": []},
            {"query": "plan is text", "plan": "[]"},
            {"query": "surrogate \ud800", "plan": []},
            b'{"query":"nan","plan":[{"type":"one","args":{"a":NaN}}]}\n',
            {"query": "extra key", "plan": [], "color": "red"},
            b"\n",
            {**GOOD, "query": "do one again", "id": "mine", "family": "f", "part": "handwritten"},
            b'{"query":"half a li',
        ]
    )
    loaded = load_jsonl(JsonlSource(kind="jsonl", path=path, catalog=catalog_file, licence="MIT"))
    assert [row.id for row in loaded.candidates] == ["rows-1", "mine"]
    assert loaded.candidates[0].family == "one"
    assert loaded.candidates[1].part == "handwritten"
    assert {row.reason for row in loaded.rejects} == {"bad_row"}
    lines = [int(row.detail.split("line ")[1].split(":")[0]) for row in loaded.rejects]
    assert lines == [2, 3, 4, 5, 6, 7, 8, 9, 10, 13]
    assert all(str(path) in row.detail for row in loaded.rejects)
    for row in loaded.rejects:
        row.model_dump_json()


def test_a_last_line_without_newline_is_read_when_it_is_whole(catalog_file: Path, write_jsonl: RowWriter):
    path = write_jsonl([json.dumps(GOOD).encode()])
    assert len(load_jsonl(JsonlSource(kind="jsonl", path=path, catalog=catalog_file)).candidates) == 1


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_file_without_rows_is_refused(catalog_file: Path, write_jsonl: RowWriter, content: bytes):
    path = write_jsonl([content])
    with pytest.raises(InputError, match="holds no rows"):
        load_jsonl(JsonlSource(kind="jsonl", path=path, catalog=catalog_file))


def test_an_absent_file_is_named(catalog_file: Path, tmp_path: Path):
    with pytest.raises(InputError, match=r"nowhere\.jsonl"):
        load_jsonl(JsonlSource(kind="jsonl", path=tmp_path / "nowhere.jsonl", catalog=catalog_file))


def script(tmp_path: Path, text: str) -> ScriptSource:
    path = tmp_path / "make.py"
    path.write_text(text)
    return ScriptSource(kind="script", path=path, count=3)


def test_a_script_gives_rows_with_help_of_a_module_beside_it(catalog_file: Path, tmp_path: Path):
    (tmp_path / "beside.py").write_text("PLAN = [{'type': 'one', 'args': {'a': 'x'}}]\n")
    source = script(
        tmp_path,
        "from beside import PLAN\n"
        "def candidates(seed, count):\n"
        "    import beside\n"
        "    for i in range(count):\n"
        "        yield {'id': f'q{i}', 'query': f'{seed} {i}', 'plan': beside.PLAN, 'family': 'f', 'source': 's'}\n",
    )
    loaded = load_script(source, seed=7)
    assert [row.query for row in loaded.candidates] == ["7 0", "7 1", "7 2"]
    assert "beside" not in sys.modules
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("x = 1\ndef candidates(seed, count):\n    yield {}\n    raise ValueError('no more')\n", 4, "no more"),
        ("def helper():\n    return 1 / 0\n\nhelper()\n", 2, "ZeroDivisionError"),
        ("def candidates(seed, count)\n    pass\n", 1, "SyntaxError"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit"),
    ],
)
def test_an_error_inside_a_script_is_reported_with_file_and_line(
    catalog_file: Path, tmp_path: Path, text: str, line: int, reason: str
):
    with pytest.raises(InputError, match=rf"make\.py, line {line}: .*{reason}"):
        load_script(script(tmp_path, text), seed=0)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("x = 1\n", "no function 'candidates"),
        ("def candidates(seed, count):\n    return iter(())\n", "gave no row"),
    ],
)
def test_a_script_without_rows_is_refused(catalog_file: Path, tmp_path: Path, text: str, match: str):
    with pytest.raises(InputError, match=match):
        load_script(script(tmp_path, text), seed=0)


def test_rows_of_a_script_that_are_no_json_are_counted(catalog_file: Path, tmp_path: Path):
    source = script(
        tmp_path,
        "import datetime\n"
        "def candidates(seed, count):\n"
        "    yield {'query': 'a', 'plan': [{'type': 'one', 'args': {'a': datetime.date(2024, 1, 1)}}]}\n"
        "    yield {'query': 'b', 'plan': [{'type': 'one', 'args': {'a': float('inf')}}]}\n"
        "    yield 'text'\n"
        "    yield {'query': 'c', 'plan': []}\n",
    )
    loaded = load_script(source, seed=0)
    assert [row.query for row in loaded.candidates] == ["c"]
    assert Counter(row.reason for row in loaded.rejects) == {"bad_row": 3}


def test_rows_of_extra_files_are_kept_for_testing(catalog_file: Path, tmp_path: Path, write_jsonl: RowWriter):
    extra = write_jsonl([GOOD, {**GOOD, "query": "other", "part": "spoken"}])
    source = script(tmp_path, "def candidates(seed, count):\n    yield {'query': 'c', 'plan': []}\n")
    loaded = load_script(source.model_copy(update={"extra": (extra,)}), seed=0)
    assert [row.part for row in loaded.candidates] == [None, "handwritten", "spoken"]
