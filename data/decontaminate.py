"""Which training rows repeat a text that a model is tested with: a test split, or a named benchmark.

Reads the texts to protect once and keeps them; takes rows in any order, one by one or many at once, and says for each
row that is not a test row itself whether it repeats one of the texts: equal after normalising, nearly the same (exact
Jaccard index over shingles of characters, pairs found by MinHash bands), or holding the text's runs of words (n-gram
overlap as in Brown et al. 2020, here the share of the test text's runs that the row holds). The first benchmark that
has such a text is named. A text that comes with its plan follows the `NearRule`: under `same_plan` a row with another
plan is kept and counted, since rows of one template are alike by design; texts without plans count whatever the row's
plan is. Not covered: paraphrases and translations; runs of words in languages written without spaces (shingles work
there).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from plansmith.contract.records import Candidate, Example, PlanJson, Record, Reject, Split
from plansmith.data.dedupe import AT_ONCE, plan_key
from plansmith.data.dedupe_config import DecontaminateConfig, NearRule
from plansmith.data.verify import normalise_query

if TYPE_CHECKING:
    from plansmith.data.near import NearBatch, Stored

Row = TypeVar("Row", Candidate, Example)
CONTAMINATED = "contaminated"
"""Reason of the rejects."""
_WORD = re.compile(r"\w+")
_NO_PLAN = 0


class Match(StrEnum):
    """How a row repeats a test text."""

    EQUAL = "equal"
    """the normalised texts are equal"""
    NEAR = "near"
    """the normalised texts share most of their shingles"""
    HOLDS = "holds"
    """the row holds most of the test text's runs of words, perhaps inside a longer query"""


class TestText(NamedTuple):
    """A text that a model is tested with."""

    id: str
    text: str
    plan: PlanJson | None = None
    """Its plan where it has one; None: rows that repeat the text are dropped whatever their plans."""

    __test__ = False


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Texts under the name that removals give."""

    name: str
    texts: Iterable[str | TestText]
    """Read once; a bare text is named by its place, counted from 0."""


class Removal(Record):
    """Why a row is dropped: one entry of the list of what was removed from training."""

    id: str
    """Id of the dropped row."""
    query: str
    benchmark: str
    text_id: str
    """Which text of the benchmark."""
    match: Match
    similarity: float
    """For `near` the Jaccard index over shingles, for `holds` the share of runs of words, for `equal` 1."""

    def reject(self, row: Candidate | Example) -> Reject:
        """The dropped row with this reason."""
        how = {
            Match.EQUAL: "the query is the one of",
            Match.NEAR: f"the query is nearly that (similarity {self.similarity:.2f}) of",
            Match.HOLDS: f"the query holds {self.similarity:.0%} of the runs of words of",
        }[self.match]
        return Reject(
            id=row.id,
            query=row.query,
            plan=row.plan,
            reason=CONTAMINATED,
            detail=f"{how} test text {self.text_id!r} in {self.benchmark!r}.",
            source=row.source,
        )


@dataclass(slots=True)
class ContaminationCounts:
    """What was found so far; `protected + clean + all of removed` is the number of rows read."""

    protected: int = 0
    """Test rows, which are never dropped."""
    clean: int = 0
    removed: Counter[tuple[str, Match]] = field(default_factory=Counter[tuple[str, Match]])
    """Dropped rows by benchmark and kind."""
    near_with_other_plan: int = 0
    """Clean rows whose query is nearly that of a test text with another plan (a lower bound)."""


def own_tests(examples: Iterable[Example]) -> list[Benchmark]:
    """The test parts of a data set as benchmarks `test PART`, with plans."""
    parts: dict[str, list[str | TestText]] = {}
    for row in examples:
        if row.split is Split.TEST:
            parts.setdefault(row.part, []).append(TestText(row.id, row.query, row.plan))
    return [Benchmark(f"test {part}", texts) for part, texts in sorted(parts.items())]


class _Batches(NamedTuple):
    """Some rows looked up among the texts that have plans and among those that have none."""

    with_plan: NearBatch
    without_plan: NearBatch


class Decontaminator:
    """Compares rows with the texts of all benchmarks; use in `with`, which gives the temporary file back."""

    def __init__(self, benchmarks: Iterable[Benchmark], config: DecontaminateConfig, *, seed: int) -> None:
        """Read all texts.

        Raises:
            MissingExtraError: a package of the extra `data` is not installed.
            StorageError: the temporary folder cannot be written.

        """
        from plansmith.data import near
        from plansmith.data.runs import RunIndex

        self.config = config
        self.counts = ContaminationCounts()
        self._near = near
        self._signer = None if config.rule is NearRule.OFF else near.Signer(config, seed=seed)
        self._rows = near.TextStore()
        self._benchmark: list[str] = []
        self._equal: dict[str, int] = {}
        self._with_plan = near.NearIndex(plans=True)
        self._without_plan = near.NearIndex(plans=False)
        self._runs = RunIndex(config.overlap)
        try:
            for benchmark in benchmarks:
                self._add(benchmark)
        except BaseException:
            self._rows.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()

    def run(self, rows: Iterable[Row]) -> Iterator[tuple[Row, Removal | None]]:
        """Every row in order, with why it is dropped or None; holds `AT_ONCE` rows at a time."""
        source = iter(rows)
        while part := list(islice(source, AT_ONCE)):
            yield from zip(part, self.decide(part), strict=True)

    def decide(self, rows: Sequence[Candidate | Example]) -> list[Removal | None]:
        """For each row why it is dropped, or None where it is kept; no row's answer depends on another row."""
        stored = [self._stored(row.id, normalise_query(row.query), row.plan) for row in rows]
        batches = self._opened(stored)
        decided: list[Removal | None] = []
        for at, row in enumerate(rows):
            found = None
            if is_test(row):
                self.counts.protected += 1
            elif (found := self._repeated(row, stored[at], batches, at)) is None:
                self.counts.clean += 1
            else:
                self.counts.removed[found.benchmark, found.match] += 1
            decided.append(found)
        return decided

    def _stored(self, row_id: str, text: str, plan: PlanJson | None) -> Stored:
        has_plan = plan is not None and self.config.rule is NearRule.SAME_PLAN
        return self._near.Stored(row_id, text, plan_key(plan) if has_plan else _NO_PLAN)

    def _opened(self, rows: list[Stored]) -> _Batches | None:
        """Rows looked up in both indexes; None where only equal texts count."""
        if self._signer is None:
            return None
        keys, plans = self._signer.keys([row.text for row in rows]), [row.plan for row in rows]
        return _Batches(self._with_plan.open(keys, plans), self._without_plan.open(keys, plans))

    def _add(self, benchmark: Benchmark) -> None:
        given = (TestText(str(at), text) if isinstance(text, str) else text for at, text in enumerate(benchmark.texts))
        while part := list(islice(given, AT_ONCE)):
            stored = [self._stored(item.id, normalise_query(item.text), item.plan) for item in part]
            batches = self._opened(stored)
            for at, row in enumerate(stored):
                number = self._rows.add(row)
                self._benchmark.append(benchmark.name)
                self._equal.setdefault(row.text, number)
                if batches is not None:
                    (batches.without_plan if row.plan == _NO_PLAN else batches.with_plan).add(at, number)
                    runs = word_runs(row.text, self.config.words)
                    self._runs.add(number, [(run, row.plan) for run in runs])
            if batches is not None:
                self._with_plan.close(batches.with_plan)
                self._without_plan.close(batches.without_plan)
            self._rows.flush()

    def _repeated(self, row: Candidate | Example, stored: Stored, batches: _Batches | None, at: int) -> Removal | None:
        if (number := self._equal.get(stored.text)) is not None:
            return self._removal(row, number, Match.EQUAL, 1.0)
        if batches is None:
            return None
        numbers = [*batches.without_plan.same_plan(at), *batches.with_plan.same_plan(at)]
        if (found := self._near_text(row, stored, numbers) or self._held_text(row, stored)) is not None:
            return found
        others = (self._rows.get(number) for number in batches.with_plan.any_plan(at))
        self.counts.near_with_other_plan += any(
            other.plan != stored.plan and self._similarity(stored, other) >= self.config.threshold for other in others
        )
        return None

    def _near_text(self, row: Candidate | Example, stored: Stored, numbers: list[int]) -> Removal | None:
        for number in numbers:
            other = self._rows.get(number)
            similarity = self._similarity(stored, other)
            if similarity >= self.config.threshold and other.plan in (stored.plan, _NO_PLAN):
                return self._removal(row, number, Match.NEAR, similarity)
        return None

    def _similarity(self, one: Stored, other: Stored) -> float:
        size = self.config.shingle
        return self._near.jaccard(self._near.grams(one.text, size), self._near.grams(other.text, size))

    def _held_text(self, row: Candidate | Example, stored: Stored) -> Removal | None:
        runs = word_runs(stored.text, self.config.words)
        plans = {_NO_PLAN, stored.plan}
        best, best_share = None, 0.0
        for number in self._runs.candidates((run, plan) for run in runs for plan in plans):
            other = self._rows.get(number)
            others = word_runs(other.text, self.config.words)
            share = len(runs & others) / len(others) if other.plan in plans else 0.0
            if share > best_share:
                best, best_share = number, share
        if best is None or best_share < self.config.overlap:
            return None
        return self._removal(row, best, Match.HOLDS, best_share)

    def _removal(self, row: Candidate | Example, number: int, match: Match, similarity: float) -> Removal:
        return Removal(
            id=row.id,
            query=row.query,
            benchmark=self._benchmark[number],
            text_id=self._rows.get(number).id,
            match=match,
            similarity=similarity,
        )


def is_test(row: Candidate | Example) -> bool:
    """Whether a row is for testing: it is never dropped."""
    return row.split is Split.TEST if isinstance(row, Example) else row.part is not None


def word_runs(text: str, words: int) -> set[tuple[str, ...]]:
    """All runs of so many words of a normalised text; none where it has fewer."""
    found = _WORD.findall(text)
    return {tuple(found[at : at + words]) for at in range(len(found) - words + 1)}
