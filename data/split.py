"""Who sees which row: training, validation, and the parts of the test.

A row's side depends on the seed and on a hash of its own query (or of its family), never on its neighbours, as long as
sizes are shares: appending rows moves no other row. Whole families are held out for the part `unseen`; the part `seen`
holds other rows of families that training has. Parts reserved by the source are for testing only.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from plansmith.contract.errors import InputError
from plansmith.contract.records import Candidate, Example, Split
from plansmith.data.config import Size, SplitConfig
from plansmith.data.verify import normalise_query

SEEN, UNSEEN = "seen", "unseen"


def split_rows(rows: Sequence[Candidate], config: SplitConfig, *, seed: int) -> list[Example]:
    """Rows with their sides, in the same order.

    Raises:
        InputError: nothing is left for training though not every row is reserved for testing.

    """
    free = [row for row in rows if row.part is None]
    held_out = _held_out([row.family for row in free], config.unseen, seed)
    known = [row for row in free if row.family not in held_out]
    tested = _picked(known, config.seen, "seen", seed)
    left = [row for row in known if row.id not in tested]
    validated = _picked(left, config.val, "val", seed)
    trained = {row.family for row in left if row.id not in validated}
    if free and not trained:
        raise InputError(
            f"nothing is left for training: of {len(rows)} rows {len(rows) - len(free)} are reserved for testing, and "
            f"the split asks for val={config.val}, seen={config.seen}, unseen={config.unseen}. Make it smaller."
        )
    return [_example(row, _side(row, tested, validated, held_out, trained)) for row in rows]


def _side(
    row: Candidate, tested: set[str], validated: set[str], held_out: set[str], trained: set[str]
) -> tuple[Split, str]:
    if row.part is not None:
        return Split.TEST, row.part
    if row.family in held_out:
        return Split.TEST, UNSEEN
    if row.id in tested:
        return Split.TEST, SEEN if row.family in trained else UNSEEN
    return (Split.VAL, "val") if row.id in validated else (Split.TRAIN, "train")


def _held_out(families: list[str], size: Size, seed: int) -> set[str]:
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
