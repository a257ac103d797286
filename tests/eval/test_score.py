"""Scoring files made by anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plansmith.contract.errors import InputError
from plansmith.eval.results import METRICS
from plansmith.eval.score import FileScore, score_files
from tests.eval.cases import CATALOG, EXAMPLES, plan_of


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def score(folder: Path, reference: list[Any], candidate: list[Any]) -> FileScore:
    return score_files(
        CATALOG, lines(folder / "r.jsonl", reference), lines(folder / "c.jsonl", candidate), resamples=200
    )


def test_plans_texts_and_several_references_are_scored_by_id(tmp_path: Path):
    reference = [
        {"id": "a", "plan": plan_of(1)},
        {"id": "b", "plans": [plan_of(1), plan_of(2)], "query": "left aside"},
        {"id": 3, "text": json.dumps(plan_of(3))},
        {"id": "gone", "plan": plan_of(4)},
    ]
    candidate = [
        {"id": "extra", "plan": []},
        {"id": "3", "text": "no plan"},
        {"id": "b", "plan": plan_of(2)},
        "",
        {"id": "a", "text": json.dumps(plan_of(1), indent=1)},
    ]
    found = score(tmp_path, reference, candidate)
    assert (found.items, found.only_in_reference, found.only_in_candidate) == (4, 1, 1)
    assert {name: metric.hits for name, metric in found.metrics.items()} == dict.fromkeys(METRICS, 2)
    assert all(metric.scored == 4 for metric in found.metrics.values())


def test_the_result_has_the_documented_form(tmp_path: Path):
    found = score(tmp_path, [{"id": "a", "plan": []}, {"id": "b", "plans": []}], [{"id": "a", "plan": []}]).to_json()
    assert list(found) == ["items", "metrics", "only_in_reference", "only_in_candidate"]
    assert set(found["metrics"]) == set(METRICS)
    assert all(set(m) == {"value", "hits", "scored", "unscored", "low", "high"} for m in found["metrics"].values())
    exact = found["metrics"]["exact"]
    assert (exact["value"], exact["hits"], exact["scored"], exact["unscored"]) == (1, 1, 1, 1)
    assert found["metrics"]["parsed"]["hits"] == 1
    assert found["metrics"]["parsed"]["scored"] == 2
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_plan_values_that_are_no_arrays_and_keys_given_twice_are_misses_and_not_crashes(tmp_path: Path):
    reference = [{"id": i, "plan": plan_of(1)} for i in range(5)]
    candidate = [
        {"id": 0, "plan": json.dumps(plan_of(1))},
        {"id": 1, "plan": None},
        '{"id":2,"plan":[{"type":"quote","args":{"symbol":"S1"},"args":{"symbol":"S1"}}]}',
        '{"id":3,"plan":[{"type":"quote","args":{"symbol":' + "9" * 5000 + "}}]}",
        {"id": 4, "plan": {"steps": plan_of(1)}},
    ]
    found = score(tmp_path, reference, candidate)
    assert found.metrics["exact"].hits == 0
    assert found.metrics["valid"].hits == 0
    assert found.metrics["exact"].scored == 5


@pytest.mark.parametrize(
    ("rows", "line", "reason"),
    [
        (['{"id":"a","plan":[]}', '{"id":"b","plan":['], 2, "not JSON"),
        (['{"id":"a","plan":[]}', "", '{"id":"a","plan":[]}'], 3, "line 1"),
        (['{"plan":[]}'], 1, "'id'"),
        (['{"id":null,"plan":[]}'], 1, "'id'"),
        (['{"id":true,"plan":[]}'], 1, "'id'"),
        (['{"id":"a","plan":[],"id":"b"}'], 1, "twice"),
        (["[]"], 1, "an object"),
        (['{"id":"a"}'], 1, "none of them"),
        (['{"id":"a","plan":[],"text":"[]"}'], 1, "'plan' and 'text'"),
        (['{"id":"a","text":7}'], 1, "must be a string"),
        (['{"id":"a","plan":[NaN]}'], 1, "not JSON"),
    ],
)
def test_a_broken_line_of_either_file_is_refused_with_its_place(
    tmp_path: Path, rows: list[str], line: int, reason: str
):
    good = [{"id": "a", "plan": []}]
    for name, files in (("c.jsonl", (good, rows)), ("r.jsonl", (rows, good))):
        with pytest.raises(InputError) as caught:
            score(tmp_path, *files)
        assert f"{name}, line {line}: " in str(caught.value)
        assert reason in str(caught.value)


@pytest.mark.parametrize(
    "row",
    [
        {"id": "a", "plan": [{"type": "quote"}]},
        {"id": "a", "plan": "[]"},
        {"id": "a", "text": "no plan"},
        {"id": "a", "plans": "[]"},
        {"id": "a", "plans": [[], {"type": "quote"}]},
        {"id": "a", "plan": None, "plans": [[]]},
    ],
)
def test_a_reference_that_is_no_plan_is_refused(tmp_path: Path, row: dict[str, Any]):
    with pytest.raises(InputError, match=r"r\.jsonl, line 1: "):
        score(tmp_path, [row], [])


def test_absent_empty_and_undecodable_files_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="no rows"):
        score(tmp_path, [], [{"id": "a", "plan": []}])
    with pytest.raises(InputError, match="cannot be read"):
        score_files(CATALOG, tmp_path / "none.jsonl", tmp_path / "none.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"id":"\xe9"}')
    with pytest.raises(InputError, match="not UTF-8"):
        score_files(CATALOG, tmp_path / "latin.jsonl", tmp_path / "latin.jsonl")


def test_our_own_test_files_can_be_references(tmp_path: Path):
    rows = [e.model_dump(mode="json") for e in EXAMPLES]
    found = score(tmp_path, rows, [{"id": e.id, "plan": e.plan} for e in EXAMPLES])
    assert found.metrics["exact"].value == 1
