"""Which rows repeat an earlier one: equal queries, and queries that are nearly the same.

Takes rows in order, one by one or many at once, and says for each whether it repeats an earlier row that was kept: the
first row wins. Rows that must win (those reserved for testing) are therefore given first. Similarity is the exact
Jaccard index over shingles of normalised queries; which pairs are compared comes from MinHash bands (`near.py`), which
miss about one pair in a hundred at the threshold and fewer above it. Under `NearRule.SAME_PLAN` a nearly equal query
with another plan is kept and counted. A million rows need about 1 GiB and a temporary file with their queries.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Self, TypeVar

from plansmith.contract.plan import Json
from plansmith.contract.records import Candidate, Example, Reject
from plansmith.data.dedupe_config import DedupeConfig, NearRule
from plansmith.data.verify import normalise_query

if TYPE_CHECKING:
    from plansmith.data.near import NearBatch, Stored

Row = TypeVar("Row", Candidate, Example)
AT_ONCE = 4096
"""Rows that are decided in one call when a stream is read; results do not depend on it."""
_COMPARED_ACROSS_PLANS = 4
_SORTED = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class Repeat(StrEnum):
    """How a row repeats another; the value is the reject's reason."""

    EQUAL = "duplicate"
    """the normalised queries are equal"""
    NEAR = "near_duplicate"
    """the normalised queries are nearly the same"""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Why a row is dropped."""

    repeat: Repeat
    kept: str
    """Id of the earlier row, which is kept."""
    similarity: float
    """Jaccard index over shingles; 1 for equal queries."""

    def reject(self, row: Candidate | Example) -> Reject:
        """The dropped row with this reason."""
        how = (
            f"row {self.kept!r} has the same query"
            if self.repeat is Repeat.EQUAL
            else f"row {self.kept!r} has nearly the same query (similarity {self.similarity:.2f})"
        )
        return Reject(
            id=row.id,
            query=row.query,
            plan=row.plan,
            reason=self.repeat.value,
            detail=f"{how}.",
            source=row.source,
        )


@dataclass(slots=True)
class DedupeCounts:
    """What was found so far; `kept + equal + near` is the number of rows read."""

    kept: int = 0
    equal: int = 0
    near: int = 0
    near_with_other_plan: int = 0
    """Kept rows whose query is nearly that of an earlier kept row with another plan. A lower bound: at most four
    earlier rows are looked at."""
    cut_short: int = 0
    """Kept rows for which more earlier rows shared a band than are compared, so that a repetition may be missed."""


class Deduper:
    """Decides rows in order; use in `with`, which gives the temporary file back."""

    def __init__(self, config: DedupeConfig, *, seed: int) -> None:
        """Start without any row.

        Raises:
            MissingExtraError: a package of the extra `data` is not installed.
            StorageError: the temporary folder cannot be written.

        """
        from plansmith.data import near

        self.config = config
        self.counts = DedupeCounts()
        self._near = near
        self._signer = None if config.rule is NearRule.OFF else near.Signer(config, seed=seed)
        self._equal = near.KeyMap(1)
        self._rows = near.TextStore()
        self._index = near.NearIndex(plans=config.rule is NearRule.SAME_PLAN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()

    def run(self, rows: Iterable[Row]) -> Iterator[tuple[Row, Duplicate | None]]:
        """Every row in order, with why it is dropped or None; holds `AT_ONCE` rows at a time."""
        source = iter(rows)
        while part := list(islice(source, AT_ONCE)):
            yield from zip(part, self.decide(part), strict=True)

    def decide(self, rows: Sequence[Candidate | Example]) -> list[Duplicate | None]:
        """For each row why it is dropped, or None where it is kept; many rows at once are much faster.

        Raises:
            StorageError: there is no room for the kept queries.

        """
        import numpy as np

        texts = [normalise_query(row.query) for row in rows]
        by_plan = self.config.rule is NearRule.SAME_PLAN
        stored = [
            self._near.Stored(row.id, text, plan_key(row.plan) if by_plan else 0)
            for row, text in zip(rows, texts, strict=True)
        ]
        equal = self._equal.open(np.array([self._near.text_key(text) for text in texts], np.uint64)[:, None])
        batch = (
            None if self._signer is None else self._index.open(self._signer.keys(texts), [row.plan for row in stored])
        )
        decided: list[Duplicate | None] = []
        for at, row in enumerate(stored):
            found = self._equal_row(row, equal.rows(at)) or (self._near_row(row, batch, at) if batch else None)
            decided.append(found)
            if found is None:
                number = self._rows.add(row)
                equal.add(at, number)
                if batch is not None:
                    batch.add(at, number)
            self._count(found)
        self._equal.close(equal)
        if batch is not None:
            self._index.close(batch)
        self._rows.flush()
        return decided

    def _opened(self, rows: list[Stored]) -> NearBatch | None:
        """Rows looked up in the index; None where only equal queries count."""
        if self._signer is None:
            return None
        return self._index.open(self._signer.keys([row.text for row in rows]), [row.plan for row in rows])

    def _equal_row(self, row: Stored, numbers: list[int]) -> Duplicate | None:
        found = (self._rows.get(number) for number in numbers)
        return next((Duplicate(Repeat.EQUAL, other.id, 1.0) for other in found if other.text == row.text), None)

    def _near_row(self, row: Stored, batch: NearBatch, at: int) -> Duplicate | None:
        """The repetition that a row is; where it is none, counts near rows with other plans."""
        numbers = batch.same_plan(at)
        others = batch.any_plan(at)
        if not numbers and not others:
            return None
        size, threshold = self.config.shingle, self.config.threshold
        grams = self._near.grams(row.text, size)
        for number in numbers[: self._near.TRIES]:
            other = self._rows.get(number)
            similarity = self._near.jaccard(grams, self._near.grams(other.text, size))
            if similarity >= threshold and other.plan == row.plan:
                return Duplicate(Repeat.NEAR, other.id, similarity)
        self.counts.cut_short += len(numbers) > self._near.TRIES
        differing = (other for other in map(self._rows.get, others) if other.plan != row.plan)
        self.counts.near_with_other_plan += any(
            self._near.jaccard(grams, self._near.grams(other.text, size)) >= threshold
            for other in islice(differing, _COMPARED_ACROSS_PLANS)
        )
        return None

    def _count(self, found: Duplicate | None) -> None:
        self.counts.kept += found is None
        self.counts.equal += found is not None and found.repeat is Repeat.EQUAL
        self.counts.near += found is not None and found.repeat is Repeat.NEAR


def plan_key(plan: Json) -> int:
    """64-bit hash of a plan, never 0; the order of keys does not matter, the kind of numbers does."""
    return int.from_bytes(blake2b(_SORTED(plan).encode(), digest_size=8).digest()) or 1
