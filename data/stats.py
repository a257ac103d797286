"""Numbers of a data set: steps, workers, abstentions, references, lengths, and what was dropped and why.

Takes rows one by one, so that a million rows need little memory (a hash a family, a count for each length and worker);
gives one frozen, versioned result, which the data card, the terminal and the page of plots draw from. Lengths in tokens
are there when a function that counts them is given. Not covered: what the queries are about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, cast

from plansmith.contract.plan import Json, dumps, is_operator, references
from plansmith.contract.records import Example, Record, Reject, Split
from plansmith.contract.store import iter_rows

OVERALL = "overall"
TokenCount = Callable[[str], int]
"""How many tokens a text has."""


class Lengths(Record):
    """Spread of a length; quantiles are lengths that occur (nearest rank)."""

    count: int
    total: int
    min: int
    p50: int
    p95: int
    max: int

    @property
    def mean(self) -> float:
        """Average; 0 where there is nothing."""
        return self.total / self.count if self.count else 0.0


class PartStats(Record):
    """Numbers of one part, or of all kept rows."""

    rows: int
    families: int
    abstentions: int
    """Rows whose plan is `[]`: no worker fits."""
    with_references: int
    """Rows whose plan has at least one reference to an earlier result."""
    values: int
    """Argument values of all calls."""
    values_with_references: int
    """Argument values that are or hold a reference."""
    steps: dict[int, int]
    """Rows by number of steps."""
    workers: dict[str, int]
    """Calls by worker, most called first."""
    query_characters: Lengths
    query_words: Lengths
    plan_characters: Lengths
    """Of the canonical plan text, which is what a model writes."""
    query_tokens: Lengths | None = None
    plan_tokens: Lengths | None = None

    @property
    def calls(self) -> int:
        """Steps of all plans."""
        return sum(self.workers.values())


class DataStats(Record):
    """Numbers of a data set."""

    version: Literal[1] = 1
    overall: PartStats
    """All kept rows."""
    parts: dict[str, PartStats]
    """By part: `train`, `val`, then the test parts as `test NAME`."""
    sources: dict[str, int]
    """Kept rows by source, most rows first."""
    rejects: dict[str, int]
    """Dropped rows by reason, most rows first."""

    @property
    def read(self) -> int:
        """All rows, the dropped ones included."""
        return self.overall.rows + sum(self.rejects.values())


class StatsBuilder:
    """Counts rows one by one."""

    def __init__(self, tokens: TokenCount | None = None) -> None:
        """`tokens`: counts the tokens of a text; None leaves lengths in tokens out."""
        self._tokens = tokens
        self._parts: dict[str, _Counts] = {}
        self._overall = _Counts()
        self._sources: Counter[str] = Counter()
        self._rejects: Counter[str] = Counter()

    def add(self, row: Example) -> None:
        """Count a kept row."""
        measured = _measure(row, self._tokens)
        self._sources[row.source] += 1
        for counts in (self._overall, self._parts.setdefault(part_name(row), _Counts())):
            counts.add(row, measured)

    def add_reject(self, reason: str, number: int = 1) -> None:
        """Count dropped rows."""
        self._rejects[reason] += number

    def result(self) -> DataStats:
        """Numbers of all rows so far."""
        parts = {name: self._parts[name].result() for name in sorted(self._parts, key=_part_order)}
        return DataStats(
            overall=self._overall.result(), parts=parts, sources=_ranked(self._sources), rejects=_ranked(self._rejects)
        )


def stats_of(rows: Iterable[Example], rejects: Iterable[Reject] = (), *, tokens: TokenCount | None = None) -> DataStats:
    """Numbers of rows that are at hand."""
    builder = StatsBuilder(tokens)
    for row in rows:
        builder.add(row)
    for reject in rejects:
        builder.add_reject(reject.reason)
    return builder.result()


def folder_stats(folder: Path, *, tokens: TokenCount | None = None) -> DataStats:
    """Numbers of a built data set, read row by row.

    Raises:
        InputError: a file is absent or holds another kind of row.

    """
    rows = (row for split in Split for row in iter_rows(folder / f"{split.value}.jsonl", Example))
    return stats_of(rows, iter_rows(folder / "rejects.jsonl", Reject), tokens=tokens)


def part_name(row: Example) -> str:
    """`train`, `val`, or `test` with the part's name."""
    return f"test {row.part}" if row.split is Split.TEST else row.split.value


class _Measured:
    """What is counted of one row, worked out once for its part and for all rows."""

    __slots__ = ("lengths", "references", "values", "workers")

    def __init__(self, workers: list[str], values: int, found: int, lengths: dict[str, int]) -> None:
        self.workers = workers
        self.values = values
        self.references = found
        self.lengths = lengths


def _measure(row: Example, tokens: TokenCount | None) -> _Measured:
    values = [value for step in row.plan for value in _arguments(step)]
    plan = dumps(row.plan)
    lengths = {
        "query_characters": len(row.query),
        "query_words": len(row.query.split()),
        "plan_characters": len(plan),
    }
    if tokens is not None:
        lengths |= {"query_tokens": tokens(row.query), "plan_tokens": tokens(plan)}
    workers = [str(step.get("type")) for step in row.plan]
    return _Measured(workers, len(values), sum(map(_refers, values)), lengths)


def _arguments(step: dict[str, Any]) -> Iterable[Json]:
    args = step.get("args")
    return cast("dict[str, Json]", args).values() if isinstance(args, dict) else ()


def _refers(value: Json) -> bool:
    return (is_operator(value) or isinstance(value, dict | list)) and any(True for _ in references(value))


class _Counts:
    """Running counts of one part."""

    def __init__(self) -> None:
        self.rows = self.abstentions = self.with_references = self.values = self.references = 0
        self.families: set[int] = set()
        self.steps: Counter[int] = Counter()
        self.workers: Counter[str] = Counter()
        self.lengths: dict[str, Counter[int]] = {
            name: Counter() for name in ("query_characters", "query_words", "plan_characters")
        }

    def add(self, row: Example, measured: _Measured) -> None:
        self.rows += 1
        self.families.add(hash(row.family))
        self.abstentions += not row.plan
        self.with_references += measured.references > 0
        self.values += measured.values
        self.references += measured.references
        self.steps[len(row.plan)] += 1
        self.workers.update(measured.workers)
        for name, length in measured.lengths.items():
            self.lengths.setdefault(name, Counter())[length] += 1

    def result(self) -> PartStats:
        return PartStats(
            rows=self.rows,
            families=len(self.families),
            abstentions=self.abstentions,
            with_references=self.with_references,
            values=self.values,
            values_with_references=self.references,
            steps=dict(sorted(self.steps.items())),
            workers=_ranked(self.workers),
            **{name: lengths_of(counts) for name, counts in self.lengths.items()},  # pyright: ignore[reportArgumentType]
        )


def lengths_of(counts: Counter[int]) -> Lengths:
    """Spread of lengths that are counted by length."""
    count = counts.total()
    total = sum(length * number for length, number in counts.items())
    if not count:
        return Lengths(count=0, total=0, min=0, p50=0, p95=0, max=0)
    p50, p95 = _at_rank(counts, 0.5), _at_rank(counts, 0.95)
    return Lengths(count=count, total=total, min=min(counts), p50=p50, p95=p95, max=max(counts))


def _at_rank(counts: Counter[int], share: float) -> int:
    """The smallest length that so large a share of the rows does not exceed."""
    left = share * counts.total()
    for length in sorted(counts):
        left -= counts[length]
        if left <= 1e-9:
            return length
    return max(counts)


def _ranked(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _part_order(name: str) -> tuple[int, str]:
    return {"train": 0, "val": 1}.get(name, 2), name
