"""Asking a system: what is stored, what is asked again, and what refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.contract.errors import InputError, PlansmithError
from plansmith.contract.progress import Silent
from plansmith.contract.records import FinishReason, Run
from plansmith.contract.store import append_row, read_rows
from plansmith.eval.config import EvalConfig
from plansmith.eval.run import choose_examples, latest_rows, run_system
from tests.eval.cases import CATALOG, EXAMPLES, RIGHT, Batching, OneByOne, draft, example, run

SMALL = EvalConfig(batch_size=2, concurrency=3)


class Noting(Silent):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.started: list[tuple[str, int]] = []
        self.done = 0
        self.values: set[str] = set()
        self.notes: list[str] = []
        self.finished = 0

    def start(self, what: str, total: int) -> None:
        self.started.append((what, total))

    def advance(self, amount: int = 1, **values: float | str) -> None:
        self.done += amount
        self.values |= values.keys()

    def finish(self) -> None:
        self.finished += 1

    def note(self, text: str) -> None:
        self.notes.append(text)


def ask(
    planner: Batching | OneByOne, runs: Path, system: str = "tuned/free", progress: Silent | None = None
) -> list[Run]:
    return run_system(
        planner,
        system,
        EXAMPLES,
        CATALOG,
        runs,
        constrained=False,
        progress=progress or Silent(),
        config=SMALL,
    )


def test_every_item_is_asked_once_and_stored_in_batches(tmp_path: Path):
    planner, progress = Batching(RIGHT), Noting()
    rows = ask(planner, tmp_path / "eval" / "runs.jsonl", progress=progress)
    assert [row.id for row in rows] == [e.id for e in EXAMPLES]
    assert [len(batch) for batch in planner.asked] == [2, 2, 2]
    assert read_rows(tmp_path / "eval" / "runs.jsonl", Run) == rows
    assert progress.started == [("plans by tuned/free", 6)]
    assert (progress.done, progress.finished, progress.values) == (6, 1, {"plans/s"})
    assert rows[0] == run(EXAMPLES[0], "tuned/free", RIGHT[EXAMPLES[0].query])


def test_a_stopped_run_goes_on_with_what_is_missing(tmp_path: Path):
    runs = tmp_path / "runs.jsonl"
    with pytest.raises(KeyboardInterrupt):
        ask(Batching(RIGHT, stop_at=1), runs)
    assert len(read_rows(runs, Run)) == 2
    with runs.open("a") as file:
        file.write('{"version":1,"id":"item-2","par')
    planner, progress = Batching(RIGHT), Noting()
    rows = ask(planner, runs, progress=progress)
    assert [q for batch in planner.asked for q in batch] == [e.query for e in EXAMPLES[2:]]
    assert progress.notes == ["tuned/free: 2 of 6 items are answered already"]
    assert read_rows(runs, Run) == rows
    again = Batching({})
    assert ask(again, runs) == rows
    assert again.asked == []


def test_systems_share_a_file_and_not_their_answers(tmp_path: Path):
    runs = tmp_path / "runs.jsonl"
    ask(Batching({}), runs, "base/free")
    planner = Batching(RIGHT)
    ask(planner, runs, "tuned/free")
    assert sum(map(len, planner.asked)) == 6
    assert len(read_rows(runs, Run)) == 12


def test_rows_of_other_items_are_left_alone(tmp_path: Path):
    runs = tmp_path / "runs.jsonl"
    append_row(runs, run(example(99), "tuned/free", "[]"))
    assert len(ask(Batching(RIGHT), runs)) == 6
    assert len(read_rows(runs, Run)) == 7


def test_a_planner_of_single_queries_is_asked_with_bounded_concurrency(tmp_path: Path):
    planner = OneByOne(RIGHT)
    rows = ask(planner, tmp_path / "runs.jsonl")
    assert [row.text for row in rows] == [RIGHT[e.query] for e in EXAMPLES]
    assert planner.most_under_way == 3


def test_a_failed_request_is_a_row_and_is_asked_again(tmp_path: Path):
    runs, down, progress = tmp_path / "runs.jsonl", [EXAMPLES[1].query], Noting()
    rows = ask(OneByOne(RIGHT, down=down), runs, progress=progress)
    assert (rows[1].finish_reason, rows[1].text, rows[1].error) == (FinishReason.ERROR, "", "no planner at port 1")
    assert "1 requests failed" in progress.notes[-1]
    planner = OneByOne(RIGHT)
    rows = ask(planner, runs)
    assert planner.asked == down
    assert rows[1].finish_reason is FinishReason.STOP


def test_another_error_of_a_planner_ends_the_run_and_keeps_what_came(tmp_path: Path):
    class Broken(OneByOne):
        async def plan(self, query, catalog, *, constrained=True):
            if query == EXAMPLES[4].query:
                raise InputError("the adapter was made for another catalog")
            return await super().plan(query, catalog, constrained=constrained)

    runs = tmp_path / "runs.jsonl"
    with pytest.raises(InputError, match="another catalog"):
        ask(Broken(RIGHT), runs)
    assert {row.id for row in read_rows(runs, Run)} >= {e.id for e in EXAMPLES[:3]}


def test_a_planner_that_mixes_up_its_answers_is_refused(tmp_path: Path):
    class Mixed(Batching):
        def plan_batch(self, queries, catalog, *, constrained):
            return [draft(query, "[]") for query in reversed(queries)]

    with pytest.raises(PlansmithError, match="another order"):
        ask(Mixed({}), tmp_path / "runs.jsonl")


def test_answers_to_other_queries_of_the_same_id_are_refused(tmp_path: Path):
    runs = tmp_path / "runs.jsonl"
    append_row(runs, run(EXAMPLES[0], "tuned/free", "[]").model_copy(update={"query": "older words"}))
    with pytest.raises(InputError, match="older words"):
        ask(Batching(RIGHT), runs)


def test_ids_must_be_unique(tmp_path: Path):
    with pytest.raises(InputError, match="item-1"):
        run_system(
            Batching({}),
            "s",
            [example(1), example(1)],
            CATALOG,
            tmp_path / "runs.jsonl",
            constrained=True,
            progress=Silent(),
        )


def test_the_last_answer_counts_and_a_later_failure_does_not_replace_it():
    item = EXAMPLES[0]
    rows = [run(item, "s", "", error="x"), run(item, "s", "[]"), run(item, "s", "", error="y"), run(item, "s", "[1]")]
    assert [latest_rows(rows[:n])["s", item.id].text for n in (1, 2, 3, 4)] == ["", "[]", "[]", "[1]"]
    assert latest_rows([rows[0], rows[2]])["s", item.id].error == "y"


def test_a_limit_takes_the_same_items_of_each_part_whatever_else_there_is():
    many = [example(i, "seen" if i % 3 else "unseen") for i in range(30)]
    chosen = choose_examples(many, EvalConfig(limit_per_part=4))
    assert sorted(e.part for e in chosen) == ["seen"] * 4 + ["unseen"] * 4
    assert [e for e in many if e in chosen] == chosen
    assert choose_examples(list(reversed(many)), EvalConfig(limit_per_part=4)) == list(reversed(chosen))
    assert choose_examples(many, EvalConfig()) == many
