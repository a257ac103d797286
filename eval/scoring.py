"""Scores stored answers: run rows and suites in, one scored item for each system, item and sample out.

Every item of every suite is an item for every system that has a row in it: one without an answer is a miss. Reads rows
and suites, gives `ScoredItem` rows; pure. What the numbers mean is written in `metrics.py`. Not covered: which system
was asked which suites (a system without any row in a suite was not asked it, and is not scored there).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, cast

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import check_plan
from plansmith.contract.findings import Severity
from plansmith.contract.parse import parse_plan_text
from plansmith.contract.plan import Json, Plan
from plansmith.contract.records import Example, FinishReason, Run
from plansmith.eval.items import ScoredItem
from plansmith.eval.metrics import F1S, MEANS, RATES, is_well_shaped, score_item
from plansmith.eval.suites import Suite


class Key(NamedTuple):
    """What an answer is to: one system, one item, one of its samples."""

    system: str
    id: str
    sample: int


class Scored(NamedTuple):
    """Scored items, and the rows that belong to no item."""

    items: list[ScoredItem]
    left_aside: int
    """Run rows whose item is in no suite."""


def score_runs(runs: Iterable[Run], suites: Sequence[Suite]) -> Scored:
    """Score every answer, system by system in the order of the suites and their examples.

    Args:
        runs: rows of all systems; of several rows for one item the last answer counts.
        suites: items with the catalog that each was asked with; ids are unique over all suites.

    """
    rows = latest_rows(runs)
    items = {example.id: (suite, example) for suite in suites for example in suite.examples}
    asked = {(key.system, items[key.id][0].name) for key in rows if key.id in items}
    samples = _samples(rows)
    scored = [
        _scored(key, example, rows.get(key), suite.catalog)
        for system in dict.fromkeys(key.system for key in rows)
        for suite in suites
        if (system, suite.name) in asked
        for example in suite.examples
        for key in (Key(system, example.id, sample) for sample in range(samples[system]))
    ]
    return Scored(scored, sum(key.id not in items for key in rows))


def latest_rows(rows: Iterable[Run]) -> dict[Key, Run]:
    """One row for each system, item and sample: the last answer, else the last failed request."""
    latest: dict[Key, Run] = {}
    for row in rows:
        key = Key(row.system, row.id, row.sample)
        earlier = latest.get(key)
        failed = row.finish_reason is FinishReason.ERROR
        if earlier is None or not failed or earlier.finish_reason is FinishReason.ERROR:
            latest[key] = row
    return latest


def _samples(rows: Iterable[Key]) -> dict[str, int]:
    """How many samples an item each system gave."""
    most: dict[str, int] = {}
    for key in rows:
        most[key.system] = max(most.get(key.system, 1), key.sample + 1)
    return most


def _scored(key: Key, example: Example, row: Run | None, catalog: Catalog) -> ScoredItem:
    text = row.text if row is not None and row.finish_reason is not FinishReason.ERROR else None
    score = score_item(
        text, [example.plan], catalog, query=example.query, results=example.results, allowed=example.allowed
    )
    return ScoredItem(
        system=key.system,
        id=key.id,
        part=example.part,
        sample=key.sample,
        query=example.query,
        references=(Plan.from_json(example.plan).canonical(catalog),),
        candidate=text,
        plan=canonical_text(text, catalog),
        fault=score.fault,
        finding=_finding(row, catalog),
        finish_reason=row.finish_reason if row is not None else None,
        prompt_tokens=row.prompt_tokens if row is not None else 0,
        completion_tokens=row.completion_tokens if row is not None else 0,
        seconds=row.seconds if row is not None else 0.0,
        outcomes={name: getattr(score, name) for name in (*RATES, *MEANS)},
        counts={name: getattr(score, name) for name in F1S},
        invented=score.invented,
    )


def canonical_text(text: str | None, catalog: Catalog) -> str | None:
    """The answer as canonical JSON text, where it has the shape of a plan."""
    if text is None or not is_well_shaped(text, catalog):
        return None
    return Plan.from_json(cast("list[Json]", parse_plan_text(text).value)).canonical(catalog)


def _finding(row: Run | None, catalog: Catalog) -> str | None:
    if row is None:
        return "there is no row for this item"
    if row.finish_reason is FinishReason.ERROR:
        return f"the request failed: {row.error}"
    errors = [f for f in check_plan(row.text, catalog).findings if f.severity is Severity.ERROR]
    cut = "; the token limit cut the text" if row.finish_reason is FinishReason.LENGTH else ""
    return f"{errors[0].fault.value}: {errors[0].message}{cut}" if errors else cut.lstrip("; ") or None


def first_samples(items: Iterable[ScoredItem]) -> Iterator[ScoredItem]:
    """The items that rates are taken over: further samples of an item serve self-agreement only."""
    return (item for item in items if item.sample == 0)
