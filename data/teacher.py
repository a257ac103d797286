"""Asks a teacher for the plans of queries, and never for the same one twice.

Reads queries and a planner; appends each answer to `drafts.jsonl` the moment it comes, and each request that brought
none to `failed.jsonl`. A rerun asks only what has no answer: after a kill, with more queries or more samples, after
failures. A failed request is never stored as an answer. One process at a time writes into a directory. Order of work:
all first answers, then all second ones. Not covered: whether plans are right (`verify`).
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import Draft, Planner
from plansmith.contract.errors import InputError, PlansmithError, ServiceError
from plansmith.contract.progress import Progress
from plansmith.contract.records import FinishReason, Query, TeacherDraft
from plansmith.contract.row_writer import RowWriter
from plansmith.contract.store import write_rows
from plansmith.data.asking import Used, ask_all
from plansmith.data.budget import BudgetReachedError, Purse, Spent
from plansmith.data.drafts import DRAFTS, FAILED, Failure, iter_drafts, open_drafts, read_failures, request_key
from plansmith.data.ray_config import NoRayError
from plansmith.data.teacher_config import DEFAULT_CONCURRENCY, TeachConfig

TEACHER_VERSION = 1
"""Raised whenever the same settings would be asked in another way."""


@runtime_checkable
class _Connected(Protocol):
    """A planner with connections that belong to an event loop."""

    async def release(self) -> None: ...


@runtime_checkable
class _Held(Protocol):
    """A planner that can prove that its endpoint decodes under a schema."""

    async def require_constraint(self) -> None: ...


class Question(NamedTuple):
    """One answer that is wanted."""

    key: str
    query: Query
    sample: int


@dataclass(frozen=True, slots=True)
class Taught:
    """What a run of the teacher came to."""

    settings: str
    """As in `TeacherDraft`."""
    wanted: int
    answered: int
    """Wanted answers that are on disk, those of earlier runs included."""
    asked: int
    """Answers that came in this run."""
    failed: int
    """Wanted answers that were asked for in vain; the next run asks again."""
    spent: Spent
    """In all runs with these settings."""
    cost: str
    """As people read it; empty where no price is given."""
    events: dict[str, int]
    """What the service's client counted in this run."""
    stopped: PlansmithError | None = None
    """Why it ended early: a limit of the budget was reached, or the service is gone. For the caller to raise once it
    has told the rest."""


def teach(
    queries: Sequence[Query],
    planner: Planner,
    catalog: Catalog,
    out: Path,
    config: TeachConfig,
    progress: Progress,
    *,
    model: str,
    identity: Mapping[str, Any],
) -> Taught:
    """Ask for every plan that has no answer yet.

    Args:
        queries: what is asked, each text once.
        planner: the teacher; to be sampled its `plan` takes `temperature` and `seed`, as `OpenAIPlanner.plan` does.
        catalog: the workers that plans may call.
        out: the run directory; the caller sees to it that no other process works in it.
        config: samples, temperature, concurrency, budget.
        progress: shows the rate, tokens, cost and time left.
        model: the teacher's name, kept with each answer.
        identity: everything about the teacher that its answers depend on beyond the config (prompt and examples, the
            endpoint's own sampling); with catalog, model and sampling it makes `settings`.

    Raises:
        InputError: queries are not unique, the planner cannot sample or does not decode under a schema, or another
            process writes the files.
        StorageError: an answer could not be written; earlier ones are kept.

    """
    settings = settings_hash(catalog, config, model, identity)
    _require_unique(queries)
    options = _Options.of(planner, config)
    open_drafts(out, settings, progress)
    with RowWriter(out / DRAFTS) as drafts, RowWriter(out / FAILED) as failed:
        stock = _read_stock(out, settings)
        missing = [question for question in wanted(queries, config, settings) if question.key not in stock.keys]
        total = config.samples * len(queries)
        if len(missing) < total:
            progress.note(f"teacher: {total - len(missing)} of {total} answers are there already")
        before = _counts(planner)
        purse = Purse(config.budget, stock.spent, retries=lambda: _counts(planner)["retried"] - before["retried"])
        order = _Order(planner, catalog, config, options, settings, model)
        desk = _Desk(order, drafts, failed, purse, progress, stock.failures)
        stopped = _ask(desk, missing)
    write_rows(out / FAILED, desk.failures.values())
    return Taught(
        settings=settings,
        wanted=total,
        answered=total - len(missing) + desk.answers,
        asked=desk.answers,
        failed=sum(question.key in desk.failures for question in missing),
        spent=purse.spent,
        cost=purse.cost,
        events=dict(sorted((_counts(planner) - before).items())),
        stopped=stopped,
    )


def wanted(queries: Sequence[Query], config: TeachConfig, settings: str) -> Iterator[Question]:
    """Every answer that is wanted: all first ones, then all second ones."""
    for sample in range(config.samples):
        for query in queries:
            yield Question(request_key(settings, query.query, sample), query, sample)


def settings_hash(catalog: Catalog, config: TeachConfig, model: str, identity: Mapping[str, Any]) -> str:
    """Sha256 (64 hex digits) over everything that all answers depend on."""
    seed = config.seed if config.temperature else None
    sampling = [config.temperature, seed, config.constrained]
    parts = [TEACHER_VERSION, catalog.hash, model, dict(identity), sampling]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def sample_seed(seed: int, query: str, sample: int) -> int:
    """Seed of one request, 31 bits, so that every server takes it."""
    digest = hashlib.sha256(f"{seed}\0{sample}\0{query}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:4]) >> 1


class _Options(NamedTuple):
    """What is handed to the planner beside query and catalog."""

    temperature: bool
    seed: bool
    sample: bool
    """Recorded answers are found by their number."""

    @classmethod
    def of(cls, planner: Planner, config: TeachConfig) -> _Options:
        takes = inspect.signature(planner.plan).parameters.keys()
        sampled = {"temperature", "seed"} <= takes
        if not (sampled or "sample" in takes) and (config.samples > 1 or config.temperature):
            raise InputError(
                f"{type(planner).__name__} gives one answer to a query, whatever the seed; several samples or a "
                "temperature above 0 need a teacher that samples (an endpoint)."
            )
        return cls(sampled and config.temperature is not None, sampled and bool(config.temperature), "sample" in takes)


@dataclass(frozen=True)
class _Stock:
    """What earlier runs left."""

    keys: set[str]
    failures: dict[str, Failure]
    spent: Spent


def _read_stock(out: Path, settings: str) -> _Stock:
    keys: set[str] = set()
    spent = Spent()
    for draft in iter_drafts(out, settings):
        keys.add(draft.key)
        spent.requests += 1
        spent.prompt_tokens += draft.prompt_tokens
        spent.completion_tokens += draft.completion_tokens
    failures = {key: row for key, row in read_failures(out, settings).items() if key not in keys}
    spent.requests += sum(row.attempts for row in failures.values())
    return _Stock(keys, failures, spent)


@dataclass(frozen=True)
class _Order:
    """How the teacher is asked."""

    planner: Planner
    catalog: Catalog
    config: TeachConfig
    options: _Options
    settings: str
    model: str

    async def plan(self, question: Question) -> Draft:
        options: dict[str, Any] = {"constrained": self.config.constrained}
        if self.options.temperature:
            options["temperature"] = self.config.temperature
        if self.options.seed:
            options["seed"] = sample_seed(self.config.seed, question.query.query, question.sample)
        if self.options.sample:
            options["sample"] = question.sample
        return await self.planner.plan(question.query.query, self.catalog, **options)


@dataclass
class _Desk:
    """Asks, stores each answer as it comes, and tells the progress."""

    order: _Order
    drafts: RowWriter
    failed_rows: RowWriter
    purse: Purse
    progress: Progress
    failures: dict[str, Failure]
    answers: int = 0
    begun: float = field(default_factory=time.monotonic)

    async def ask(self, job: Question) -> Used:
        draft = await self.order.plan(job)
        if draft.error is not None or draft.finish_reason is FinishReason.ERROR:
            self._fail(job, draft.error or "the answer is empty, and nothing says why")
            return Used(draft.prompt_tokens, draft.completion_tokens)
        self.drafts.put(_row(self.order, job, draft))
        self.failures.pop(job.key, None)
        self.answers += 1
        self._tell()
        return Used(draft.prompt_tokens, draft.completion_tokens)

    def failed(self, job: Question, error: ServiceError) -> None:
        self._fail(job, str(error))

    def _fail(self, job: Question, error: str) -> None:
        earlier = self.failures.get(job.key)
        row = Failure(
            key=job.key,
            settings=self.order.settings,
            id=job.query.id,
            query=job.query.query,
            sample=job.sample,
            error=error,
            attempts=earlier.attempts + 1 if earlier is not None else 1,
        )
        self.failed_rows.put(row)
        self.failures[job.key] = row
        self._tell()

    def _tell(self) -> None:
        values: dict[str, float | str] = {
            "answers/s": self.answers / max(time.monotonic() - self.begun, 1e-9),
            "tokens": str(self.purse.spent.tokens),
        }
        if self.purse.cost:
            values["cost"] = self.purse.cost
        if self.failures:
            values["failed"] = str(len(self.failures))
        self.progress.advance(1, **values)


def _row(order: _Order, job: Question, draft: Draft) -> TeacherDraft:
    return TeacherDraft(
        key=job.key,
        settings=order.settings,
        id=job.query.id,
        query=job.query.query,
        sample=job.sample,
        model=order.model,
        text=draft.text,
        finish_reason=draft.finish_reason,
        prompt_tokens=draft.prompt_tokens,
        completion_tokens=draft.completion_tokens,
        seconds=round(draft.seconds, 4),
        logprobs=None if draft.logprobs is None else tuple((one.token, one.logprob, one.top) for one in draft.logprobs),
    )


def _ask(desk: _Desk, missing: Sequence[Question]) -> PlansmithError | None:
    """Ask for what is missing; returns the error that ended it early, where only the rest is lost by it."""
    if not missing:
        return None
    desk.progress.start("plans by the teacher", len(missing))
    try:
        asyncio.run(_ask_connected(desk, missing))
    except (BudgetReachedError, ServiceError, NoRayError) as error:
        return error
    finally:
        desk.progress.finish()
    return None


async def _ask_connected(desk: _Desk, missing: Sequence[Question]) -> None:
    planner, config = desk.order.planner, desk.order.config
    try:
        if config.constrained and isinstance(planner, _Held):
            await planner.require_constraint()
        await ask_all(
            missing,
            desk,
            desk.purse,
            concurrency=config.concurrency or DEFAULT_CONCURRENCY,
            give_up_after=config.give_up_after,
        )
    finally:
        if isinstance(planner, _Connected):
            await planner.release()


def _counts(planner: Planner) -> Counter[str]:
    """What a planner has counted about its service so far, where it counts anything."""
    return Counter(cast("dict[str, int]", getattr(planner, "counts", {})))


def _require_unique(queries: Sequence[Query]) -> None:
    for what, values in (("text", [row.query for row in queries]), ("id", [row.id for row in queries])):
        twice = [value for value, count in Counter(values).items() if count > 1]
        if twice:
            raise InputError(
                f"queries must be unique, but the {what} {twice[0]!r:.80} and {len(twice) - 1} others stand more than "
                "once. Run plansmith data queries, which drops the repeated ones."
            )
