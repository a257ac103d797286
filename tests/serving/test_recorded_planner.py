"""Answers from a file: found by query or by id, missing ones counted, ambiguous ones refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.endpoint import Draft
from plansmith.contract.errors import InputError
from plansmith.contract.findings import Fault
from plansmith.contract.records import Example, FinishReason, Run, Split
from plansmith.serving.recorded_planner import RecordedPlanner

CATALOG = Catalog("small", [Worker(name="now", args={"type": "object", "properties": {}})])
NOW = [{"type": "now", "args": {}}]
TEXT = '[{"type":"now","args":{}}]'


def example(item: str, query: str) -> Example:
    return Example(id=item, query=query, plan=NOW, family="f", source="s", split=Split.TEST, part="seen")


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def plan(planner: RecordedPlanner, query: str) -> Draft:
    return asyncio.run(planner.plan(query, CATALOG))


def test_rows_by_query_are_found_whatever_the_white_space_and_checked_against_the_catalog(tmp_path: Path):
    row = {"query": "what  time\tis it", "text": TEXT, "prompt_tokens": 9, "completion_tokens": 4, "seconds": 0.5}
    cut = {"query": "cafe\u0301", "text": "[", "finish_reason": "length"}
    wrong = {"query": "c", "plan": [{"args": {}, "type": "rocket"}], "note": "further keys are left aside"}
    planner = RecordedPlanner.load(write(tmp_path / "answers.jsonl", row, cut, wrong))
    draft = plan(planner, " what time is it ")
    assert (draft.query, draft.text, draft.check.valid) == (" what time is it ", TEXT, True)
    assert (draft.prompt_tokens, draft.completion_tokens, draft.seconds) == (9, 4, 0.5)
    assert plan(planner, "caf\u00e9").finish_reason is FinishReason.LENGTH
    draft = plan(planner, "c")
    assert draft.text == '[{"args":{},"type":"rocket"}]'
    assert [finding.fault for finding in draft.check.findings] == [Fault.UNKNOWN_WORKER]
    assert planner.counts == {"answered": 3}


def test_a_query_without_a_row_is_a_failed_draft_and_counted(tmp_path: Path):
    planner = RecordedPlanner.load(
        write(tmp_path / "a.jsonl", {"query": "a", "text": "", "finish_reason": "error", "error": "it was down"})
    )
    missing, failed = plan(planner, "b"), plan(planner, "a")
    assert (missing.finish_reason, missing.text, missing.check.valid) == (FinishReason.ERROR, "", False)
    assert "no row for this query" in str(missing.error)
    assert "line 1" in str(failed.error)
    assert "it was down" in str(failed.error)
    assert planner.counts == {"missing": 1, "failed": 1}


def test_rows_by_id_are_joined_to_the_items_and_refused_without(tmp_path: Path):
    path = write(tmp_path / "a.jsonl", {"id": "x", "plan": NOW}, {"id": 7, "text": "[]"}, {"id": "z", "text": "[ ]"})
    planner = RecordedPlanner.load(path)
    with pytest.raises(InputError, match=r"line 1.*for_examples"):
        plan(planner, "time")
    joined = planner.for_examples([example("x", "time"), example("7", "nothing"), example("y", "unanswered")])
    assert [plan(joined, query).text for query in ("time", "nothing", "unanswered")] == [TEXT, "[]", ""]
    assert joined.counts == {"not_asked": 1, "answered": 2, "missing": 1}
    others = planner.for_examples([example("z", "time")])
    assert plan(others, "time").text == "[ ]", "another suite asks the same query of another item"


def test_rows_by_id_and_by_query_stand_in_one_file(tmp_path: Path):
    path = write(tmp_path / "a.jsonl", {"id": "x", "text": "[]"}, {"query": "time", "text": TEXT})
    joined = RecordedPlanner.load(path).for_examples([example("x", "nothing"), example("y", "time")])
    assert [plan(joined, query).text for query in ("nothing", "time")] == ["[]", TEXT]


@pytest.mark.parametrize(
    ("rows", "items", "found"),
    [
        ([{"id": "x", "text": "[]"}, {"id": "y", "text": TEXT}], ["x", "y"], "'x' and 'y' have the same query"),
        ([{"id": "x", "text": "[]"}], ["x", "y"], "'x' and 'y' have the same query"),
        ([{"id": "y", "text": "[]"}], ["x", "y"], "'x' and 'y' have the same query"),
        ([{"id": "x", "query": "other", "text": "[]"}], ["x"], "answers other data"),
        ([{"id": "x", "text": "[]"}, {"query": "same", "text": TEXT}], ["x"], "in another way"),
    ],
)
def test_what_could_mean_two_answers_is_refused(
    tmp_path: Path, rows: list[dict[str, Any]], items: list[str], found: str
):
    planner = RecordedPlanner.load(write(tmp_path / "a.jsonl", *rows))
    with pytest.raises(InputError, match=found):
        planner.for_examples([example(item, "same") for item in items])


def test_items_that_share_query_and_answer_are_fine(tmp_path: Path):
    path = write(tmp_path / "a.jsonl", {"id": "x", "text": "[]"}, {"id": "y", "text": "[]"})
    joined = RecordedPlanner.load(path).for_examples([example("x", "same"), example("y", " same")])
    assert plan(joined, "same").text == "[]"


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (
            [{"query": "a  b", "text": ""}, "", {"query": "a b", "text": "[]"}],
            "line 3: the query 'a b' stands in line 1",
        ),
        ([{"id": 1, "text": ""}, {"id": "1", "text": "[]"}], "line 2: the id '1' stands in line 1"),
        (["{not json"], "line 1: "),
        (["[1]"], "line 1: expected an object"),
        (['{"id":"a","id":"b","text":""}'], "'id' stands twice"),
        (['{"id":"a","plan":[{"type":"x","type":"y"}]}'], "'type' stands twice"),
        ([{"text": "[]"}], "expected 'id' or 'query'"),
        ([{"id": "a"}], "exactly one of 'text' and 'plan'"),
        ([{"id": "a", "text": "[]", "plan": []}], "exactly one of 'text' and 'plan'"),
        ([{"id": "a", "text": 5}], "line 1: text: "),
        ([{"id": True, "text": ""}], "line 1: id"),
        ([{"id": "a", "text": "", "completion_tokens": -1}], "line 1: completion_tokens"),
        (['{"id":"a","plan":[1e999]}'], "line 1: the plan cannot be written"),
        (['{"id":"a","plan":' + "[" * 100_000 + "]" * 100_000 + "}"], "deep"),
    ],
)
def test_a_row_that_is_none_is_refused_with_its_line(tmp_path: Path, rows: list[Any], found: str):
    with pytest.raises(InputError, match=found) as raised:
        RecordedPlanner.load(write(tmp_path / "a.jsonl", *rows))
    assert "a.jsonl" in str(raised.value)


def test_a_file_that_others_wrote_may_begin_with_a_mark_and_end_without_newline(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"query":"a","text":"[]"}\r\n\r\n{"query":"b","text":"\\ud800"}')
    planner = RecordedPlanner.load(path)
    assert [plan(planner, query).text for query in "ab"] == ["[]", "\\ud800"]
    path.write_bytes(b'{"query":"\xff"}\n')
    with pytest.raises(InputError, match="line 1: not UTF-8"):
        RecordedPlanner.load(path)
    with pytest.raises(InputError, match="cannot be read"):
        RecordedPlanner.load(tmp_path)


def test_several_answers_of_one_system_have_a_sample_each(tmp_path: Path):
    rows = [{"id": "x", "sample": sample, "text": f"[{sample}]"} for sample in range(3)]
    planner = RecordedPlanner.load(write(tmp_path / "a.jsonl", *rows)).for_examples([example("x", "time")])
    texts = [asyncio.run(planner.plan("time", CATALOG, sample=sample)).text for sample in range(4)]
    assert texts == ["[0]", "[1]", "[2]", ""]
    assert planner.counts == {"answered": 3, "missing": 1}
    with pytest.raises(InputError, match="a 'sample' each"):
        RecordedPlanner.load(write(tmp_path / "a.jsonl", *rows, rows[1]))


def test_our_own_run_rows_are_such_a_file_failed_requests_included(tmp_path: Path):
    def row(text: str, reason: FinishReason) -> str:
        values: dict[str, Any] = {"prompt_tokens": 9, "completion_tokens": 4, "seconds": 0.5, "finish_reason": reason}
        return Run(id="x", part="seen", system="s", query="time", text=text, **values).model_dump_json()

    failed, stopped = row("", FinishReason.ERROR), row(TEXT, FinishReason.STOP)
    for rows in ([failed, stopped], [stopped, failed], [failed, stopped, failed, failed]):
        path = write(tmp_path / "runs.jsonl", *rows)
        assert plan(RecordedPlanner.load(path).for_examples([example("x", "time")]), "time").text == TEXT


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)
rows = st.fixed_dictionaries(
    {}, optional={name: values for name in ("id", "query", "text", "plan", "seconds", "finish_reason", "sample")}
)
usable = st.fixed_dictionaries({"query": st.text(), "plan": values}, optional={"seconds": st.floats(0, 9)})


@given(st.binary(max_size=80) | st.lists(rows | usable).map(lambda rows: "\n".join(map(json.dumps, rows)).encode()))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        RecordedPlanner.load(path)


@given(st.lists(usable, min_size=1, max_size=3, unique_by=lambda row: " ".join(row["query"].split())))
def test_any_value_that_can_be_written_is_an_answer(
    tmp_path_factory: pytest.TempPathFactory, answers: list[dict[str, Any]]
):
    path = write(tmp_path_factory.getbasetemp() / "any.jsonl", *answers)
    try:
        planner = RecordedPlanner.load(path)
    except InputError as error:  # null is no plan, NaN no JSON, and two queries may be one in Unicode's normal form
        assume("exactly one" not in str(error) and "stands in line" not in str(error) and "NaN" not in path.read_text())
        assume("Infinity" not in path.read_text())
        raise
    for row in answers:
        assert json.loads(plan(planner, row["query"]).text) == row["plan"]
