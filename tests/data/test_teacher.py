"""The teacher stage: nothing is asked twice, no answer is lost, budgets hold, and every answer ends somewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import check_plan
from plansmith.contract.endpoint import Draft, TokenLogprob
from plansmith.contract.errors import InputError, ServiceError
from plansmith.contract.progress import Silent
from plansmith.contract.records import FinishReason, Query, Reject, TeacherDraft
from plansmith.contract.row_writer import RowWriter
from plansmith.contract.store import read_rows
from plansmith.data.budget import BudgetReachedError, Purse, Spent
from plansmith.data.drafts import (
    DRAFTS,
    FAILED,
    Drafted,
    Failure,
    Outcomes,
    candidates_from,
    count_outcomes,
    iter_drafts,
)
from plansmith.data.teacher import Taught, teach
from plansmith.data.teacher_config import Budget, Repaired, TeachConfig
from tests.data.conftest import CATALOG as CATALOG_JSON

CATALOG = Catalog.from_json(CATALOG_JSON)
GOOD = '{"note":"One call.","plan":[{"type":"one","args":{"a":"x"}}]}'
Answer = Callable[[str, int | None], str]


def queries(count: int) -> list[Query]:
    return [Query(id=f"q{n}", query=f"query {n}", source="test") for n in range(count)]


class Scripted:
    """A planner that answers from a function, and counts what it is asked."""

    def __init__(self, answer: Answer = lambda query, seed: GOOD) -> None:
        self.answer = answer
        self.asked: list[tuple[str, int | None]] = []
        self.temperatures: set[float | None] = set()
        self.counts: dict[str, int] = {}
        self.under_way = self.most_under_way = 0

    async def plan(
        self,
        query: str,
        catalog: Catalog,
        *,
        constrained: bool = True,
        temperature: float | None = None,
        seed: int | None = None,
    ) -> Draft:
        self.asked.append((query, seed))
        self.temperatures.add(temperature)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0.001)
        self.under_way -= 1
        text = self.answer(query, seed)
        return Draft(query, text, check_plan("", catalog), 100, 10, 0.001, FinishReason.STOP)


class OneAnswer:
    """A planner that cannot sample."""

    async def plan(self, query: str, catalog: Catalog, *, constrained: bool = True) -> Draft:
        return Draft(query, GOOD, check_plan("", catalog), 1, 1, 0.0, FinishReason.STOP)


def run(asked: Sequence[Query], planner: Any, out: Path, *, model: str = "m", **settings: Any) -> Taught:
    config = TeachConfig(**settings)
    return teach(asked, planner, CATALOG, out, config, Silent(), model=model, identity={"prompt": "1"})


def drafts(out: Path) -> list[TeacherDraft]:
    return read_rows(out / DRAFTS, TeacherDraft)


def failing(*broken: str) -> Answer:
    def answer(query: str, seed: int | None) -> str:
        if query in broken:
            raise ServiceError("it is down.")
        return GOOD

    return answer


def test_every_query_is_asked_once_and_its_answer_kept(tmp_path: Path):
    planner = Scripted()
    taught = run(queries(20), planner, tmp_path, concurrency=4)
    assert (taught.wanted, taught.answered, taught.asked, taught.failed) == (20, 20, 20, 0)
    assert sorted(planner.asked) == sorted((f"query {n}", None) for n in range(20))
    assert planner.most_under_way == 4
    rows = drafts(tmp_path)
    assert {(row.id, row.query, row.text) for row in rows} == {(f"q{n}", f"query {n}", GOOD) for n in range(20)}
    assert len({row.key for row in rows}) == 20
    assert {row.settings for row in rows} == {taught.settings}
    assert (taught.spent.prompt_tokens, taught.spent.completion_tokens) == (2000, 200)


def test_a_rerun_asks_nothing_and_more_queries_ask_only_them(tmp_path: Path):
    run(queries(5), Scripted(), tmp_path)
    before = (tmp_path / DRAFTS).read_bytes()
    again = Scripted()
    assert run(queries(5), again, tmp_path).asked == 0
    assert again.asked == []
    assert (tmp_path / DRAFTS).read_bytes() == before
    renamed = [query.model_copy(update={"id": f"new-{query.id}"}) for query in queries(7)]
    taught = run(renamed, again, tmp_path)
    assert sorted(again.asked) == [("query 5", None), ("query 6", None)]
    assert (taught.answered, taught.asked) == (7, 2)
    assert (tmp_path / DRAFTS).read_bytes().startswith(before)


def test_more_samples_keep_the_first_and_each_has_a_seed_of_its_own(tmp_path: Path):
    first, more = Scripted(), Scripted()
    run(queries(3), first, tmp_path, temperature=0.7)
    run(queries(3), more, tmp_path, temperature=0.7, samples=3)
    assert first.temperatures == more.temperatures == {0.7}
    assert len(more.asked) == 6
    asked = first.asked + more.asked
    assert len({seed for _, seed in asked}) == 9
    assert all(seed is not None and 0 <= seed < 2**31 for _, seed in asked)
    assert sorted((row.id, row.sample) for row in drafts(tmp_path)) == [
        (f"q{n}", s) for n in range(3) for s in range(3)
    ]
    other = Scripted()
    run(queries(3), other, tmp_path / "other", temperature=0.7, samples=3)
    assert sorted(other.asked) == sorted(asked), "the same request has another seed in another run"


def test_a_failed_request_is_no_answer_and_is_made_again(tmp_path: Path):
    taught = run(queries(4), Scripted(failing("query 1", "query 2")), tmp_path)
    assert (taught.answered, taught.failed, taught.stopped) == (2, 2, None)
    assert {row.query for row in drafts(tmp_path)} == {"query 0", "query 3"}
    failed = read_rows(tmp_path / FAILED, Failure)
    assert {(row.query, row.error, row.attempts) for row in failed} == {
        ("query 1", "it is down.", 1),
        ("query 2", "it is down.", 1),
    }
    again = Scripted(failing("query 2"))
    taught = run(queries(4), again, tmp_path)
    assert sorted(again.asked) == [("query 1", None), ("query 2", None)]
    assert (taught.answered, taught.failed) == (3, 1)
    assert [(row.query, row.attempts) for row in read_rows(tmp_path / FAILED, Failure)] == [("query 2", 2)]
    assert taught.spent.requests == 6
    assert run(queries(4), Scripted(), tmp_path).failed == 0
    assert (tmp_path / FAILED).read_bytes() == b""


def test_a_draft_with_an_error_is_a_failure_too(tmp_path: Path):
    class Withholding(Scripted):
        async def plan(self, query: str, catalog: Catalog, **options: Any) -> Draft:
            draft = await super().plan(query, catalog, **options)
            return Draft(query, "", draft.check, 5, 0, 0.0, FinishReason.ERROR, "it was withheld.")

    taught = run(queries(30), Withholding(), tmp_path, give_up_after=3)
    assert (taught.answered, taught.failed, taught.stopped) == (0, 30, None)
    assert drafts(tmp_path) == []


def test_a_service_that_is_gone_ends_the_work_and_the_rest_is_asked_later(tmp_path: Path):
    gone = Scripted(failing(*(f"query {n}" for n in range(10, 100))))
    taught = run(queries(100), gone, tmp_path, concurrency=1, give_up_after=5)
    assert isinstance(taught.stopped, ServiceError)
    assert "last 5 requests all failed" in str(taught.stopped)
    assert (taught.answered, taught.failed, len(gone.asked)) == (10, 5, 15)
    back = Scripted()
    assert run(queries(100), back, tmp_path).answered == 100
    assert len(back.asked) == 90


def test_failures_between_answers_do_not_end_the_work(tmp_path: Path):
    every_other = Scripted(failing(*(f"query {n}" for n in range(0, 60, 2))))
    taught = run(queries(60), every_other, tmp_path, concurrency=1, give_up_after=2)
    assert (taught.answered, taught.failed, taught.stopped) == (30, 30, None)


def test_another_seed_is_another_sample_and_none_where_nothing_is_sampled(tmp_path: Path):
    run(queries(2), Scripted(), tmp_path, temperature=0.5, seed=1)
    other = Scripted()
    run(queries(2), other, tmp_path, temperature=0.5, seed=2)
    assert len(other.asked) == 2
    run(queries(2), Scripted(), tmp_path, seed=1)
    greedy = Scripted()
    run(queries(2), greedy, tmp_path, seed=2)
    assert greedy.asked == []


def test_other_settings_put_answers_aside_and_take_them_back(tmp_path: Path):
    run(queries(3), Scripted(), tmp_path, model="first")
    before = (tmp_path / DRAFTS).read_bytes()
    other = Scripted()
    taught = run(queries(3), other, tmp_path, model="second")
    assert len(other.asked) == 3
    assert (tmp_path / f"{DRAFTS}.1").read_bytes() == before
    assert {row.model for row in drafts(tmp_path)} == {"second"}
    third = Scripted()
    run(queries(3), third, tmp_path, model="first", temperature=0.5)
    assert len(third.asked) == 3
    back = Scripted()
    run(queries(4), back, tmp_path, model="first")
    assert back.asked == [("query 3", None)]
    assert (tmp_path / DRAFTS).read_bytes().startswith(before)
    kept = [read_rows(path, TeacherDraft)[0].settings for path in sorted(tmp_path.glob(f"{DRAFTS}.*"))]
    assert len(set(kept)) == 2
    assert taught.settings in kept


def test_concurrency_budget_and_patience_do_not_change_what_an_answer_is_to(tmp_path: Path):
    run(queries(3), Scripted(), tmp_path)
    again = Scripted()
    run(queries(3), again, tmp_path, concurrency=3, give_up_after=1, budget=Budget(requests=1000), repaired="reject")
    assert again.asked == []


def test_answers_of_two_settings_in_one_file_are_refused(tmp_path: Path):
    run(queries(2), Scripted(), tmp_path, model="first")
    rows = (tmp_path / DRAFTS).read_bytes()
    run(queries(2), Scripted(), tmp_path, model="second")
    (tmp_path / DRAFTS).write_bytes((tmp_path / DRAFTS).read_bytes() + rows)
    with pytest.raises(InputError, match="other settings"):
        run(queries(2), Scripted(), tmp_path, model="second")


def test_a_half_row_of_a_killed_run_is_asked_again(tmp_path: Path):
    run(queries(3), Scripted(), tmp_path, concurrency=1)
    whole = (tmp_path / DRAFTS).read_bytes()
    (tmp_path / DRAFTS).write_bytes(whole[:-20])
    again = Scripted()
    run(queries(3), again, tmp_path)
    assert again.asked == [("query 2", None)]
    assert len(drafts(tmp_path)) == 3


def test_a_second_writer_in_the_same_directory_is_refused(tmp_path: Path):
    planner = Scripted()
    with RowWriter(tmp_path / DRAFTS), pytest.raises(InputError, match="another plansmith process"):
        run(queries(3), planner, tmp_path)
    assert planner.asked == []


@pytest.mark.parametrize(
    ("budget", "answers", "named"),
    [
        (Budget(requests=7), 7, "7 requests"),
        (Budget(tokens=1000), 9, "1000 tokens"),
        (Budget(money=0.001, price_prompt=1.0, price_completion=2.0), 8, "0.001 USD"),
    ],
)
def test_a_budget_ends_the_work_cleanly_and_holds_over_runs(tmp_path: Path, budget: Budget, answers: int, named: str):
    taught = run(queries(50), Scripted(), tmp_path, budget=budget, concurrency=1)
    assert isinstance(taught.stopped, BudgetReachedError)
    assert taught.stopped.exit_code == 1
    assert named in str(taught.stopped)
    assert f"{50 - answers} of 50" in str(taught.stopped)
    assert taught.answered == len(drafts(tmp_path)) == answers
    again = Scripted()
    taught = run(queries(50), again, tmp_path, budget=budget, concurrency=1)
    assert len(again.asked) <= 1, "nothing is known of the price of one more request before the first"
    gone = budget.model_copy(
        update={"tokens": 900 if budget.tokens else None, "money": 0.0005 if budget.money else None}
    )
    nothing = Scripted()
    run(queries(50), nothing, tmp_path, budget=gone)
    assert nothing.asked == []
    raised = budget.model_copy(update=dict.fromkeys(("requests", "tokens", "money"), None))
    assert run(queries(50), Scripted(), tmp_path, budget=raised).answered == 50


def test_a_budget_is_not_passed_by_many_requests_at_once(tmp_path: Path):
    taught = run(queries(500), Scripted(), tmp_path, budget=Budget(tokens=11_000), concurrency=20)
    assert 95 <= taught.answered <= 100


def test_a_budget_that_is_just_enough_stops_nothing(tmp_path: Path):
    assert (
        run(queries(10), Scripted(), tmp_path, budget=Budget(requests=10, tokens=1100), concurrency=3).stopped is None
    )


def test_repeated_requests_count_against_the_budget():
    repeated = 0
    purse = Purse(Budget(requests=5), Spent(), retries=lambda: repeated)
    assert [purse.take() for _ in range(2)] == [True, True]
    repeated = 3
    assert purse.take() is False
    assert purse.reached == "5 requests (5 made)"


def test_a_planner_that_cannot_sample_is_not_asked_for_samples(tmp_path: Path):
    assert run(queries(2), OneAnswer(), tmp_path).answered == 2
    with pytest.raises(InputError, match="OneAnswer gives one answer"):
        run(queries(2), OneAnswer(), tmp_path, samples=2)
    with pytest.raises(ValueError, match="greedy answers are all the same"):
        TeachConfig(samples=2, temperature=0)


def test_repeated_queries_are_refused_before_anything_is_asked(tmp_path: Path):
    planner = Scripted()
    with pytest.raises(InputError, match="'query 0'"):
        run([*queries(2), Query(id="other", query="query 0", source="test")], planner, tmp_path)
    assert planner.asked == []


def test_logprobs_are_kept_where_they_are_given(tmp_path: Path):
    class Telling(Scripted):
        async def plan(self, query: str, catalog: Catalog, **options: Any) -> Draft:
            draft = await super().plan(query, catalog, **options)
            tokens = (TokenLogprob("[", -0.1, (("[", -0.1), ("x", -2.5))), TokenLogprob("]", 0.0))
            return Draft(query, "[]", draft.check, 1, 2, 0.0, FinishReason.STOP, None, tokens)

    run(queries(1), Telling(), tmp_path)
    (row,) = drafts(tmp_path)
    assert row.logprobs == (("[", -0.1, (("[", -0.1), ("x", -2.5))), ("]", 0.0, ()))


ENDS = {
    "query 0": (GOOD, None),
    "query 1": ("[]", None),
    "query 2": ("Sure!\n```json\n" + GOOD + "\n```", None),
    "query 3": ('[{"type":"one","args":{"a":"x"}},]', None),
    "query 4": ("I cannot help with that.", "not_json"),
    "query 5": ('{"answer":42}', "not_array"),
    "query 6": ('["one"]', "step_not_object"),
    "query 7": ('[{"type":"one","args":{"a":"x","a":"y"}}]', "duplicate_key"),
    "query 8": ('[{"type":"one","args":{"a":1e999}}]', "bad_value"),
    "query 9": ('[{"type":"one","args":{"a":"\\ud800"}}]', "bad_value"),
    "query 10": ("", "not_json"),
    "query 11": ('{"note":"n","plan":"[]"}', "not_array"),
}


def test_every_answer_is_a_candidate_or_a_reject_with_its_reason(tmp_path: Path):
    asked = queries(len(ENDS))
    run(asked, Scripted(lambda query, _: ENDS[query][0]), tmp_path)
    found = candidates_from(iter_drafts(tmp_path), asked)
    reasons = {row.query: row.reason for row in found.rejects}
    assert reasons == {query: reason for query, (_, reason) in ENDS.items() if reason is not None}
    assert {row.id for row in found.candidates} == {"q0", "q1", "q2", "q3"}
    assert found.repaired.keys() == {"q2", "q3"}
    assert found.notes == {"q0": "One call.", "q2": "One call."}
    assert {row.id: row.family for row in found.candidates} == {
        "q0": "one",
        "q1": "(no worker)",
        "q2": "one",
        "q3": "one",
    }
    for row in (*found.candidates, *found.rejects):
        row.model_dump_json().encode()
    outcomes = count_outcomes(len(ENDS) + 3, 2, found)
    assert (outcomes.kept, outcomes.repaired, outcomes.failed, outcomes.missing) == (2, 2, 2, 1)
    assert sum(outcomes.rejected.values()) == 8
    strict = candidates_from(iter_drafts(tmp_path), asked, repaired=Repaired.REJECT)
    assert {row.id for row in strict.candidates} == {"q0", "q1"}
    assert {row.id for row in strict.rejects if row.reason == "repaired"} == {"q2", "q3"}


def draft(**changes: Any) -> TeacherDraft:
    values: dict[str, Any] = {
        **{"key": "k", "settings": "s", "id": "q0", "query": "query 0", "model": "m", "text": GOOD},
        **{"finish_reason": FinishReason.STOP, "prompt_tokens": 1, "completion_tokens": 9, "seconds": 0.0},
    }
    return TeacherDraft(**(values | changes))


def test_an_answer_that_was_cut_is_never_mended():
    found = candidates_from([draft(sample=1, finish_reason=FinishReason.LENGTH)], queries(1))
    assert [(row.id, row.reason) for row in found.rejects] == [("q0~1", "cut_off")]
    assert "9 tokens" in found.rejects[0].detail


def test_answers_to_queries_that_are_gone_are_left_out(tmp_path: Path):
    run(queries(3), Scripted(), tmp_path)
    assert [row.id for row in candidates_from(iter_drafts(tmp_path), queries(2)[1:]).candidates] == ["q1"]


def test_outcomes_add_up_or_are_refused():
    reject = Reject(id="q0", query="q", plan=[], reason="invented", detail="d.", source="s")
    found = candidates_from([draft()], queries(1))
    assert count_outcomes(1, 0, found, [reject]).rejected == {"invented": 1}
    assert count_outcomes(1, 0, found).kept == 1
    with pytest.raises(ValueError, match="add up"):
        count_outcomes(0, 0, found)
    with pytest.raises(ValueError, match="add up"):
        Outcomes(wanted=3, kept=1, repaired=0, rejected={"x": 1}, failed=0, missing=0)
    assert count_outcomes(0, 0, Drafted()).wanted == 0
