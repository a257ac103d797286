"""When two queries are the same, and verification of rows that are at hand.

`verify` sends rows through the stages that every build has: each row alone (`stages/rows.py`), then duplicates
(`stages/repeats.py`). Rows that a source reserves for testing win over others with the same query. Every row is kept or
rejected. Builds go through the same stages row by row (`build.py`).
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from dataclasses import dataclass, field

from plansmith.contract.catalog import Catalog
from plansmith.contract.progress import Progress
from plansmith.contract.records import Candidate, Reject


@dataclass(slots=True)
class Verified:
    """Rows that passed, in the order of the source, and what was found on the way."""

    kept: list[Candidate] = field(default_factory=list[Candidate])
    rejects: list[Reject] = field(default_factory=list[Reject])
    warnings: Counter[str] = field(default_factory=Counter[str])
    """Findings of kept plans that are no errors, by fault."""


def normalise_query(query: str) -> str:
    """What makes two queries the same: letters without case and form, single spaces, no punctuation at the end."""
    text = query if query.isascii() else unicodedata.normalize("NFKC", query)
    return " ".join(text.casefold().split()).rstrip(".?! ")


def verify(candidates: list[Candidate], catalog: Catalog, *, max_steps: int | None, progress: Progress) -> Verified:
    """Check every candidate; no other check than the static one and equal ids and queries.

    Args:
        candidates: rows of a source.
        catalog: the workers that plans may call.
        max_steps: longer plans are rejected as `too_long`; None: the checker's own limit.
        progress: told of every row.

    """
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from plansmith.data.stages.repeats import drop_repeats
    from plansmith.data.stages.rows import CheckSettings, Item, RowChecker
    from plansmith.data.stages.store import RowStore
    from plansmith.data.stages.tally import Tally
    from plansmith.data.verify_config import VerifyConfig, rules_for

    checker = RowChecker(CheckSettings(catalog, rules_for(VerifyConfig(), "jsonl"), max_steps))
    verified = Verified()
    progress.start("plans to check", len(candidates))
    with TemporaryDirectory(prefix="plansmith-") as folder, RowStore(Path(folder)) as store:
        for number, line in enumerate(checker.check(Item(row) for row in candidates).lines):
            store.put(number, line)
        progress.advance(len(candidates))
        progress.finish()
        drop_repeats(store, None, Tally(), progress, seed=0)
        for _, row, warnings in store.rows():
            verified.kept.append(row)
            verified.warnings.update(warnings)
        verified.rejects += map(Reject.model_validate_json, store.rejects.lines())
    return verified
