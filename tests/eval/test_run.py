"""Asking a system: what is stored, what is asked again, and what refuses."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from plansmith.contract.errors import InputError, PlansmithError, ServiceError
from plansmith.contract.progress import Silent
from plansmith.contract.records import FinishReason, Run
from plansmith.contract.row_writer import RowWriter
from plansmith.contract.store import append_row, read_rows
from plansmith.eval.config import EvalConfig
from plansmith.eval.pace import Pace
from plansmith.eval.run import GIVE_UP_AFTER, choose_examples, item_seed, run_system
from plansmith.serving.recorded_planner import RecordedPlanner
from tests.eval.cases import CATALOG, EXAMPLES, RIGHT, Batching, OneByOne, draft, example, run

SMALL = EvalConfig(batch_size=2, concurrency=3)


class Noting(Silent):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.started: list[tuple[str, int]] = []
        self.done = 0
        self.amounts: list[int] = []
        self.values: set[str] = set()
        self.notes: list[str] = []
        self.finished = 0

    def start(self, what: str, total: int) -> None:
        self.started.append((what, total))

    def advance(self, amount: int = 1, **values: float | str) -> None:
        self.done += amount
        self.amounts.append(amount)
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
    assert (progress.done, progress.finished) == (6, 1)
    assert progress.values == {"plans/s", "tokens", "time_left"}
    assert progress.amounts == [2, 2, 2], "a batch counts as one step, so that the rate is not that of its first plan"
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


def test_the_last_answer_counts_and_a_failure_is_none(tmp_path: Path):
    item = EXAMPLES[0]
    runs = tmp_path / "runs.jsonl"
    for row in (run(item, "tuned/free", "[]"), run(item, "tuned/free", "[1]"), run(item, "tuned/free", "", error="y")):
        append_row(runs, row)
    assert ask(Batching(RIGHT), runs)[0].text == "[1]"


class Sampling(OneByOne):
    """Writes the seed and temperature that it was given, one query a call."""

    async def plan(self, query, catalog, *, constrained=True, temperature=None, seed=None):
        await super().plan(query, catalog, constrained=constrained)
        return draft(query, f"[{temperature},{seed}]")


class SamplingBatches(Batching):
    def plan_batch(self, queries, catalog, *, constrained, temperature=0.0, seeds=None):
        self.asked.append(list(queries))
        return [draft(query, f"[{temperature},{seed}]") for query, seed in zip(queries, seeds or [], strict=True)]


def ask_samples(planner: Any, runs: Path, samples: int, **options: Any) -> list[Run]:
    return run_system(
        planner,
        "teacher",
        EXAMPLES,
        CATALOG,
        runs,
        constrained=True,
        progress=Silent(),
        config=SMALL,
        samples=samples,
        **options,
    )


def test_samples_have_seeds_of_their_own_that_depend_on_nothing_else(tmp_path: Path):
    rows = ask_samples(Sampling({}), tmp_path / "one.jsonl", 3, temperature=0.7, seed=5)
    assert [(row.id, row.sample) for row in rows] == [(e.id, sample) for e in EXAMPLES for sample in range(3)]
    assert [row.text for row in rows] == [f"[0.7,{item_seed(5, row.id, row.sample)}]" for row in rows]
    assert len({row.text for row in rows}) == 18
    assert all(0 <= item_seed(5, row.id, row.sample) < 2**31 for row in rows)
    assert item_seed(6, "item-0", 0) != item_seed(5, "item-0", 0)
    batched = ask_samples(SamplingBatches({}), tmp_path / "many.jsonl", 3, temperature=0.7, seed=5)
    assert [row.text for row in batched] == [row.text for row in rows]


def test_first_samples_come_first_and_only_missing_ones_are_asked(tmp_path: Path):
    runs = tmp_path / "runs.jsonl"
    ask_samples(Sampling({}), runs, 1, temperature=0.7)
    planner = Sampling({}, down=[EXAMPLES[2].query])
    ask_samples(planner, runs, 3, temperature=0.7)
    assert planner.asked == [e.query for e in EXAMPLES] * 2
    again = Sampling({})
    rows = ask_samples(again, runs, 3, temperature=0.7)
    assert again.asked == [EXAMPLES[2].query] * 2
    assert len({(row.id, row.sample) for row in read_rows(runs, Run) if row.error is None}) == 18 == len(rows)
    assert [row.sample for row in ask_samples(Sampling({}), runs, 1, temperature=0.7)] == [0] * 6


def test_a_planner_of_recorded_answers_is_told_the_sample(tmp_path: Path):
    recorded = tmp_path / "answers.jsonl"
    answers = [{"id": e.id, "sample": sample, "text": f"[{sample}]"} for e in EXAMPLES for sample in range(2)]
    recorded.write_text("".join(json.dumps(row) + "\n" for row in answers))
    planner = RecordedPlanner.load(recorded).for_examples(EXAMPLES)
    rows = ask_samples(planner, tmp_path / "runs.jsonl", 3, temperature=0.7)
    assert [row.text for row in rows] == ["[0]", "[1]", ""] * 6
    assert [row.finish_reason is FinishReason.ERROR for row in rows] == [False, False, True] * 6
    assert planner.counts == {"answered": 12, "missing": 6}


def test_several_samples_of_what_does_not_sample_are_refused(tmp_path: Path):
    for planner in (OneByOne({}), Batching({})):
        with pytest.raises(InputError, match="whatever the seed"):
            ask_samples(planner, tmp_path / "runs.jsonl", 2)
    with pytest.raises(InputError, match="temperature 0"):
        ask_samples(Sampling({}), tmp_path / "runs.jsonl", 2, temperature=0.0)


def test_a_service_that_is_gone_ends_the_run_and_a_failed_draft_does_not(tmp_path: Path):
    many = [example(number) for number in range(60)]
    gone = OneByOne({}, down=[e.query for e in many[10:]])

    class Failing(OneByOne):
        async def plan(self, query, catalog, *, constrained=True):
            await super().plan(query, catalog, constrained=constrained)
            return draft(query, "", error="the recorded file has no row for it")

    def ask_many(planner: OneByOne, runs: Path) -> list[Run]:
        return run_system(planner, "s", many, CATALOG, runs, constrained=True, progress=Silent(), config=SMALL)

    with pytest.raises(ServiceError, match=r"last (\d+) requests all failed.*no planner at port 1") as given_up:
        ask_many(gone, tmp_path / "gone.jsonl")
    failed = int(re.findall(r"last (\d+) requests", str(given_up.value))[0])
    assert GIVE_UP_AFTER <= failed < GIVE_UP_AFTER + SMALL.concurrency  # those under way at once end together
    rows = read_rows(tmp_path / "gone.jsonl", Run)
    assert sum(row.error is None for row in rows) == 10
    assert len(gone.asked) <= 10 + GIVE_UP_AFTER + 3
    assert [row.finish_reason for row in ask_many(Failing({}), tmp_path / "f.jsonl")] == [FinishReason.ERROR] * 60


def test_the_meter_is_told_of_answers_and_time_also_when_the_run_ends_early(tmp_path: Path):
    class Told:
        answers = 0
        seconds = 0.0

        def add(self, answers: int, seconds: float) -> None:
            self.answers += answers
            self.seconds += seconds

    told = Told()
    runs = tmp_path / "runs.jsonl"
    with pytest.raises(KeyboardInterrupt):
        ask_samples(Batching(RIGHT, stop_at=2), runs, 1, meter=told)
    assert told.answers == 4
    ask_samples(OneByOne(RIGHT, down=[EXAMPLES[5].query]), runs, 1, meter=told)
    assert told.answers == 5, "a failed request is no answer"
    assert told.seconds >= 0.001


def test_what_a_planner_counts_is_told_once_for_this_run(tmp_path: Path):
    class Counting(OneByOne):
        def __init__(self) -> None:
            super().__init__(RIGHT)
            self.counts = Counter({"sent": 9, "no_usage": 1})

        async def plan(self, query, catalog, *, constrained=True):
            self.counts.update(["sent"])
            return await super().plan(query, catalog, constrained=constrained)

    progress = Noting()
    ask(Counting(), tmp_path / "runs.jsonl", progress=progress)
    assert progress.notes == ["tuned/free: sent 6"]


@pytest.mark.parametrize("down", [[], [EXAMPLES[1].query]])
def test_connections_are_closed_in_the_event_loop_in_which_they_were_opened(tmp_path: Path, down: list[str]):
    class Connected(OneByOne):
        def __init__(self) -> None:
            super().__init__(RIGHT)
            self.used: list[asyncio.AbstractEventLoop] = []
            self.released: list[asyncio.AbstractEventLoop] = []

        async def plan(self, query, catalog, *, constrained=True):
            self.used.append(asyncio.get_running_loop())
            if query in down:
                raise InputError("the key is wrong")
            return await super().plan(query, catalog, constrained=constrained)

        async def release(self) -> None:
            self.released.append(asyncio.get_running_loop())

    planner = Connected()
    with pytest.raises(InputError) if down else nullcontext():
        ask(planner, tmp_path / "runs.jsonl")
    assert planner.released == planner.used[:1]


def test_two_writers_of_one_file_are_refused(tmp_path: Path):
    runs = tmp_path / "runs.jsonl"
    with RowWriter(runs), pytest.raises(InputError, match="another plansmith process"):
        ask(Batching(RIGHT), runs)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_is_sensible_from_the_first_answer_on():
    clock = Clock()
    batches = Pace(160, clock=clock)
    assert (batches.rate, batches.time_left) == (0.0, "?")
    clock.now = 60.0  # a long prefix, then the first batch
    batches.add(16)
    assert batches.time_left == "9 min 0 s"
    for _ in range(7):
        clock.now += 10.0
        batches.add(16)
    assert batches.time_left == "20 s", "the slow start is left out once as much time has passed since"
    clock.now += 10.0
    batches.add(32)
    assert batches.time_left == "0 s"
    clock = Clock()
    requests = Pace(80, clock=clock)
    clock.now = 10.0  # eight at once, each of ten seconds: 100 s in all
    requests.add(1, under_way=7)
    assert 90 <= int(requests.time_left.split()[0]) * 60 + int(requests.time_left.split()[2]) <= 200
    for number in range(7):
        requests.add(1, under_way=6 - number)
    assert requests.time_left == "1 min 30 s"


def test_a_limit_takes_the_same_items_of_each_part_whatever_else_there_is():
    many = [example(i, "seen" if i % 3 else "unseen") for i in range(30)]
    chosen = choose_examples(many, EvalConfig(limit_per_part=4))
    assert sorted(e.part for e in chosen) == ["seen"] * 4 + ["unseen"] * 4
    assert [e for e in many if e in chosen] == chosen
    assert choose_examples(list(reversed(many)), EvalConfig(limit_per_part=4)) == list(reversed(chosen))
    assert choose_examples(many, EvalConfig()) == many
