"""Asks one system for plans of the items of one catalog and keeps each answer.

Reads examples, appends `Run` rows to `runs.jsonl` (all systems and catalogs in one file, one writer), and resumes: only
what has no answer yet is asked, by system, item and sample. A row with finish reason `error` is no answer: its item is
asked again. A service that does not answer makes such a row, and ends the run once it has not answered many times
running; any other error of a planner is a fault of the set-up and ends the run at once. Earlier rows are kept in both
cases. Whether the rows belong to this model and data is the caller's to know (inputs of the run directory); a row whose
query differs from the example's is refused here.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import Draft, Planner
from plansmith.contract.errors import InputError, PlansmithError, ServiceError
from plansmith.contract.progress import Progress
from plansmith.contract.records import Example, FinishReason, Run
from plansmith.contract.row_writer import RowWriter
from plansmith.contract.store import iter_rows
from plansmith.eval.config import EvalConfig
from plansmith.eval.pace import Pace

GIVE_UP_AFTER = 20
"""Requests that may fail one after the other, each after its own retries, before the service counts as gone."""


@runtime_checkable
class BatchPlanner(Protocol):
    """A planner that takes many queries at once. Those that sample also take `temperature` and `seeds`."""

    def plan_batch(self, queries: Sequence[str], catalog: Catalog, *, constrained: bool) -> list[Draft]:
        """One draft for each query, in the order of the queries."""
        ...


@runtime_checkable
class _Connected(Protocol):
    """A planner with connections that belong to an event loop."""

    async def release(self) -> None: ...


class Meter(Protocol):
    """Is told what asking took; `plansmith.eval.measure.Measurement` is one."""

    def add(self, answers: int, seconds: float) -> None: ...


class Question(NamedTuple):
    """One answer that is wanted."""

    example: Example
    sample: int


@dataclass(frozen=True)
class Order:
    """How a system is asked."""

    system: str
    catalog: Catalog
    constrained: bool
    temperature: float | None
    """None: the planner's own."""
    seed: int | None
    """None: the planner is not told any, since one answer without sampling is wanted."""
    numbered: bool
    """Whether the planner is told which sample is wanted, instead of a seed."""
    config: EvalConfig

    def seed_of(self, question: Question) -> int:
        return item_seed(self.seed or 0, question.example.id, question.sample)


def choose_examples(examples: Sequence[Example], config: EvalConfig) -> list[Example]:
    """At most `limit_per_part` items of each part, the same ones whatever else the file holds, in the file's order."""
    if config.limit_per_part is None:
        return list(examples)
    ranked = sorted(examples, key=lambda example: hashlib.sha256(example.id.encode()).digest())
    taken: Counter[str] = Counter()
    chosen: set[str] = set()
    for example in ranked:
        taken[example.part] += 1
        if taken[example.part] <= config.limit_per_part:
            chosen.add(example.id)
    return [example for example in examples if example.id in chosen]


def run_system(
    planner: Planner | BatchPlanner,
    system: str,
    examples: Sequence[Example],
    catalog: Catalog,
    runs: Path,
    *,
    constrained: bool,
    progress: Progress,
    config: EvalConfig | None = None,
    samples: int = 1,
    temperature: float | None = None,
    seed: int = 0,
    meter: Meter | None = None,
) -> list[Run]:
    """Ask a system what is missing and return its rows: for each example in order, its samples in order.

    Args:
        planner: asked through `plan_batch` where it has that, else through `plan` with bounded concurrency.
        system: name of the rows, e.g. `tuned/grammar`.
        examples: test items with unique ids.
        catalog: the workers that may be called.
        runs: the JSONL file to append to; rows of other systems and items in it are left alone.
        constrained: decode under the plan grammar.
        progress: shows the rate, the time left, tokens and failed requests.
        config: batch size and concurrency.
        samples: answers wanted for each item; all first ones are asked before any second one.
        temperature: handed to the planner; None leaves its own.
        seed: with several samples or a temperature above 0, each request gets a seed made from this, the item's id and
            the sample. A planner of recorded answers is told the sample instead.
        meter: is told how many answers came in how many seconds, also when the run ends early.

    Raises:
        InputError: ids are not unique, several samples are wanted without sampling, or the file holds an answer of this
            system to another query of the same id.
        ServiceError: the last `GIVE_UP_AFTER` requests all failed.
        StorageError: a row could not be written; earlier rows are kept.

    """
    _require_unique_ids(examples)
    sampled = samples > 1 or bool(temperature)
    numbered = _takes(planner, "sample")
    if sampled and not numbered:
        _require_sampling(planner, system, samples, temperature)
    order = Order(
        system=system,
        catalog=catalog,
        constrained=constrained,
        temperature=temperature,
        seed=seed if sampled and not numbered else None,
        numbered=numbered,
        config=config or EvalConfig(),
    )
    wanted = [Question(example, sample) for sample in range(samples) for example in examples]
    done = _answered(runs, system, examples, samples)
    missing = [question for question in wanted if _key(question) not in done]
    if len(missing) < len(wanted):
        progress.note(f"{system}: {len(wanted) - len(missing)} of {len(wanted)} items are answered already")
    rows = done | _ask(planner, order, missing, runs, progress, meter)
    failed = sum(row.finish_reason is FinishReason.ERROR for row in rows.values())
    if failed:
        progress.note(f"{system}: {failed} requests failed and count as misses; run again to ask only them")
    return [rows[example.id, sample] for example in examples for sample in range(samples)]


def item_seed(seed: int, item: str, sample: int) -> int:
    """Seed of one request, 31 bits, so that every server takes it."""
    digest = hashlib.sha256(f"{seed}\0{sample}\0{item}".encode()).digest()
    return int.from_bytes(digest[:4]) >> 1


def _key(question: Question) -> tuple[str, int]:
    return question.example.id, question.sample


def _answered(runs: Path, system: str, examples: Sequence[Example], samples: int) -> dict[tuple[str, int], Run]:
    """The answers that the file holds for these examples, by item and sample; the last one counts."""
    if not runs.exists():
        return {}
    queries = {example.id: example.query for example in examples}
    found: dict[tuple[str, int], Run] = {}
    for row in iter_rows(runs, Run):
        if row.system != system or row.id not in queries or row.finish_reason is FinishReason.ERROR:
            continue
        if row.query != queries[row.id]:
            raise InputError(
                f"{str(runs)!r} holds an answer of {system!r} to item {row.id!r} for the query {row.query!r:.80}, but "
                f"the item's query is {queries[row.id]!r:.80}. The file was made with other data; move it away."
            )
        if row.sample < samples:
            found[row.id, row.sample] = row
    return found


@dataclass
class _Keeper:
    """Stores answers as they come, and tells the progress."""

    order: Order
    writer: RowWriter
    progress: Progress
    pace: Pace
    rows: dict[tuple[str, int], Run] = field(default_factory=dict[tuple[str, int], Run])
    failed: int = 0
    tokens: int = 0

    def store(self, question: Question, draft: Draft) -> None:
        row = _row(question, self.order.system, draft)
        self.writer.put(row)
        self.rows[_key(question)] = row
        self.failed += row.finish_reason is FinishReason.ERROR
        self.tokens += row.completion_tokens

    def tell(self, answers: int, *, under_way: int = 0) -> None:
        self.pace.add(answers, under_way=under_way)
        values: dict[str, float | str] = {"plans/s": self.pace.rate, "tokens": str(self.tokens)}
        if self.failed:
            values["failed"] = str(self.failed)
        self.progress.advance(answers, **values, time_left=self.pace.time_left)


def _ask(
    planner: Planner | BatchPlanner,
    order: Order,
    missing: Sequence[Question],
    runs: Path,
    progress: Progress,
    meter: Meter | None,
) -> dict[tuple[str, int], Run]:
    """Ask for what is missing and store each answer as it arrives."""
    if not missing:
        return {}
    counted = Counter(_counts(planner))
    with RowWriter(runs) as writer:
        progress.start(f"plans by {order.system}", len(missing))
        keeper = _Keeper(order, writer, progress, Pace(len(missing)))
        begun = time.monotonic()
        try:
            if isinstance(planner, BatchPlanner):
                _ask_batches(planner, order, missing, keeper)
            else:
                asyncio.run(_ask_each(planner, order, missing, keeper))
        finally:
            if meter is not None:
                meter.add(len(keeper.rows) - keeper.failed, time.monotonic() - begun)
            progress.finish()
            _tell_counts(order.system, Counter(_counts(planner)) - counted, progress)
    return keeper.rows


def _tell_counts(system: str, counts: Counter[str], progress: Progress) -> None:
    if counts:
        told = ", ".join(f"{str(name).replace('_', ' ')} {count}" for name, count in counts.items())
        progress.note(f"{system}: {told}")


def _ask_batches(planner: BatchPlanner, order: Order, questions: Sequence[Question], keeper: _Keeper) -> None:
    size = order.config.batch_size
    for start in range(0, len(questions), size):
        batch = questions[start : start + size]
        options: dict[str, Any] = {"constrained": order.constrained}
        if order.seed is not None:
            options |= {"seeds": [order.seed_of(question) for question in batch]}
            options |= {} if order.temperature is None else {"temperature": order.temperature}
        drafts = planner.plan_batch([question.example.query for question in batch], order.catalog, **options)
        if [draft.query for draft in drafts] != [question.example.query for question in batch]:
            raise PlansmithError(
                f"the planner gave {len(drafts)} drafts for {len(batch)} queries, or gave them in another order; "
                "expected one for each query, in order."
            )
        for question, draft in zip(batch, drafts, strict=True):
            keeper.store(question, draft)
        keeper.tell(len(batch))


async def _ask_each(planner: Planner, order: Order, questions: Sequence[Question], keeper: _Keeper) -> None:
    """As many tasks as requests may be under way share the questions; the first error ends them all."""
    waiting = iter(questions)
    running_failures = 0
    under_way = 0

    async def work() -> None:
        nonlocal running_failures, under_way
        for question in waiting:
            under_way += 1
            try:
                draft, failure = await _one(planner, order, question)
            finally:
                under_way -= 1
            keeper.store(question, draft)
            keeper.tell(1, under_way=under_way)
            running_failures = running_failures + 1 if failure else 0
            if failure is not None and running_failures >= GIVE_UP_AFTER:
                raise ServiceError(
                    f"the last {running_failures} requests all failed, so the rest is not asked. Answers so far are "
                    f"kept; run again to go on. The last one: {failure}"
                )

    tasks = [asyncio.create_task(work()) for _ in range(min(order.config.concurrency, len(questions)))]
    try:
        finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in finished:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(planner, _Connected):
            await planner.release()


async def _one(planner: Planner, order: Order, question: Question) -> tuple[Draft, ServiceError | None]:
    """An answer, or a draft that says why there is none, with the error."""
    begun = time.monotonic()
    query = question.example.query
    options: dict[str, Any] = {"constrained": order.constrained}
    if order.numbered:
        options |= {"sample": question.sample}
    if order.seed is not None:
        options |= {"seed": order.seed_of(question)}
        options |= {} if order.temperature is None else {"temperature": order.temperature}
    try:
        return await planner.plan(query, order.catalog, **options), None
    except ServiceError as error:
        return _failed_draft(query, str(error), time.monotonic() - begun, order.catalog), error


def _failed_draft(query: str, reason: str, seconds: float, catalog: Catalog) -> Draft:
    from plansmith.contract.check import check_plan

    return Draft(query, "", check_plan("", catalog), 0, 0, seconds, FinishReason.ERROR, reason)


def _row(question: Question, system: str, draft: Draft) -> Run:
    failed = draft.error is not None or draft.finish_reason is FinishReason.ERROR
    return Run(
        id=question.example.id,
        part=question.example.part,
        system=system,
        query=question.example.query,
        sample=question.sample,
        text=draft.text,
        prompt_tokens=draft.prompt_tokens,
        completion_tokens=draft.completion_tokens,
        seconds=draft.seconds,
        finish_reason=FinishReason.ERROR if failed else draft.finish_reason,
        error=draft.error,
    )


def _counts(planner: Planner | BatchPlanner) -> dict[str, int]:
    """What a planner counts about its service, where it counts anything."""
    return cast("dict[str, int]", getattr(planner, "counts", {}))


def _require_unique_ids(examples: Sequence[Example]) -> None:
    twice = [item for item, count in Counter(example.id for example in examples).items() if count > 1]
    if twice:
        raise InputError(f"item ids must be unique, but {twice[0]!r} and {len(twice) - 1} others stand more than once.")


def _takes(planner: Planner | BatchPlanner, *names: str) -> bool:
    """Whether a planner is told these things with a query."""
    method: Callable[..., Any] = planner.plan_batch if isinstance(planner, BatchPlanner) else planner.plan
    return set(names) <= inspect.signature(method).parameters.keys()


def _require_sampling(planner: Planner | BatchPlanner, system: str, samples: int, temperature: float | None) -> None:
    if samples > 1 and temperature == 0:
        raise InputError(f"{system}: {samples} samples at temperature 0 are one answer several times; raise it.")
    if not _takes(planner, "temperature", "seeds" if isinstance(planner, BatchPlanner) else "seed"):
        raise InputError(
            f"{type(planner).__name__} gives one answer to a query, whatever the seed; several samples or a "
            "temperature above 0 need a planner that samples (the local engine, an endpoint)."
        )
