"""Which rows an optimizer step takes, and how they are cut into micro-batches.

Pure functions of the seed, so that a resumed run takes the same rows. All rows are gone through in a new order each
turn, without repeats until all had theirs. Rows for one catalog stand in blocks of a micro-batch, since the prompt of a
catalog runs once a micro-batch: a step then pays for few catalogs, and the blocks change between steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random


def batch_of(step: int, groups: Sequence[int], batch_size: int, micro_batch_size: int, *, seed: int) -> list[int]:
    """Row indices of a step; a batch that crosses the end of one turn goes on with the next.

    Args:
        step: from 0.
        groups: which catalog each row is for; equal numbers mean the same one.
        batch_size: rows of a step.
        micro_batch_size: rows of a micro-batch, and so of a block.
        seed: of the order.

    """
    groups = tuple(groups)
    batch: list[int] = []
    place = step * batch_size
    while len(batch) < batch_size:
        turn, start = divmod(place + len(batch), len(groups))
        order = _order(groups, micro_batch_size, seed, turn)
        batch += order[start : start + batch_size - len(batch)]
    return batch


@lru_cache(maxsize=4)
def _order(groups: tuple[int, ...], block: int, seed: int, turn: int) -> tuple[int, ...]:
    """All rows in the order of a turn."""
    random = Random(f"{seed}/{turn}")
    rows = list(range(len(groups)))
    random.shuffle(rows)
    members: dict[int, list[int]] = {}
    for row in rows:
        members.setdefault(groups[row], []).append(row)
    if len(members) == 1:
        return tuple(rows)
    blocks = [own[start : start + block] for own in members.values() for start in range(0, len(own), block)]
    random.shuffle(blocks)
    return tuple(row for block_rows in blocks for row in block_rows)


def micro_batches(
    rows: Sequence[int], groups: Sequence[int], lengths: Sequence[int], micro_batch_size: int
) -> list[list[int]]:
    """Cut a step's rows into micro-batches of one catalog each, rows of like length together.

    Args:
        rows: indices of the step's rows.
        groups: which catalog each row of the data is for.
        lengths: tokens of each row of the data.
        micro_batch_size: most rows of one.

    Returns:
        Every row once; catalogs in the order of their first row in the step.

    """
    members: dict[int, list[int]] = {}
    for row in rows:
        members.setdefault(groups[row], []).append(row)
    cut: list[list[int]] = []
    for own in members.values():
        by_length = sorted(own, key=lambda row: lengths[row])
        cut += [by_length[start : start + micro_batch_size] for start in range(0, len(by_length), micro_batch_size)]
    return cut
