"""Which candidates become examples: checked against the catalog, canonical, and each query once.

Reads candidates, gives kept rows in canonical form and a reject for every other one, so that read = kept + rejects.
Rows that a source reserves for testing win over generated ones with the same query.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import CheckResult, Severity, check_plan
from plansmith.contract.plan import canonical_json
from plansmith.contract.progress import Progress
from plansmith.contract.records import Candidate, Reject

DEFAULT_MAX_STEPS = 16
SPLIT_PARTS = frozenset({"train", "val", "seen", "unseen", "unseen_workers", "unseen_sequences", "overall"})
"""Parts that the split gives; a source may not."""


@dataclass(slots=True)
class Verified:
    """Rows that passed, in the order of the source, and what was found on the way."""

    kept: list[Candidate] = field(default_factory=list[Candidate])
    rejects: list[Reject] = field(default_factory=list[Reject])
    warnings: Counter[str] = field(default_factory=Counter[str])
    """Findings of kept plans that are no errors, by fault."""


def normalise_query(query: str) -> str:
    """What makes two queries the same: letters without case and form, single spaces, no punctuation at the end."""
    text = unicodedata.normalize("NFKC", query).casefold()
    return re.sub(r"\s+", " ", text).strip().rstrip(".?! ")


def verify(candidates: list[Candidate], catalog: Catalog, *, max_steps: int | None, progress: Progress) -> Verified:
    """Check every candidate.

    Args:
        candidates: rows of a source.
        catalog: the workers that plans may call.
        max_steps: longer plans are rejected as `too_long`; None: the checker's own limit.
        progress: told of every row.

    """
    verified = Verified()
    ids: set[str] = set()
    queries: dict[str, str] = {}
    kept: dict[int, Candidate] = {}
    progress.start("plans to check", len(candidates))
    for index in sorted(range(len(candidates)), key=lambda i: candidates[i].part is None):
        row = candidates[index]
        result = check_plan(row.plan, catalog, max_steps=max(max_steps or 0, DEFAULT_MAX_STEPS))
        fault = _fault(row, result, ids, queries, max_steps)
        progress.advance()
        if fault is not None:
            verified.rejects.append(_reject(row, *fault))
            continue
        ids.add(row.id)
        queries[normalise_query(row.query)] = row.id
        verified.warnings.update(finding.fault.value for finding in result.findings)
        kept[index] = row.model_copy(update={"plan": canonical_json(row.plan, catalog)})
    progress.finish()
    verified.kept = [kept[index] for index in sorted(kept)]
    return verified


def _fault(
    row: Candidate, result: CheckResult, ids: set[str], queries: dict[str, str], max_steps: int | None
) -> tuple[str, str] | None:
    """Reason code and sentence for a row that is not kept."""
    if row.part in SPLIT_PARTS:
        return "bad_part", f"part {row.part!r} is given by the split; a source may name others, such as 'handwritten'"
    if max_steps is not None and len(row.plan) > max_steps:
        return "too_long", f"{len(row.plan)} steps, at most {max_steps} are kept"
    errors = [finding for finding in result.findings if finding.severity is Severity.ERROR]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        return "check", f"{errors[0].fault.value} at {errors[0].path or '/'}: {errors[0].message}{more}"
    if row.id in ids:
        return "duplicate_id", f"another row has the id {row.id!r}"
    same = queries.get(normalise_query(row.query))
    return None if same is None else ("duplicate", f"row {same!r} has the same query")


def _reject(row: Candidate, reason: str, detail: str) -> Reject:
    return Reject(
        id=row.id, query=row.query, plan=row.plan, reason=reason, detail=detail.rstrip(".") + ".", source=row.source
    )
