"""The manifest of a data set: where it comes from, what was kept, what was dropped and why, and hashes of its files.

Stored as `manifest.json`, written last: a folder without it holds no complete data set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ValidationError, model_validator

from plansmith.contract.errors import InputError
from plansmith.contract.records import Example, Record, Reject, Split

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

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        total = self.train + self.val + sum(self.test.values()) + sum(self.rejects.values())
        if total != self.read:
            raise ValueError(f"{self.read} rows were read, but train, val, test and rejects add up to {total}")
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


def count_rows(examples: Sequence[Example], rejects: Sequence[Reject], *, read: int) -> Counts:
    """Counts of a build; raises `ValueError` where a row was lost on the way."""
    tests = [row.part for row in examples if row.split is Split.TEST]
    return Counts(
        read=read,
        train=sum(row.split is Split.TRAIN for row in examples),
        val=sum(row.split is Split.VAL for row in examples),
        test=dict(sorted(Counter(tests).items())),
        rejects=dict(sorted(Counter(row.reason for row in rejects).items())),
    )


def count_families(examples: Sequence[Example]) -> Families:
    parts: dict[str, set[str]] = {}
    for row in examples:
        parts.setdefault(row.part if row.split is Split.TEST else row.split.value, set()).add(row.family)
    return Families(
        train=len(parts.get("train", ())),
        test={part: len(names) for part, names in sorted(parts.items()) if part not in ("train", "val")},
    )


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
