"""What a teacher's answers came to: outcomes, mix and cost, as they stand in `teach.json` and on the terminal.

Reads `drafts.jsonl` one row at a time; checks each plan against the catalog, as a preview of what verification drops.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from plansmith.contract.progress import Progress
from plansmith.contract.records import Candidate, PlanJson, Record
from plansmith.contract.store import file_hash, write_text
from plansmith.data.drafts import DRAFTS, OutcomeCounter, Outcomes, iter_drafts, read_draft, static_fault
from plansmith.data.mix import MixRow, compare_mix
from plansmith.data.queries import QuerySet
from plansmith.data.teacher import Taught
from plansmith.data.teacher_config import GrownQueries, Mix, TeachConfig

MANIFEST = "teach.json"


class TeachManifest(Record):
    """What stands in `teach.json`."""

    version: Literal[1] = 1
    model: str
    settings: str
    """As in each row of `drafts.jsonl`."""
    catalog_name: str
    catalog_hash: str
    queries: int
    samples: int
    outcomes: Outcomes
    mix: list[MixRow]
    """The wanted mix of grown queries against them and their plans; empty where none are grown."""
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: str
    """Empty where no price is given."""
    events: dict[str, int]
    """What the service's client counted in the last run."""
    models: dict[str, int]
    """Which models the answers of the last run named."""
    stopped: str | None
    """Why the last run ended early."""
    files: dict[str, str]
    """Sha256 of each file beside it."""
    config: dict[str, Any]


def summarise(
    taught: Taught,
    asked: QuerySet,
    config: TeachConfig,
    out: Path,
    progress: Progress,
    *,
    model: str,
    models: Mapping[str, int],
    mix: Mix | None,
) -> TeachManifest:
    """Count what became of every answer that was wanted, and write the manifest."""
    counter = OutcomeCounter()
    plans: dict[str, PlanJson] = {}
    queries = {query.query: query for query in asked.queries}
    progress.start("answers to check", taught.answered)
    for draft in iter_drafts(out, taught.settings):
        query = queries.get(draft.query)
        if query is None or draft.sample >= config.samples:
            continue
        found = read_draft(draft, query, config.repaired)
        fault = static_fault(found.row, asked.catalog) if isinstance(found.row, Candidate) else None
        counter.add(found, fault[0] if fault is not None else None)
        if isinstance(found.row, Candidate) and fault is None and query.wanted is not None:
            plans.setdefault(query.id, found.row.plan)
        progress.advance()
    progress.finish()
    manifest = TeachManifest(
        model=model,
        settings=taught.settings,
        catalog_name=asked.catalog.name,
        catalog_hash=asked.catalog.hash,
        queries=len(asked.queries),
        samples=config.samples,
        outcomes=counter.outcomes(taught.wanted, taught.failed),
        mix=compare_mix(mix, asked.catalog, asked.queries, plans) if mix is not None else [],
        requests=taught.spent.requests,
        prompt_tokens=taught.spent.prompt_tokens,
        completion_tokens=taught.spent.completion_tokens,
        cost=taught.cost,
        events=taught.events,
        models=dict(models),
        stopped=str(taught.stopped) if taught.stopped is not None else None,
        files={DRAFTS: file_hash(out / DRAFTS)},
        config=config.model_dump(mode="json"),
    )
    write_text(out / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    return manifest


def grown_mix(asked: QuerySet) -> Mix | None:
    """The mix that the queries were grown for; None where none were."""
    for source in asked.manifest.config.get("sources", ()):
        if source.get("kind") == "grown":
            return GrownQueries.model_validate(source).mix
    return None
