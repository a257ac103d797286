"""Writes the rows that are left into the files of a data set, one after the other, and counts them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from plansmith.contract.progress import Progress
from plansmith.contract.records import Candidate, Example, Split
from plansmith.data.augment import Augmenter
from plansmith.data.manifest import RowCounter
from plansmith.data.sides import Where
from plansmith.data.stages.store import RowStore


@dataclass(slots=True)
class Written:
    """What was written."""

    counter: RowCounter = field(default_factory=RowCounter)
    warnings: Counter[str] = field(default_factory=Counter[str])
    """Findings of kept plans that are no errors, by fault."""
    workers: set[str] = field(default_factory=set[str])
    """Workers that kept plans call."""


def write_examples(
    store: RowStore,
    where: Callable[[int], Where],
    folder: Path,
    progress: Progress,
    augmenter: Augmenter | None = None,
) -> Written:
    """Write `train.jsonl`, `val.jsonl` and `test.jsonl`, rows in the order of the source, copies after their row.

    Raises:
        OSError: the folder cannot be written.

    """
    written = Written()
    progress.start("rows to write", store.left)
    with ExitStack() as stack:
        files = {split: stack.enter_context(synced(folder / f"{split.value}.jsonl")) for split in Split}
        for number, row, warnings in store.rows():
            example = example_of(row, where(number), store.said.get(number, ()))
            copies = list(augmenter.copies(example)) if augmenter and example.split is Split.TRAIN else []
            replaced = augmenter is not None and bool(copies) and not augmenter.config.keep
            for made in copies if replaced else (example, *copies):
                files[made.split].write(made.model_dump_json().encode() + b"\n")
                written.counter.add(made)
            written.counter.augmented += len(copies)
            written.counter.replaced += replaced
            written.warnings.update(warnings)
            written.workers.update(step["type"] for step in row.plan)
            progress.advance()
    progress.finish()
    return written


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Write lines into a new file; raises `OSError`."""
    with synced(path) as file:
        for line in lines:
            file.write(line)


@contextmanager
def synced(path: Path) -> Generator[IO[bytes]]:
    """A new file that is on disk when the block ends."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def example_of(row: Candidate, where: Where, said: Iterable[str] = ()) -> Example:
    """The row with its side."""
    return Example(
        id=row.id,
        query=row.query,
        plan=row.plan,
        family=row.family,
        source=row.source,
        split=where.split,
        part=where.part,
        results=row.results,
        allowed=row.allowed,
        why=(*row.why, *said),
    )
