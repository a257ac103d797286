"""Rows that repeat an earlier one: the same id, the same query, or nearly the same query.

Rows that the source reserves for testing come first and win; of the others the earlier row wins. Only a row that is
kept takes its id and its query. Which queries are the same, `plansmith.data.dedupe` says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from plansmith.contract.progress import Progress
from plansmith.contract.records import Candidate
from plansmith.data.dedupe import Deduper
from plansmith.data.dedupe_config import DedupeConfig, NearRule
from plansmith.data.stages.rows import rejected
from plansmith.data.stages.store import RowStore, Stored
from plansmith.data.stages.tally import Tally

DUPLICATE_ID = "duplicate_id"
ONLY_EQUAL = DedupeConfig(rule=NearRule.OFF)


def drop_repeats(
    store: RowStore,
    config: DedupeConfig | None,
    tally: Tally,
    progress: Progress,
    *,
    seed: int,
    kept: Callable[[int, Candidate], None] = lambda number, row: None,
) -> None:
    """Drop the rows that repeat another one.

    Args:
        store: the rows.
        config: what counts as nearly the same; None: only equal queries are dropped.
        tally: where the stage counts.
        progress: told of every row.
        seed: of the hashes that find near duplicates.
        kept: told of every row that is kept, with its number, reserved ones first.

    Raises:
        MissingExtraError: a package of the extra `data` is not installed.
        StorageError: there is no room for the kept queries.

    """
    progress.start("rows to compare", store.left)
    with Deduper(config or ONLY_EQUAL, seed=seed) as deduper:
        comparison = _Comparison(store, deduper, tally, progress, kept)
        for reserved in (True, False):
            for batch in store.batches(store.rows(reserved=reserved)):
                for stored in batch:
                    comparison.take(stored)
                comparison.decide()
        tally.counted["near_with_other_plan"] += deduper.counts.near_with_other_plan
        tally.counted["cut_short"] += deduper.counts.cut_short
    progress.finish()


@dataclass(slots=True)
class _Comparison:
    """Rows so far, and those that wait to be decided many at once."""

    store: RowStore
    deduper: Deduper
    tally: Tally
    progress: Progress
    kept: Callable[[int, Candidate], None]
    ids: set[str] = field(default_factory=set[str])
    """Of the rows that are kept."""
    waiting: dict[str, Stored] = field(default_factory=dict[str, Stored])
    """By id; none of these ids is taken."""

    def take(self, stored: Stored) -> None:
        """One more row; where its id waits, those that wait come first."""
        self.tally.read += 1
        if stored.row.id in self.waiting:
            self.decide()
        if stored.row.id not in self.ids:
            self.waiting[stored.row.id] = stored
            return
        self.tally.rejected[DUPLICATE_ID] += 1
        detail = f"another row has the id {stored.row.id!r}"
        self.store.drop(stored.number, rejected(stored.row, DUPLICATE_ID, detail))
        self.progress.advance()

    def decide(self) -> None:
        """Decide the rows that wait."""
        rows = list(self.waiting.values())
        self.waiting.clear()
        for stored, found in zip(rows, self.deduper.decide([one.row for one in rows]), strict=True):
            if found is None:
                self.ids.add(stored.row.id)
                self.kept(stored.number, stored.row)
            else:
                self.tally.rejected[found.repeat.value] += 1
                self.store.drop(stored.number, found.reject(stored.row))
        self.progress.advance(len(rows))
