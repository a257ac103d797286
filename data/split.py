"""Who sees which row: training, validation, and the parts of the test.

A row's side depends on the seed and on hashes of its own query, family, workers and sequence of workers, never on its
neighbours, as long as sizes are shares (or names): appending rows moves no other row. A row is on the first of these
sides that takes it:

| part | rows |
| --- | --- |
| reserved by the source (`handwritten`) | as the source says; all other parts are made of the rest |
| `unseen_workers` | the plan calls a held-out worker |
| `unseen_sequences` | the plan's sequence of workers, of two steps or more, is held out |
| `unseen` | the family is held out |
| `seen` | picked by its query, of a family that training has |
| `val`, then `train` | picked by its query; the rest |

Test parts say what training lacks, so two kinds of rows are named by what is true of them: a picked row whose family
is not in training after all is `unseen`, and a row of a held-out sequence that calls a worker which no training plan
calls is in `unseen_workers`. Appended rows may change that name, but it stays a test row. `[]` is no sequence, and one
step is none either. Reserved rows are left out of all of this: they may call held-out workers or share a family.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from plansmith.contract.errors import InputError
from plansmith.contract.records import Candidate, Example, Split
from plansmith.data.config import Size, SplitConfig
from plansmith.data.verify import normalise_query

SEEN, UNSEEN = "seen", "unseen"
UNSEEN_WORKERS, UNSEEN_SEQUENCES = "unseen_workers", "unseen_sequences"


@dataclass(frozen=True, slots=True)
class _HeldOut:
    """What only the test sees."""

    workers: frozenset[str]
    sequences: frozenset[str]
    families: frozenset[str]

    def part(self, row: Candidate) -> str | None:
        """The part of a row that is held out, or None."""
        if not self.workers.isdisjoint(_workers(row)):
            return UNSEEN_WORKERS
        if _sequence(row) in self.sequences:
            return UNSEEN_SEQUENCES
        return UNSEEN if row.family in self.families else None


@dataclass(frozen=True, slots=True)
class _Trained:
    """What training has."""

    families: frozenset[str]
    workers: frozenset[str]


def split_rows(rows: Sequence[Candidate], config: SplitConfig, *, seed: int) -> list[Example]:
    """Rows with their sides, in the same order.

    Raises:
        InputError: nothing is left for training though not every row is reserved for testing, or no row that can be
            held out calls a worker that `unseen_workers` names.

    """
    free = [row for row in rows if row.part is None]
    held_out = _held_out(free, config, seed)
    known = [row for row in free if held_out.part(row) is None]
    tested = _picked(known, config.seen, "seen", seed)
    left = [row for row in known if row.id not in tested]
    validated = _picked(left, config.val, "val", seed)
    training = [row for row in left if row.id not in validated]
    if free and not training:
        sizes = ", ".join(f"{name}={value!r}" for name, value in config if value not in (0, ()))
        raise InputError(
            f"nothing is left for training: of {len(rows)} rows {len(rows) - len(free)} are reserved for testing, and "
            f"the split asks for {sizes}. Make it smaller."
        )
    trained = _Trained(
        frozenset(row.family for row in training), frozenset(name for row in training for name in _workers(row))
    )
    return [_example(row, _side(row, held_out, tested, validated, trained)) for row in rows]


def _side(
    row: Candidate, held_out: _HeldOut, tested: set[str], validated: set[str], trained: _Trained
) -> tuple[Split, str]:
    if row.part is not None:
        return Split.TEST, row.part
    part = held_out.part(row)
    if part == UNSEEN_SEQUENCES and not _workers(row) <= trained.workers:
        part = UNSEEN_WORKERS
    if part is not None:
        return Split.TEST, part
    if row.id in tested:
        return Split.TEST, SEEN if row.family in trained.families else UNSEEN
    return (Split.VAL, "val") if row.id in validated else (Split.TRAIN, "train")


def _workers(row: Candidate) -> frozenset[str]:
    return frozenset(str(step.get("type")) for step in row.plan)


def _sequence(row: Candidate) -> str:
    """The plan's sequence of workers as one text."""
    return json.dumps([str(step.get("type")) for step in row.plan])


def _held_out(rows: list[Candidate], config: SplitConfig, seed: int) -> _HeldOut:
    """Workers first, then sequences among the rows that are left, then families among those."""
    workers = _held_out_workers(rows, config.unseen_workers, seed)
    rows = [row for row in rows if workers.isdisjoint(_workers(row))]
    sequences = _lowest(
        {_sequence(row) for row in rows if len(row.plan) > 1}, config.unseen_sequences, "sequence", seed
    )
    families = [row.family for row in rows if _sequence(row) not in sequences]
    return _HeldOut(workers, sequences, frozenset(_held_out_families(families, config.unseen, seed)))


def _held_out_workers(rows: list[Candidate], wanted: tuple[str, ...] | Size, seed: int) -> frozenset[str]:
    called = {name for row in rows for name in _workers(row)}
    if not isinstance(wanted, tuple):
        return _lowest(called, wanted, "worker", seed)
    unknown = sorted(set(wanted) - called)
    if unknown:
        raise InputError(
            f"unseen_workers names {', '.join(map(repr, unknown))}, but no row that can be held out calls it. "
            f"Workers that rows call: {', '.join(map(repr, sorted(called))) or 'none'}."
        )
    return frozenset(wanted)


def _lowest(names: Iterable[str], size: Size, what: str, seed: int) -> frozenset[str]:
    """The names whose lot is below a share, or the lowest lots up to a count."""
    lots = {name: lot(what, name, seed) for name in names}
    if isinstance(size, float):
        return frozenset(name for name, value in lots.items() if value < size)
    return frozenset(sorted(lots, key=lambda name: (lots[name], name))[:size])


def _held_out_families(families: list[str], size: Size, seed: int) -> set[str]:
    """Families that only the test sees: a share of the families, or whole families up to a count of rows."""
    if isinstance(size, float):
        return {family for family in families if lot("family", family, seed) < size}
    rows = Counter(families)
    chosen: set[str] = set()
    room = size
    for family in sorted(rows, key=lambda name: (lot("family", name, seed), name)):
        if rows[family] <= room:
            chosen.add(family)
            room -= rows[family]
    return chosen


def _picked(rows: list[Candidate], size: Size, what: str, seed: int) -> set[str]:
    """Ids of the rows that are picked: those whose lot is below a share, or the lowest lots up to a count."""
    lots = {row.id: lot(what, normalise_query(row.query), seed) for row in rows}
    if isinstance(size, float):
        return {row_id for row_id, value in lots.items() if value < size}
    return set(sorted(lots, key=lambda row_id: (lots[row_id], row_id))[:size])


def lot(what: str, text: str, seed: int) -> float:
    """A number in [0, 1) that depends on the three arguments only."""
    data = f"{seed}\0{what}\0{text}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(data).digest()[:8]) / 2**64


def _example(row: Candidate, side: tuple[Split, str]) -> Example:
    return Example(
        id=row.id,
        query=row.query,
        plan=row.plan,
        family=row.family,
        source=row.source,
        split=side[0],
        part=side[1],
        results=row.results,
        allowed=row.allowed,
    )
