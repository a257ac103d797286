"""Which side each of very many rows is on: the rules of the split (see `split.py`) over a few numbers a row.

A row is reduced to facts when it passes: its family, its workers, their sequence, and two lots drawn from its query (40
bytes a row; families and sequences are kept once each). `Sides` decides all rows at once, and tells what training lacks
once it is known which rows stay there. The rules, in short: reserved rows are test rows; then come held-out workers,
sequences and families, rows picked for `seen` and for `val`, and training gets the rest.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from plansmith.contract.errors import InputError
from plansmith.contract.records import Candidate, Split
from plansmith.data.config import Size, SplitConfig
from plansmith.data.verify import normalise_query

SEEN, UNSEEN = "seen", "unseen"
UNSEEN_WORKERS, UNSEEN_SEQUENCES = "unseen_workers", "unseen_sequences"
Workers = tuple[str, ...]
"""A plan's workers in order."""


class Side(IntEnum):
    """Where a row goes, before the parts of the test get their names."""

    NONE = 0
    """nowhere: there is no such row"""
    RESERVED = 1
    """test, in the part that the source names"""
    HELD_WORKERS = 2
    """test: it calls a held-out worker"""
    HELD_SEQUENCE = 3
    """test: its sequence of workers is held out"""
    HELD_FAMILY = 4
    """test: its family is held out"""
    PICKED = 5
    """test: picked by its query"""
    VAL = 6
    """model selection"""
    TRAIN = 7
    """training"""


class Facts:
    """What the split needs to know of each row, by number; rows come in any order."""

    def __init__(self, size: int, seed: int) -> None:
        """Make room for rows 0 to `size` - 1; those that are not set count as absent."""
        self.seed = seed
        self.families: dict[str, int] = {}
        self.sequences: dict[Workers, int] = {}
        self.parts: dict[str, int] = {}
        self.family = array("q", [-1]) * size
        self.sequence = array("q", [-1]) * size
        self.part = array("q", [-1]) * size
        """Of reserved rows; -1 for others."""
        self.seen = array("d", [0.0]) * size
        self.val = array("d", [0.0]) * size

    def set(self, number: int, row: Candidate) -> None:
        """Note a row."""
        steps = tuple(str(step.get("type")) for step in row.plan)
        query = normalise_query(row.query)
        self.family[number] = self.families.setdefault(row.family, len(self.families))
        self.sequence[number] = self.sequences.setdefault(steps, len(self.sequences))
        if row.part is not None:
            self.part[number] = self.parts.setdefault(row.part, len(self.parts))
        self.seen[number] = lot("seen", query, self.seed)
        self.val[number] = lot("val", query, self.seed)

    def free(self) -> Iterator[int]:
        """Rows that are not reserved, in order."""
        return (number for number, part in enumerate(self.part) if part < 0 <= self.family[number])


class Where(NamedTuple):
    """The side of a row as examples name it."""

    split: Split
    part: str


class Sides:
    """The side of each row."""

    def __init__(self, facts: Facts, config: SplitConfig) -> None:
        """Decide.

        Raises:
            InputError: nothing is left for training though not every row is reserved for testing, or no row that can
                be held out calls a worker that `unseen_workers` names.

        """
        self._facts = facts
        self._names = list(facts.sequences)
        self._part_names = list(facts.parts)
        self._trained_families: set[int] = set()
        self._trained_workers: set[str] = set()
        self.side = bytearray(len(facts.family))
        """By number: a `Side`."""
        for number, family in enumerate(facts.family):
            self.side[number] = Side.NONE if family < 0 else Side.RESERVED if facts.part[number] >= 0 else Side.TRAIN
        self._hold_out(config)
        self._move(Side.PICKED, config.seen, facts.seen)
        self._move(Side.VAL, config.val, facts.val)
        self._require_training(config)
        self.name_parts()

    def name_parts(self, alive: Sequence[int] | None = None) -> None:
        """Look at what training has, for the names of the test's parts.

        Args:
            alive: by number: whether the row is still there; None: all are.

        """
        rows = [number for number, side in enumerate(self.side) if side == Side.TRAIN]
        rows = rows if alive is None else [number for number in rows if alive[number]]
        self._trained_families = {self._facts.family[number] for number in rows}
        self._trained_workers = {
            name for at in {self._facts.sequence[number] for number in rows} for name in self._names[at]
        }

    @property
    def trained(self) -> bool:
        """Whether training had any row when `name_parts` looked."""
        return bool(self._trained_families)

    def where(self, number: int) -> Where:
        """The side of a row, with the part's name as long as training is what `name_parts` saw."""
        side = self.side[number]
        if side == Side.TRAIN:
            return Where(Split.TRAIN, "train")
        if side == Side.VAL:
            return Where(Split.VAL, "val")
        return Where(Split.TEST, self._part(number, side))

    def _part(self, number: int, side: int) -> str:
        facts = self._facts
        if side == Side.RESERVED:
            return self._part_names[facts.part[number]]
        if side == Side.HELD_WORKERS:
            return UNSEEN_WORKERS
        if side == Side.HELD_SEQUENCE:
            known = self._trained_workers.issuperset(self._names[facts.sequence[number]])
            return UNSEEN_SEQUENCES if known else UNSEEN_WORKERS
        if side == Side.HELD_FAMILY:
            return UNSEEN
        return SEEN if facts.family[number] in self._trained_families else UNSEEN

    def _hold_out(self, config: SplitConfig) -> None:
        """Workers first, then sequences among the rows that are left, then families among those."""
        facts, seed = self._facts, self._facts.seed
        left = list(facts.free())
        workers = self._held_out_workers(left, config.unseen_workers)
        with_worker = [not workers.isdisjoint(steps) for steps in self._names]
        left = self._take(left, Side.HELD_WORKERS, [with_worker[facts.sequence[number]] for number in left])
        there = {facts.sequence[number] for number in left if len(self._names[facts.sequence[number]]) > 1}
        texts = {json.dumps(list(self._names[at])): at for at in there}
        sequences = {texts[text] for text in lowest(texts, config.unseen_sequences, "sequence", seed)}
        left = self._take(left, Side.HELD_SEQUENCE, [facts.sequence[number] in sequences for number in left])
        names = list(facts.families)
        counts = Counter(facts.family[number] for number in left)
        held = held_out_families({names[at]: count for at, count in counts.items()}, config.unseen, seed)
        self._take(left, Side.HELD_FAMILY, [names[facts.family[number]] in held for number in left])

    def _take(self, rows: list[int], side: Side, chosen: list[bool]) -> list[int]:
        """Put the chosen rows on a side; gives the others."""
        for number, is_chosen in zip(rows, chosen, strict=True):
            if is_chosen:
                self.side[number] = side
        return [number for number, is_chosen in zip(rows, chosen, strict=True) if not is_chosen]

    def _held_out_workers(self, rows: list[int], wanted: tuple[str, ...] | Size) -> frozenset[str]:
        called = {name for at in {self._facts.sequence[number] for number in rows} for name in self._names[at]}
        if not isinstance(wanted, tuple):
            return lowest(called, wanted, "worker", self._facts.seed)
        unknown = sorted(set(wanted) - called)
        if unknown:
            raise InputError(
                f"unseen_workers names {', '.join(map(repr, unknown))}, but no row that can be held out calls it. "
                f"Workers that rows call: {', '.join(map(repr, sorted(called))) or 'none'}."
            )
        return frozenset(wanted)

    def _move(self, side: Side, size: Size, lots: array[float]) -> None:
        """Move rows out of training: those whose lot is below a share, or the lowest lots up to a count."""
        rows = (number for number, at in enumerate(self.side) if at == Side.TRAIN)
        if isinstance(size, float):
            chosen = [number for number in rows if lots[number] < size]
        else:
            chosen = heapq.nsmallest(size, rows, key=lambda number: (lots[number], number))
        for number in chosen:
            self.side[number] = side

    def _require_training(self, config: SplitConfig) -> None:
        total = len(self.side) - self.side.count(Side.NONE)
        reserved = self.side.count(Side.RESERVED)
        if total > reserved and not self.side.count(Side.TRAIN):
            sizes = ", ".join(f"{name}={value!r}" for name, value in config if value not in (0, ()))
            raise InputError(
                f"nothing is left for training: of {total} rows {reserved} are reserved for testing, and the split "
                f"asks for {sizes}. Make it smaller."
            )


def lowest(names: Iterable[str], size: Size, what: str, seed: int) -> frozenset[str]:
    """The names whose lot is below a share, or the lowest lots up to a count."""
    lots = {name: lot(what, name, seed) for name in names}
    if isinstance(size, float):
        return frozenset(name for name, value in lots.items() if value < size)
    return frozenset(sorted(lots, key=lambda name: (lots[name], name))[:size])


def held_out_families(rows: dict[str, int], size: Size, seed: int) -> set[str]:
    """Families that only the test sees: a share of the families, or whole families up to a count of rows.

    Args:
        rows: number of rows by family.
        size: the share or count.
        seed: of the lots.

    """
    if isinstance(size, float):
        return {family for family in rows if lot("family", family, seed) < size}
    chosen: set[str] = set()
    room = size
    for family in sorted(rows, key=lambda name: (lot("family", name, seed), name)):
        if rows[family] <= room:
            chosen.add(family)
            room -= rows[family]
    return chosen


def lot(what: str, text: str, seed: int) -> float:
    """A number in [0, 1) that depends on the three arguments only."""
    data = f"{seed}\0{what}\0{text}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(data).digest()[:8]) / 2**64
