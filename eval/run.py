"""Asks one system for a plan of every test item and keeps each answer.

Reads examples, appends `Run` rows to `runs.jsonl` (one system after another in one file), and resumes: only pairs of
system and item without an answer are asked. A row with finish reason `error` is no answer: its item is asked again.
A service that cannot be reached makes such a row; any other error of a planner is a fault of the set-up and ends the
run, with earlier rows kept. Whether the rows belong to this model and data is the caller's to know (inputs of the run
directory); a row whose query differs from the example's is refused here. Not covered: several samples an item.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import Draft, Planner
from plansmith.contract.errors import InputError, PlansmithError, ServiceError
from plansmith.contract.progress import Progress
from plansmith.contract.records import Example, FinishReason, Run
from plansmith.contract.store import append_row, read_rows
from plansmith.eval.config import EvalConfig

Pair = tuple[str, str]
"""System and item id."""


@runtime_checkable
class BatchPlanner(Protocol):
    """A planner that takes many queries at once."""

    def plan_batch(self, queries: Sequence[str], catalog: Catalog, *, constrained: bool) -> list[Draft]:
        """One draft for each query, in the order of the queries."""
        ...


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
) -> list[Run]:
    """Ask a system what is missing and return its rows for all examples, in their order.

    Args:
        planner: asked through `plan_batch` where it has that, else through `plan` with bounded concurrency.
        system: name of the rows, e.g. `tuned/grammar`.
        examples: test items with unique ids.
        catalog: the workers that may be called.
        runs: the JSONL file to append to; rows of other systems in it are left alone.
        constrained: decode under the plan grammar.
        progress: shows the rate and, through its total, the time left.
        config: batch size and concurrency.

    Raises:
        InputError: ids are not unique, or the file holds an answer of this system to another query of the same id.
        StorageError: a row could not be written; earlier rows are kept.

    """
    config = config or EvalConfig()
    _require_unique_ids(examples)
    done = _answered(runs, system, examples)
    missing = [example for example in examples if example.id not in done]
    if len(missing) < len(examples):
        progress.note(f"{system}: {len(examples) - len(missing)} of {len(examples)} items are answered already")
    rows = done | _ask(planner, system, missing, catalog, runs, constrained, progress, config)
    failed = sum(row.finish_reason is FinishReason.ERROR for row in rows.values())
    if failed:
        progress.note(f"{system}: {failed} requests failed and count as misses; run again to ask only them")
    return [rows[example.id] for example in examples]


def latest_rows(rows: Iterable[Run]) -> dict[Pair, Run]:
    """One row for each system and item: the last answer, else the last failed request."""
    latest: dict[Pair, Run] = {}
    for row in rows:
        earlier = latest.get((row.system, row.id))
        failed_again = row.finish_reason is FinishReason.ERROR and earlier is not None
        if not failed_again or (earlier is not None and earlier.finish_reason is FinishReason.ERROR):
            latest[row.system, row.id] = row
    return latest


def _answered(runs: Path, system: str, examples: Sequence[Example]) -> dict[str, Run]:
    """The answers that the file holds for these examples."""
    if not runs.exists():
        return {}
    queries = {example.id: example.query for example in examples}
    found: dict[str, Run] = {}
    for (row_system, item), row in latest_rows(read_rows(runs, Run)).items():
        if row_system != system or item not in queries or row.finish_reason is FinishReason.ERROR:
            continue
        if row.query != queries[item]:
            raise InputError(
                f"{str(runs)!r} holds an answer of {system!r} to item {item!r} for the query {row.query!r:.80}, but "
                f"the item's query is {queries[item]!r:.80}. The file was made with other data; move it away."
            )
        found[item] = row
    return found


def _ask(
    planner: Planner | BatchPlanner,
    system: str,
    missing: Sequence[Example],
    catalog: Catalog,
    runs: Path,
    constrained: bool,
    progress: Progress,
    config: EvalConfig,
) -> dict[str, Run]:
    """Ask for the missing items and store each answer as it arrives."""
    if not missing:
        return {}
    rows: dict[str, Run] = {}
    failed = 0
    begun = time.monotonic()

    def keep(example: Example, draft: Draft) -> None:
        nonlocal failed
        row = _row(example, system, draft)
        append_row(runs, row)
        rows[example.id] = row
        failed += row.finish_reason is FinishReason.ERROR
        speed = len(rows) / max(time.monotonic() - begun, 1e-9)
        progress.advance(1, **{"plans/s": speed}, **({"failed": str(failed)} if failed else {}))

    progress.start(f"plans by {system}", len(missing))
    try:
        if isinstance(planner, BatchPlanner):
            for example, draft in _batches(planner, missing, catalog, constrained, config.batch_size):
                keep(example, draft)
        else:
            asyncio.run(_ask_each(planner, missing, catalog, constrained, config.concurrency, keep))
    finally:
        progress.finish()
    return rows


def _batches(
    planner: BatchPlanner, examples: Sequence[Example], catalog: Catalog, constrained: bool, size: int
) -> Iterator[tuple[Example, Draft]]:
    for start in range(0, len(examples), size):
        batch = examples[start : start + size]
        drafts = planner.plan_batch([example.query for example in batch], catalog, constrained=constrained)
        if [draft.query for draft in drafts] != [example.query for example in batch]:
            raise PlansmithError(
                f"the planner gave {len(drafts)} drafts for {len(batch)} queries, or gave them in another order; "
                "expected one for each query, in order."
            )
        yield from zip(batch, drafts, strict=True)


async def _ask_each(
    planner: Planner,
    examples: Sequence[Example],
    catalog: Catalog,
    constrained: bool,
    concurrency: int,
    keep: Callable[[Example, Draft], None],
) -> None:
    """At most `concurrency` requests under way; the rest is not started, so that a stop abandons little."""
    waiting = iter(examples)
    under_way: set[asyncio.Task[tuple[Example, Draft]]] = set()
    try:
        while True:
            for example in waiting:
                under_way.add(asyncio.create_task(_one(planner, example, catalog, constrained)))
                if len(under_way) >= concurrency:
                    break
            if not under_way:
                return
            finished, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(finished, key=lambda task: task.exception() is not None):
                keep(*task.result())
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def _one(planner: Planner, example: Example, catalog: Catalog, constrained: bool) -> tuple[Example, Draft]:
    begun = time.monotonic()
    try:
        return example, await planner.plan(example.query, catalog, constrained=constrained)
    except ServiceError as error:
        return example, _failed_draft(example.query, str(error), time.monotonic() - begun, catalog)


def _failed_draft(query: str, reason: str, seconds: float, catalog: Catalog) -> Draft:
    from plansmith.contract.check import check_plan

    return Draft(query, "", check_plan("", catalog), 0, 0, seconds, FinishReason.ERROR, reason)


def _row(example: Example, system: str, draft: Draft) -> Run:
    failed = draft.error is not None or draft.finish_reason is FinishReason.ERROR
    return Run(
        id=example.id,
        part=example.part,
        system=system,
        query=example.query,
        text=draft.text,
        prompt_tokens=draft.prompt_tokens,
        completion_tokens=draft.completion_tokens,
        seconds=draft.seconds,
        finish_reason=FinishReason.ERROR if failed else draft.finish_reason,
        error=draft.error,
    )


def _require_unique_ids(examples: Sequence[Example]) -> None:
    twice = [item for item, count in Counter(example.id for example in examples).items() if count > 1]
    if twice:
        raise InputError(f"item ids must be unique, but {twice[0]!r} and {len(twice) - 1} others stand more than once.")
