"""Queries that a teacher invents from the catalog, in the mix that is wanted.

Asks a `TextModel` in rounds: first for everything, then for what was missing because queries were repeated or not
usable. Every answer is appended to `grown.jsonl` as it comes, and a request whose answer is there is not made again.
What the queries need is what was asked for; what their plans are, `mix.py` compares with it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import TextModel
from plansmith.contract.errors import PlansmithError, ServiceError
from plansmith.contract.progress import Progress
from plansmith.contract.records import FinishReason, Query, Record, Reject, Wanted
from plansmith.contract.row_writer import RowWriter
from plansmith.contract.store import iter_rows
from plansmith.data.asking import Used, ask_all
from plansmith.data.budget import BudgetReachedError, Purse, Spent
from plansmith.data.query_sources.base import DUPLICATE, Found, rejected, same_text, text_id
from plansmith.data.query_sources.growth_prompt import (
    ANSWER_SCHEMA,
    GROWTH_VERSION,
    growth_fault,
    growth_messages,
    read_growth,
)
from plansmith.data.query_sources.slots import Cell, Chooser, Slot, share_out
from plansmith.data.teacher_config import DEFAULT_CONCURRENCY, GrownQueries

GROWN = "grown.jsonl"
SOURCE = "grown"
GIVE_UP_AFTER = 20


@runtime_checkable
class _Connected(Protocol):
    """A model with connections that belong to an event loop."""

    async def release(self) -> None: ...


class GrowthAnswer(Record):
    """One answer of the teacher, as it came."""

    version: Literal[1] = 1
    key: str
    """Sha256 over the whole request: conversation, model, sampling."""
    workers: tuple[str, ...]
    language: str
    model: str
    text: str
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    seconds: float


class Grower(NamedTuple):
    """Who invents, and everything about it that its answers depend on."""

    model: TextModel
    name: str
    identity: Mapping[str, Any]


class _Request(NamedTuple):
    slot: Slot
    key: str
    seed: int


@dataclass
class _Growth:
    """One growing, over all its rounds."""

    config: GrownQueries
    catalog: Catalog
    grower: Grower
    out: Path
    seed: int
    progress: Progress
    answers: dict[str, GrowthAnswer]
    purse: Purse
    taken: set[str]
    """Queries that are there already, as `same_text` gives them."""
    rows: list[Query | Reject] = field(default_factory=list[Query | Reject])
    notes: Counter[str] = field(default_factory=Counter[str])
    lacking: Counter[Cell] = field(default_factory=Counter[Cell])

    def request(self, slot: Slot) -> _Request:
        """What is asked for a slot; the same slot gives the same key in every run."""
        digest = hashlib.sha256(f"{self.seed}/{slot.round}/{slot.number}".encode()).digest()
        seed = int.from_bytes(digest[:4]) >> 1
        parts = [
            *(GROWTH_VERSION, growth_messages(slot, self.catalog), self.grower.name, dict(self.grower.identity)),
            *(self.config.temperature, self.config.max_tokens, seed),
        ]
        text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
        return _Request(slot, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(), seed)

    def accept(self, slot: Slot, answer: GrowthAnswer) -> int:
        """Take what is usable of an answer; how many queries that was."""
        read = read_growth(answer.text) if answer.finish_reason is FinishReason.STOP else None
        if read is None:
            what = "cut_off_answers" if answer.finish_reason is FinishReason.LENGTH else "unreadable_answers"
            self.notes[what] += 1
            return 0
        self.notes["repaired_answers"] += read.repaired
        before = len(self.rows)
        for place, text in enumerate(read.queries[: slot.size]):
            self.rows.append(self._row(slot, answer, place, text))
        self.notes["queries_too_many"] += max(0, len(read.queries) - slot.size)
        return sum(isinstance(row, Query) for row in self.rows[before:])

    def _row(self, slot: Slot, answer: GrowthAnswer, place: int, text: Any) -> Query | Reject:
        fault = growth_fault(text, slot, self.catalog, self.config.max_characters)
        if fault is None and same_text(text) in self.taken:
            fault = DUPLICATE, "the same query is there already"
        if fault is not None:
            shown = text if isinstance(text, str) else json.dumps(text)
            row_id = f"{SOURCE}-{answer.key[:12]}-{place}"
            return rejected(row_id=row_id, query=shown, source=SOURCE, reason=fault[0], detail=fault[1])
        query = text.strip()
        self.taken.add(same_text(query))
        return Query(
            id=text_id(SOURCE, query),
            query=query,
            source=SOURCE,
            language=slot.cell.language,
            wanted=Wanted(workers=slot.workers),
        )


def grow(
    config: GrownQueries,
    catalog: Catalog,
    grower: Grower,
    out: Path,
    progress: Progress,
    *,
    seed: int,
    taken: set[str],
) -> Found:
    """Grow queries, as far as they are not grown yet.

    Args:
        config: how many, in which mix.
        catalog: the workers that the queries are for.
        grower: the teacher.
        out: the run directory, with the answers so far; the caller sees to it that no other process works in it.
        progress: told of every request.
        seed: of every choice and of the teacher's sampling.
        taken: queries that other sources have, as `same_text` gives them; such ones are not grown again.

    Raises:
        InputError: the catalog and the mix do not go together, or another process writes the file.
        StorageError: an answer could not be written; earlier ones are kept.

    """
    chooser = Chooser(catalog, config.mix, config.fits, seed)
    answers = _read(out / GROWN)
    spent = Spent(
        requests=len(answers),
        prompt_tokens=sum(answer.prompt_tokens for answer in answers.values()),
        completion_tokens=sum(answer.completion_tokens for answer in answers.values()),
    )
    before = _counts(grower.model)
    purse = Purse(config.budget, spent, retries=lambda: _counts(grower.model)["retried"] - before["retried"])
    growth = _Growth(config, catalog, grower, out, seed, progress, answers, purse, set(taken))
    stopped = _rounds(growth, chooser)
    growth.notes += chooser.notes
    growth.notes["queries_not_grown"] = sum(growth.lacking.values())
    notes = {name: count for name, count in sorted(growth.notes.items()) if count}
    return Found(SOURCE, "", growth.rows, notes=notes, stopped=stopped)


def _read(path: Path) -> dict[str, GrowthAnswer]:
    return {row.key: row for row in iter_rows(path, GrowthAnswer)} if path.exists() else {}


def _rounds(growth: _Growth, chooser: Chooser) -> PlansmithError | None:
    """Ask, take what is usable, ask for what is missing; returns the error that ended it early."""
    growth.lacking = Counter(share_out(growth.config.count, growth.config.mix))
    stopped: PlansmithError | None = None
    for number in range(growth.config.rounds):
        slots = chooser.slots(growth.lacking, per_request=growth.config.per_request, number=number)
        requests = [growth.request(slot) for slot in slots]
        stopped = _ask(growth, [request for request in requests if request.key not in growth.answers])
        lacking: Counter[Cell] = Counter()
        for slot, key, _ in requests:
            answer = growth.answers.get(key)
            taken = growth.accept(slot, answer) if answer is not None else 0
            growth.notes["requests_without_answer"] += answer is None
            lacking[slot.cell] += slot.size - taken
        growth.lacking = +lacking
        if stopped is not None or not growth.lacking:
            break
    return stopped


def _ask(growth: _Growth, requests: Sequence[_Request]) -> PlansmithError | None:
    if not requests:
        return None
    growth.progress.start("requests for invented queries", len(requests))
    try:
        with RowWriter(growth.out / GROWN) as writer:
            asyncio.run(_ask_connected(_Desk(growth, writer), requests))
    except (BudgetReachedError, ServiceError) as error:
        return error
    finally:
        growth.progress.finish()
    return None


@dataclass
class _Desk:
    """Asks, and stores each answer as it comes."""

    growth: _Growth
    writer: RowWriter
    failures: int = 0

    async def ask(self, job: _Request) -> Used:
        config, growth = self.growth.config, self.growth
        text = await growth.grower.model.write(
            growth_messages(job.slot, growth.catalog),
            temperature=config.temperature,
            seed=job.seed if config.temperature else None,
            max_tokens=config.max_tokens,
            schema=ANSWER_SCHEMA,
        )
        used = Used(text.prompt_tokens, text.completion_tokens)
        if text.error is not None or text.finish_reason is FinishReason.ERROR:
            self._tell(failed=True)
            return used
        row = GrowthAnswer(
            key=job.key,
            workers=job.slot.workers,
            language=job.slot.cell.language,
            model=growth.grower.name,
            text=text.text,
            finish_reason=text.finish_reason,
            prompt_tokens=text.prompt_tokens,
            completion_tokens=text.completion_tokens,
            seconds=round(text.seconds, 4),
        )
        self.writer.put(row)
        growth.answers[job.key] = row
        self._tell()
        return used

    def failed(self, job: _Request, error: ServiceError) -> None:
        self._tell(failed=True)

    def _tell(self, *, failed: bool = False) -> None:
        self.failures += failed
        purse = self.growth.purse
        values: dict[str, float | str] = {"tokens": str(purse.spent.tokens)}
        if purse.cost:
            values["cost"] = purse.cost
        if self.failures:
            values["failed"] = str(self.failures)
        self.growth.progress.advance(1, **values)


async def _ask_connected(desk: _Desk, requests: Sequence[_Request]) -> None:
    growth = desk.growth
    try:
        await ask_all(
            requests,
            desk,
            growth.purse,
            concurrency=growth.config.concurrency or DEFAULT_CONCURRENCY,
            give_up_after=GIVE_UP_AFTER,
        )
    finally:
        if isinstance(growth.grower.model, _Connected):
            await growth.grower.model.release()


def _counts(model: TextModel) -> Counter[str]:
    return Counter(getattr(model, "counts", {}))
