"""Counts behind an F1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import NamedTuple


class Counts(NamedTuple):
    """Matched, superfluous and missed elements; sums of counts give the micro F1."""

    tp: int
    fp: int
    fn: int

    @property
    def f1(self) -> float:
        """2 tp / (2 tp + fp + fn); 1 where there is nothing to find and nothing was put forward."""
        whole = 2 * self.tp + self.fp + self.fn
        return 2 * self.tp / whole if whole else 1.0


def overlap(found: Counter[Hashable], wanted: Counter[Hashable]) -> Counts:
    """Counts of one multiset against another."""
    tp = (found & wanted).total()
    return Counts(tp, found.total() - tp, wanted.total() - tp)


def all_missed(wanted: int) -> Counts:
    """Counts of an answer that cannot be read: it misses every element, at least one also where none is wanted."""
    return Counts(0, 0, max(1, wanted))
