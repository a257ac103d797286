"""A teacher's answers as a source: each ends as kept or rejected, held against the record of its query."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from plansmith.contract.errors import InputError
from plansmith.contract.progress import Silent
from plansmith.contract.records import FinishReason, Query, TeacherDraft
from plansmith.contract.store import append_row, file_hash, write_rows
from plansmith.data.build import NO_HELP, Helpers, build_data
from plansmith.data.drafts import DRAFTS, FAILED, Failure, request_key
from plansmith.data.queries import CATALOG, MANIFEST, QUERIES, QueriesManifest
from plansmith.data.stages.tally import Stage
from plansmith.verifying import equivalent

from .stage_kit import CAT, FOUND, ROOMS, Built, add_up, configured, good, ref, step

SETTINGS = "s" * 64
RIGHT = good()["plan"]


def recorded(number: int, *, known: bool = True) -> Query:
    """A query for a town, with its own recorded plan or without one."""
    text = f"town{number}"
    plan = [step("find", text=text), step("stay", place=ref("/0/id"))] if known else None
    results = [FOUND, ROOMS] if known else None
    return Query(id=f"q{number}", query=f"A stay in {text}", source="log", reference=plan, results=results)


def write_queries(run: Path, queries: Sequence[Query]) -> None:
    """What collecting queries leaves in a run directory."""
    run.mkdir(parents=True, exist_ok=True)
    CAT.save(run / CATALOG)
    write_rows(run / QUERIES, queries)
    manifest = QueriesManifest(
        catalog_name=CAT.name,
        catalog_hash=CAT.hash,
        queries=len(queries),
        languages={},
        sources=[],
        mix=[],
        files={name: file_hash(run / name) for name in (CATALOG, QUERIES)},
        config={},
    )
    (run / MANIFEST).write_text(manifest.model_dump_json())


def draft(query: Query, answer: Any, sample: int = 0, finish: FinishReason = FinishReason.STOP) -> TeacherDraft:
    """An answer; anything but text is written as JSON."""
    return TeacherDraft(
        key=request_key(SETTINGS, query.query, sample),
        settings=SETTINGS,
        id=query.id,
        query=query.query,
        sample=sample,
        model="teacher",
        text=answer if isinstance(answer, str) else json.dumps(answer),
        finish_reason=finish,
        prompt_tokens=1,
        completion_tokens=1,
        seconds=0.0,
    )


def taught(
    run: Path, queries: Sequence[Query], drafts: Sequence[TeacherDraft], helpers: Helpers = NO_HELP, **more: Any
) -> Built:
    """Build from a run directory; sources say nothing, so the rules are a teacher's own, unless they are given."""
    write_queries(run, queries)
    write_rows(run / DRAFTS, drafts)
    config = configured({"kind": "teacher", "run": run}, **({"verify": {"outcome": "reject"}} | more))
    found = Built(run / "data", build_data(config, run / "data", seed=0, progress=Silent(), helpers=helpers))
    known = {query.query for query in queries}
    add_up(found, sum(one.query in known for one in drafts))
    return found


def place(town: str, value: Any) -> list[dict[str, Any]]:
    return [step("find", text=town), step("stay", place=value)]


LONG = json.dumps([step("find", text="x" * 100_000)])
FATES: dict[str, tuple[Any, str | None]] = {
    "right": (place("town0", ref("/0/id")), None),
    "literal of a result": (place("town0", "p-771"), None),
    "fenced": ("```json\n" + json.dumps(place("town0", ref("/0/id"))) + "\n```", None),
    "invented": (place("town0", "p-999"), "invented"),
    "other call": (place("stay", ref("/0/id")), "execution"),
    "wrong place": (place("town0", ref("/0/near/0/id")), "execution"),
    "half": (place("town0", ref("/0/id"))[:1], "wrong_outcome"),
    "gives up": ([], "wrong_outcome"),
    "unknown worker": ([step("rm_rf")], "check"),
    "100 KiB": (LONG, "invented"),
    "not JSON": ("I cannot help with that.", "not_json"),
    "object": ("{}", "not_array"),
    "step is text": ('["find"]', "step_not_object"),
    "double key": ('[{"type":"now","args":{},"args":{}}]', "duplicate_key"),
    "lone surrogate": ('[{"type":"find","args":{"text":"\\ud800"}}]', "bad_value"),
    "deep": ("[" * 500 + "]" * 500, "too_deep"),
}


@pytest.mark.parametrize("name", FATES)
def test_each_answer_ends_as_kept_or_rejected_with_its_reason(tmp_path: Path, name: str):
    answer, reason = FATES[name]
    others = [recorded(1), recorded(0)]
    found = taught(tmp_path, others, [draft(others[0], place("town1", ref("/0/id"))), draft(others[1], answer)])
    assert found.reasons == ({} if reason is None else {reason: 1}), found.rejects
    if reason is None:
        assert [row.plan for row in found.kept] == [place(f"town{at}", ref("/0/id")) for at in (1, 0)]
        assert all(row.results == [FOUND, ROOMS] for row in found.kept)


def test_an_answer_that_the_token_limit_cut_is_none(tmp_path: Path):
    queries = [recorded(0), recorded(1)]
    drafts = [draft(queries[0], RIGHT, finish=FinishReason.LENGTH), draft(queries[1], place("town1", ref("/0/id")))]
    assert taught(tmp_path, queries, drafts).reasons == {"cut_off": 1}


def test_repaired_answers_are_noted_or_rejected_as_asked(tmp_path: Path):
    queries = [recorded(0), recorded(1)]
    drafts = [draft(queries[0], FATES["fenced"][0]), draft(queries[1], place("town1", ref("/0/id")))]
    assert taught(tmp_path, queries, drafts).manifest.notes == {"repaired_answers": 1}
    source = {"kind": "teacher", "run": tmp_path, "keep_repaired": False}
    manifest = build_data(configured(source, verify={}), tmp_path / "data", seed=0, progress=Silent())
    assert manifest.counts.rejects == {"repaired": 1}


def test_a_query_without_a_record_is_checked_for_invented_values_only(tmp_path: Path):
    queries = [recorded(0, known=False), recorded(1, known=False)]
    drafts = [draft(queries[0], place("town0", ref("/0/id"))), draft(queries[1], place("town1", "p-771"))]
    found = taught(tmp_path, queries, drafts)
    assert found.reasons == {"invented": 1}
    assert found.stage(Stage.EXECUTION).counted == {"without_results": 1}
    assert found.stage(Stage.OUTCOME).counted == {"without_answer": 1}


def test_samples_that_cannot_be_read_are_answers_of_the_vote(tmp_path: Path):
    queries = [recorded(0), recorded(1)]
    answers: list[Any] = [place("town0", "p-771"), "no", place("town0", ref("/0/id")), [step("rm_rf")], "no"]
    drafts = [draft(queries[0], answer, sample) for sample, answer in enumerate(answers)]
    drafts.append(draft(queries[1], place("town1", ref("/0/id"))))
    verify = {"vote": {"min_share": 0.4}}
    found = taught(tmp_path / "enough", queries, drafts, Helpers(equivalent=equivalent), verify=verify)
    assert found.reasons == {"check": 1, "not_json": 2, "same_answer": 1}
    assert {row.id for row in found.kept} == {"q0", "q1"}
    verify = {"vote": {"min_share": 0.5}}
    found = taught(tmp_path / "few", queries, drafts, Helpers(equivalent=equivalent), verify=verify)
    assert found.reasons == {"check": 1, "not_json": 2, "no_agreement": 2}


def test_answers_to_queries_that_are_gone_are_noted_and_not_read(tmp_path: Path):
    queries = [recorded(0), recorded(1)]
    drafts = [draft(query, place(f"town{at}", ref("/0/id"))) for at, query in enumerate(queries)]
    found = taught(tmp_path, queries[:1], drafts)
    assert found.manifest.notes == {"answers_to_other_queries": 1}
    assert found.manifest.counts.read == 1


def test_requests_without_an_answer_are_noted_and_a_new_one_builds_again(tmp_path: Path):
    queries = [recorded(0)]
    drafts = [draft(queries[0], place("town0", ref("/0/id")))]
    first = taught(tmp_path, queries, drafts).manifest
    failure = Failure(key="k", settings=SETTINGS, id="q", query="q", sample=0, error="hangs")
    append_row(tmp_path / FAILED, failure)
    second = taught(tmp_path, queries, drafts).manifest
    assert (first.notes, second.notes) == ({}, {"requests_without_answer": 1})


def test_an_answer_that_comes_later_builds_again_and_moves_no_other(tmp_path: Path):
    queries = [recorded(number) for number in range(30)]
    drafts = [draft(query, place(f"town{at}", ref("/0/id"))) for at, query in enumerate(queries)]
    split = {"val": 0.2, "seen": 0.2, "unseen": 0}
    before = {row.id: row.split for row in taught(tmp_path, queries, drafts[:20], split=split).kept}
    after = {row.id: row.split for row in taught(tmp_path, queries, drafts, split=split).kept}
    assert (len(before), len(after)) == (20, 30)
    assert {row_id: after[row_id] for row_id in before} == before


def test_a_run_directory_without_queries_or_with_changed_ones_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="cannot be read"):
        build_data(configured({"kind": "teacher", "run": tmp_path}), tmp_path / "d", seed=0, progress=Silent())
    queries = [recorded(0)]
    taught(tmp_path, queries, [draft(queries[0], place("town0", ref("/0/id")))])
    write_rows(tmp_path / QUERIES, [recorded(1)])
    with pytest.raises(InputError, match="was changed since"):
        build_data(configured({"kind": "teacher", "run": tmp_path}), tmp_path / "d", seed=0, progress=Silent())
