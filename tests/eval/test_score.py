"""Scoring files made by anything. Hostile and mistaken files are in `test_hostile.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plansmith.contract.errors import InputError
from plansmith.contract.progress import Silent
from plansmith.contract.store import read_rows
from plansmith.eval import score as scoring
from plansmith.eval.items import ScoredItem
from plansmith.eval.metrics import MAIN_METRICS, FirstFault
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
    assert {name: found.metrics[name].hits for name in MAIN_METRICS} == dict.fromkeys(MAIN_METRICS, 2)
    assert all(found.metrics[name].scored == 4 for name in MAIN_METRICS)


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


# items, parts, processes

ROWS: list[dict[str, Any]] = [
    {"id": i, "plan": plan_of(i), "query": f"price of S{i}", "part": "even" if i % 2 == 0 else "odd"} for i in range(12)
]
GIVEN: list[dict[str, Any]] = [
    {"id": i, "text": json.dumps(plan_of(i)) if i % 3 else "no plan"} for i in reversed(range(11))
]


def test_each_item_is_written_as_a_row_in_the_order_of_the_references(tmp_path: Path):
    reference, candidate = lines(tmp_path / "r.jsonl", ROWS), lines(tmp_path / "mine.jsonl", GIVEN)
    found = score_files(CATALOG, reference, candidate, items=tmp_path / "new" / "items.jsonl", resamples=50)
    rows = read_rows(tmp_path / "new" / "items.jsonl", ScoredItem)
    assert [row.id for row in rows] == [str(row["id"]) for row in ROWS]
    assert sum(row.outcomes["equivalent"] is True for row in rows) == found.metrics["equivalent"].hits == 7
    right, wrong, missing = rows[1], rows[0], rows[11]
    assert (right.system, right.part, right.query) == ("mine", "odd", "price of S1")
    assert right.plan == right.references[0] == '[{"type":"quote","args":{"symbol":"S1"}}]'
    assert (right.fault, right.finding, right.finish_reason) == (FirstFault.RIGHT, None, "stop")
    assert (wrong.candidate, wrong.plan, wrong.fault) == ("no plan", None, FirstFault.UNPARSEABLE)
    assert wrong.finding is not None
    assert wrong.finding.startswith("not_json: ")
    assert (missing.candidate, missing.finish_reason, missing.finding) == (None, None, "there is no row for this item")
    score_files(CATALOG, reference, candidate, items=tmp_path / "named.jsonl", system="new/one", resamples=50)
    assert {row.system for row in read_rows(tmp_path / "named.jsonl", ScoredItem)} == {"new/one"}


def test_our_own_run_rows_keep_their_costs_and_a_failed_request_is_no_answer(tmp_path: Path):
    reference = lines(tmp_path / "r.jsonl", ROWS[:3])
    cost = {"prompt_tokens": 50, "completion_tokens": 20, "seconds": 0.5}
    given = [
        {"id": "0", "text": json.dumps(plan_of(0)), "finish_reason": "length", **cost},
        {"id": "1", "text": json.dumps(plan_of(1)), "finish_reason": "error", **cost},
        {"id": "2", "text": "[", "finish_reason": "length"},
    ]
    found = score_files(CATALOG, reference, lines(tmp_path / "c.jsonl", given), items=tmp_path / "i.jsonl")
    assert found.metrics["exact"].hits == 1
    rows = read_rows(tmp_path / "i.jsonl", ScoredItem)
    assert (rows[0].prompt_tokens, rows[0].completion_tokens, rows[0].seconds) == (50, 20, 0.5)
    assert (rows[1].candidate, rows[1].finding) == (None, "the request failed")
    assert (rows[2].finding or "").endswith("; the token limit cut the text")


def test_parts_are_scored_apart_and_add_up(tmp_path: Path):
    reference, candidate = lines(tmp_path / "r.jsonl", [*ROWS, {"id": "x", "plan": []}]), lines(tmp_path / "c", GIVEN)
    found = score_files(CATALOG, reference, candidate, by_part=True, resamples=50).to_json()
    assert list(found) == ["items", "metrics", "only_in_reference", "only_in_candidate", "parts"]
    assert {name: part["items"] for name, part in found["parts"].items()} == {"even": 6, "odd": 6, "unnamed": 1}
    for name, metric in found["metrics"].items():
        for key in ("hits", "scored", "unscored"):
            assert sum(part["metrics"][name][key] for part in found["parts"].values()) == metric[key]
    assert "parts" not in score_files(CATALOG, reference, candidate, resamples=50).to_json()


def test_a_part_scored_alone_gives_the_numbers_of_the_part(tmp_path: Path):
    reference, candidate = lines(tmp_path / "r.jsonl", ROWS), lines(tmp_path / "c.jsonl", GIVEN)
    alone = lines(tmp_path / "even.jsonl", [row for row in ROWS if row["part"] == "even"])
    parts = score_files(CATALOG, reference, candidate, by_part=True, resamples=50).parts or {}
    assert parts["even"].metrics == score_files(CATALOG, alone, candidate, resamples=50).metrics


def test_the_number_of_processes_and_the_order_of_the_rows_change_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(scoring, "CHUNK", 1)
    monkeypatch.setattr(scoring, "MANY_ITEMS", 1)
    reference, candidate = lines(tmp_path / "r.jsonl", ROWS), lines(tmp_path / "c.jsonl", GIVEN)
    found = score_files(CATALOG, reference, candidate, by_part=True, items=tmp_path / "1.jsonl", system="s")
    assert found == score_files(
        CATALOG, reference, candidate, by_part=True, items=tmp_path / "2.jsonl", system="s", workers=2
    )
    assert (tmp_path / "1.jsonl").read_text() == (tmp_path / "2.jsonl").read_text()
    shuffled = lines(tmp_path / "s.jsonl", [*reversed(ROWS[:5]), *ROWS[5:]]), lines(tmp_path / "t.jsonl", GIVEN[::-1])
    assert score_files(CATALOG, *shuffled).metrics == found.metrics


class Told(Silent):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.total = self.done = 0

    def start(self, what: str, total: int) -> None:
        self.total = total

    def advance(self, amount: int = 1, **values: float | str) -> None:
        self.done += amount


def test_progress_is_told_of_long_work_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reference, candidate = lines(tmp_path / "r.jsonl", ROWS), lines(tmp_path / "c.jsonl", GIVEN)
    told = Told()
    score_files(CATALOG, reference, candidate, resamples=50, progress=told)
    assert told.total == 0
    monkeypatch.setattr(scoring, "MANY_ITEMS", 12)
    score_files(CATALOG, reference, candidate, resamples=50, progress=told)
    assert told.total == told.done == 12
