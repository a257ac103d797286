"""Scores of one system over many items, held as columns: one list a metric, in the order of the items.

What `plansmith score` and `plansmith compare` keep of an item: its id, part, what it is known by, whether it was
answered, and its outcomes; never its texts. 100,000 items take about 30 MiB. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, cast

from plansmith.eval.metrics import MEANS, METRICS, RATES, Counts
from plansmith.eval.stats import Metric, mean, micro_f1, rate

Value = bool | float | Counts | None
"""Outcome of one item in one metric; None: could not be scored."""

NO_PART = "unnamed"
"""Part of an item whose row names none."""


class Answered(StrEnum):
    """Whether there is an answer to an item."""

    YES = "answered"
    """a text or a plan, right or wrong"""
    MISSING = "missing"
    """no row for the item: a miss"""
    FAILED = "failed"
    """a row that says that the request failed: a miss, and no judgement on the system"""


class Mark(NamedTuple):
    """What an item is known by beside its id, as digests: two systems are compared on the same items only."""

    query: bytes
    """Of the query; empty where the row has none."""
    references: bytes
    """Of the right plans, as canonical texts in any order."""


UNMARKED = Mark(b"", b"")
"""Of an item of which nobody asks what it is known by."""


class ItemValues(NamedTuple):
    """One item as the columns hold it."""

    id: str
    part: str
    mark: Mark
    answered: Answered
    values: tuple[Value, ...]
    """In the order of the names that the columns hold."""


@dataclass(slots=True)
class Columns:
    """Scores of one system over items."""

    names: tuple[str, ...] = METRICS
    """The metrics that are held."""
    ids: list[str] = field(default_factory=list[str])
    parts: list[str] = field(default_factory=list[str])
    marks: list[Mark] = field(default_factory=list[Mark])
    answered: list[Answered] = field(default_factory=list[Answered])
    values: dict[str, list[Value]] = field(default_factory=dict[str, list[Value]])
    _seen: dict[Value | str, Value | str] = field(default_factory=dict[Value | str, Value | str])

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, item: ItemValues) -> None:
        """Append one item; equal counts and part names are held once."""
        self.ids.append(item.id)
        self.parts.append(cast("str", self._seen.setdefault(item.part, item.part)))
        self.marks.append(item.mark)
        self.answered.append(item.answered)
        for name, value in zip(self.names, item.values, strict=True):
            held = self._seen.setdefault(value, value) if isinstance(value, Counts) else value
            self.values.setdefault(name, []).append(cast("Value", held))

    def part_names(self) -> tuple[str, ...]:
        """The parts in the order in which they first stand."""
        return tuple(dict.fromkeys(self.parts))

    def of_part(self, part: str) -> Columns:
        """The items of one part."""
        return self.chosen([index for index, name in enumerate(self.parts) if name == part])

    def chosen(self, indices: Sequence[int]) -> Columns:
        """The items at these places, in this order."""
        return Columns(
            names=self.names,
            ids=[self.ids[index] for index in indices],
            parts=[self.parts[index] for index in indices],
            marks=[self.marks[index] for index in indices],
            answered=[self.answered[index] for index in indices],
            values={name: [column[index] for index in indices] for name, column in self.values.items()},
        )

    def summary(self, name: str, *, seed: int, resamples: int) -> Metric:
        """One metric over all items."""
        return summary(name, self.values.get(name, []), seed=seed, resamples=resamples)


def summary(name: str, values: Sequence[Value], *, seed: int, resamples: int) -> Metric:
    """One metric over the outcomes of items."""
    if name in RATES:
        return rate(cast("Sequence[bool | None]", values))
    if name in MEANS:
        return mean(cast("Sequence[float | None]", values), seed=seed, resamples=resamples)
    return micro_f1(cast("Sequence[Counts | None]", values), seed=seed, resamples=resamples)


def mark_of(query: str, references: Iterable[str]) -> Mark:
    """What an item is known by: its query and its right plans as canonical texts."""
    return Mark(_digest(query) if query else b"", _digest("\n".join(sorted(references))))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
