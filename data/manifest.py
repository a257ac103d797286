"""The manifest of a data set: where it comes from, what was kept, what was dropped and why, and hashes of its files.

Stored as `manifest.json`, written last: a folder without it holds no complete data set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ValidationError, model_validator

from plansmith.contract.errors import InputError
from plansmith.contract.records import Example, Record, Reject, Split
from plansmith.data.stages.tally import StageCounts

MANIFEST = "manifest.json"


class Counts(Record):
    """How many rows there are; they add up."""

    read: int
    """Rows of the source, the dropped ones included."""
    train: int
    val: int
    test: dict[str, int]
    """Test rows by part."""
    rejects: dict[str, int]
    """Dropped rows by reason."""
    augmented: int = 0
    """Rows of `train` that are copies, made by augmentation; they were not read."""
    replaced: int = 0
    """Training rows that are not there themselves, since their copies stand for them."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        total = self.train + self.val + sum(self.test.values()) + sum(self.rejects.values())
        if total - self.augmented + self.replaced != self.read:
            raise ValueError(
                f"{self.read} rows were read, but train, val, test and rejects add up to {total} "
                f"({self.augmented} of them copies, {self.replaced} rows replaced by copies)"
            )
        return self


class Families(Record):
    """How many families (templates, or sequences of workers) there are on each side."""

    train: int
    test: dict[str, int]
    """Families of each test part."""


class Manifest(Record):
    """What stands in `manifest.json`."""

    version: Literal[1] = 1
    source: str
    licence: str
    seed: int
    catalog_name: str
    catalog_hash: str
    counts: Counts
    families: Families
    stages: tuple[StageCounts, ...] = ()
    """What each stage read, kept, rejected and saw, in the order in which rows go through them."""
    unsettled: int = 0
    """Rows that a later run of the same command may still settle: a judge did not answer."""
    warnings: dict[str, int]
    """Findings of kept plans that are no errors, by fault."""
    notes: dict[str, int]
    """What the source's conversion changed, by kind."""
    files: dict[str, str]
    """Sha256 of each file beside the manifest."""
    inputs: str
    """Sha256 over config, seed, input files and the version of the data stage: the same inputs build nothing again."""
    config: dict[str, Any]
    """The resolved config."""


@dataclass(slots=True)
class RowCounter:
    """Counts kept rows one by one."""

    sides: Counter[tuple[Split, str]] = field(default_factory=Counter[tuple[Split, str]])
    families: dict[tuple[Split, str], set[str]] = field(default_factory=dict[tuple[Split, str], set[str]])
    augmented: int = 0
    replaced: int = 0

    def add(self, row: Example) -> None:
        side = row.split, row.part
        self.sides[side] += 1
        self.families.setdefault(side, set()).add(row.family)

    def counts(self, rejects: Mapping[str, int], *, read: int) -> Counts:
        """Counts of a build; raises `ValueError` where a row was lost on the way."""
        return Counts(
            read=read,
            train=sum(number for (split, _), number in self.sides.items() if split is Split.TRAIN),
            val=sum(number for (split, _), number in self.sides.items() if split is Split.VAL),
            test=dict(sorted((part, number) for (split, part), number in self.sides.items() if split is Split.TEST)),
            rejects=dict(sorted(rejects.items())),
            augmented=self.augmented,
            replaced=self.replaced,
        )

    def family_counts(self) -> Families:
        """Families of each side."""
        found = {side: len(names) for side, names in self.families.items()}
        return Families(
            train=sum(number for (split, _), number in found.items() if split is Split.TRAIN),
            test=dict(sorted((part, number) for (split, part), number in found.items() if split is Split.TEST)),
        )


def count_rows(examples: Iterable[Example], rejects: Iterable[Reject], *, read: int) -> Counts:
    """Counts of rows that are at hand; raises `ValueError` where a row was lost on the way."""
    return _counted(examples).counts(Counter(row.reason for row in rejects), read=read)


def count_families(examples: Iterable[Example]) -> Families:
    return _counted(examples).family_counts()


def _counted(examples: Iterable[Example]) -> RowCounter:
    counter = RowCounter()
    for row in examples:
        counter.add(row)
    return counter


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder.

    Raises:
        InputError: there is none, or it cannot be read.

    """
    path = folder / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError(
            f"{str(folder)!r} holds no data set: {MANIFEST!r} is not there. Run 'plansmith data build' first."
        ) from error
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = "/".join(map(str, first["loc"])) or "file"
        raise InputError(f"{str(path)!r} is no manifest: {where}: {first['msg']}. Build the data again.") from error
