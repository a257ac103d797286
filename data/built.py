"""Reads a data set that was built: all rows in memory, or one by one.

Reads the folder that `build.py` wrote and refuses one whose files or catalogs are not those that its manifest names. A
build that was stopped while it moved its files in is finished first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import CatalogMismatchError, InputError
from plansmith.contract.records import Example, Reject, Split
from plansmith.contract.store import StorageError, file_hash, iter_rows, read_rows
from plansmith.data.manifest import MANIFEST, Manifest, read_manifest

CATALOG = "catalog.json"
CATALOGS = "catalogs.json"
"""The changed catalogs of augmentation, by hash."""
REJECTS = "rejects.jsonl"
REMOVED = "removed.jsonl"
COMPLETE = ".data-complete"
"""A folder in the data set's: all files of a new build, to be moved in."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set whose files are those that its manifest names."""

    catalog: Catalog
    train: list[Example]
    val: list[Example]
    test: list[Example]
    manifest: Manifest
    catalogs: Mapping[str, Catalog] = field(default_factory=dict[str, Catalog])
    """The changed catalogs that training rows are for (`Example.catalog`), by hash."""

    def catalog_of(self, row: Example) -> Catalog:
        """The catalog that a row's plan is for."""
        return self.catalog if row.catalog is None else self.catalogs[row.catalog]


@dataclass(frozen=True, slots=True)
class Built:
    """A data set whose files are those that its manifest names, with its rows left in them."""

    folder: Path
    catalog: Catalog
    manifest: Manifest
    catalogs: Mapping[str, Catalog]
    """As in `DataSet`."""

    def rows(self) -> Iterator[Example]:
        """All rows one by one: training, validation, test."""
        for split in Split:
            yield from iter_rows(self.folder / f"{split.value}.jsonl", Example)

    def rejects(self) -> Iterator[Reject]:
        """All rejects one by one."""
        return iter_rows(self.folder / REJECTS, Reject)


def finish_moving(out: Path) -> None:
    """Move a completely written data set in, the manifest last; does nothing where there is none."""
    complete = out / COMPLETE
    if not complete.is_dir():
        return
    try:
        written = read_manifest(complete).files if (complete / MANIFEST).exists() else None
        for name in (REMOVED, CATALOGS):
            if written is not None and name not in written:
                (out / name).unlink(missing_ok=True)
        for path in sorted(complete.iterdir(), key=lambda path: path.name == MANIFEST):
            path.replace(out / path.name)
        complete.rmdir()
    except OSError as error:
        raise StorageError(f"cannot move new data into {str(out)!r}: {error.strerror or error}.") from error


def require_files(out: Path, manifest: Manifest) -> None:
    """Raise `InputError` where a file is not the one that the manifest names."""
    for name, expected in manifest.files.items():
        try:
            found = file_hash(out / name)
        except OSError as error:
            raise InputError(
                f"{str(out / name)!r} cannot be read ({error.strerror or error}), but {MANIFEST!r} names it. "
                "Build the data again."
            ) from error
        if found != expected:
            raise InputError(
                f"{str(out / name)!r} has sha256 {found}, but {MANIFEST!r} says {expected}: it was changed after the "
                "build. Put it back, or build the data again."
            )


def load_data(out: Path) -> DataSet:
    """Load a data set with all its rows; raises as `open_data` does."""
    built = open_data(out)
    rows = {split: read_rows(out / f"{split.value}.jsonl", Example) for split in Split}
    unknown = {row.catalog for row in rows[Split.TRAIN]} - built.catalogs.keys() - {None}
    if unknown:
        raise InputError(f"rows in {str(out)!r} are for a catalog {min(map(str, unknown))!r} that is not there.")
    return DataSet(built.catalog, rows[Split.TRAIN], rows[Split.VAL], rows[Split.TEST], built.manifest, built.catalogs)


def open_data(out: Path) -> Built:
    """Open a data set for reading row by row.

    Raises:
        InputError: there is none, or a file was changed after the build; the message names both hashes.
        CatalogMismatchError: the folder's catalog is another one.

    """
    finish_moving(out)
    manifest = read_manifest(out)
    catalog = Catalog.load(out / CATALOG)
    if catalog.hash != manifest.catalog_hash:
        raise CatalogMismatchError(what=f"data in {str(out)!r}", expected=catalog.hash, found=manifest.catalog_hash)
    require_files(out, manifest)
    return Built(out, catalog, manifest, _load_catalogs(out) if CATALOGS in manifest.files else {})


def _load_catalogs(out: Path) -> dict[str, Catalog]:
    catalogs: dict[str, Catalog] = {}
    for name, value in json.loads((out / CATALOGS).read_text(encoding="utf-8")).items():
        catalogs[name] = catalog = Catalog.from_json(value)
        if catalog.hash != name:
            raise CatalogMismatchError(what=f"{CATALOGS} in {str(out)!r}", expected=name, found=catalog.hash)
    return catalogs
