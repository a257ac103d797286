"""Named benchmarks are kept out of training: what repeats one of their texts is removed, listed and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plansmith.contract.errors import InputError
from plansmith.contract.store import read_rows
from plansmith.data.decontaminate import Removal
from plansmith.data.stages.tally import Stage

from .stage_kit import built

pytest.importorskip("rensa")
Row = dict[str, Any]


def bench(folder: Path, name: str, text: str | bytes, **more: Any) -> Row:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return {"kind": "file", "path": folder / name} | more


def test_what_repeats_a_benchmark_is_removed_and_listed(tmp_path: Path):
    long = "please find me a quiet place to sleep somewhere near the old harbour of lisbon in may"
    texts = [{"ask": "The one question?"}, {"ask": long}]
    file = bench(tmp_path, "bench.jsonl", "".join(json.dumps(one) + "\n" for one in texts) + "{\n", field="ask")
    rows: list[Row | bytes] = [
        {"id": "equal", "query": "the  ONE question", "plan": []},
        {"id": "near", "query": long.replace("may", "mai"), "plan": []},
        {
            "id": "holds",
            "query": f"Hello there, good day to you all. I am new here. {long}, {long}, thanks",
            "plan": [],
        },
        {"id": "hand", "query": "The one question", "plan": [], "part": "hand"},
        {"id": "clean", "query": "something else", "plan": []},
    ]
    found = built(tmp_path, rows[:3] + rows[4:], benchmarks=[file])
    assert {row.id for row in found.kept} == {"clean"}
    removed = read_rows(found.out / "removed.jsonl", Removal)
    assert [(one.id, one.benchmark, one.match.value) for one in removed] == [
        ("equal", "bench.jsonl", "equal"),
        ("near", "bench.jsonl", "near"),
        ("holds", "bench.jsonl", "holds"),
    ]
    counted = found.stage(Stage.DECONTAMINATE).counted
    assert counted["rows without text in bench.jsonl"] == 1
    assert counted["equal to bench.jsonl"] == 1
    assert found.manifest.files.keys() >= {"removed.jsonl"}
    test_row = built(tmp_path / "test", rows[3:], benchmarks=[file])
    assert {row.id for row in test_row.kept} == {"hand", "clean"}, "test rows are never removed"


def test_a_list_of_what_was_removed_does_not_outlive_its_data_set(tmp_path: Path):
    file = bench(tmp_path, "b.txt", "a\n")
    rows: list[Row | bytes] = [{"query": "a", "plan": []}, {"query": "b", "plan": []}]
    assert (built(tmp_path, rows, benchmarks=[file]).out / "removed.jsonl").exists()
    assert not (built(tmp_path, rows).out / "removed.jsonl").exists()


@pytest.mark.parametrize("text", [b"", b"\n\n", b'{"question": "a"}\n', b"{\n"])
def test_a_benchmark_that_protects_nothing_is_refused(tmp_path: Path, text: bytes):
    with pytest.raises(InputError, match=r"benchmark 'b\.jsonl' has no text"):
        built(tmp_path, [{"query": "a", "plan": []}], benchmarks=[bench(tmp_path, "b.jsonl", text)])


def test_a_benchmarks_longest_text_is_protected_too(tmp_path: Path):
    long = "word " * 3000
    rows: list[Row | bytes] = [{"query": long, "plan": []}, {"query": "b", "plan": []}]
    assert built(tmp_path, rows, benchmarks=[bench(tmp_path, "b.txt", long)]).reasons == {"contaminated": 1}


def test_a_build_whose_rows_are_all_removed_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="all rows repeat test texts"):
        built(tmp_path, [{"query": "a", "plan": []}], benchmarks=[bench(tmp_path, "b.txt", "a\n")])
