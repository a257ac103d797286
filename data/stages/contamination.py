"""Rows of training and validation that repeat a test text: of the data set's own test parts, or of a named benchmark.

Reads rows with their sides from a `RowStore`, drops there what repeats a test text, and gives the list of what was
removed. What repeats a text, `plansmith.data.decontaminate` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from plansmith.contract.progress import Progress
from plansmith.contract.records import Split
from plansmith.contract.store import write_rows
from plansmith.data.decontaminate import CONTAMINATED, Benchmark, Decontaminator, Removal, TestText
from plansmith.data.dedupe_config import DecontaminateConfig
from plansmith.data.sides import Where
from plansmith.data.stages.store import RowStore
from plansmith.data.stages.tally import Tally

Wheres = Callable[[int], Where]


def drop_contaminated(
    store: RowStore,
    where: Wheres,
    benchmarks: Sequence[Benchmark],
    config: DecontaminateConfig,
    tally: Tally,
    progress: Progress,
    *,
    seed: int,
) -> list[Removal]:
    """Drop the rows of training and validation that repeat a test text.

    Args:
        store: the rows.
        where: the side of each row by number.
        benchmarks: texts to protect besides the test rows.
        config: what counts as nearly the same.
        tally: where the stage counts; test rows are not read by it.
        progress: told of every row.
        seed: of the hashes that find near duplicates.

    Returns:
        What was removed, in the order of the rows.

    Raises:
        MissingExtraError: a package of the extra `data` is not installed.
        StorageError: the temporary folder cannot be written.

    """
    parts = {number: side.part for number in store.numbers() if (side := where(number)).split is Split.TEST}
    own = [Benchmark(f"test {part}", _texts(store, parts, part)) for part in sorted(set(parts.values()))]
    rows = store.rows(only=lambda number: number not in parts)
    removed: list[Removal] = []
    progress.start("rows to compare with test texts", store.left - len(parts))
    with Decontaminator([*own, *benchmarks], config, seed=seed) as decontaminator:
        for batch in store.batches(rows):
            for stored, found in zip(batch, decontaminator.decide([one.row for one in batch]), strict=True):
                if found is not None:
                    removed.append(found)
                    store.drop(stored.number, found.reject(stored.row))
            tally.read += len(batch)
            progress.advance(len(batch))
        counts = decontaminator.counts
    tally.rejected[CONTAMINATED] += len(removed)
    tally.counted["near_with_other_plan"] += counts.near_with_other_plan
    tally.counted.update({f"{match.value} to {name}": number for (name, match), number in counts.removed.items()})
    progress.finish()
    return removed


def _texts(store: RowStore, parts: dict[int, str], part: str) -> Iterator[TestText]:
    for stored in store.rows(only=lambda number: parts.get(number) == part):
        yield TestText(stored.row.id, stored.row.query, stored.row.plan)


def write_removals(path: Path, removed: Sequence[Removal]) -> None:
    """The list of what was removed, as JSONL."""
    write_rows(path, removed)
