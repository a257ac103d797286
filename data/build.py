"""Build a data set and load it again.

Reads a source; writes `catalog.json`, `{train,val,test,rejects}.jsonl` and, last, `manifest.json` into a folder. All of
it is written into a folder beside first and then moved in; a build that is stopped leaves the earlier data set as it
was, and one that is stopped while moving is finished by the next reader. The same inputs build nothing again.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import CatalogMismatchError, InputError
from plansmith.contract.progress import Progress
from plansmith.contract.records import Example, Reject, Split
from plansmith.contract.store import StorageError, file_hash, read_rows, write_rows, write_text
from plansmith.data.config import BfclSource, CatalogScope, DataConfig, JsonlSource, NestfulSource, ScriptSource
from plansmith.data.manifest import MANIFEST, Manifest, count_families, count_rows, read_manifest
from plansmith.data.packages import text_hash
from plansmith.data.sources.base import Loaded
from plansmith.data.split import split_rows
from plansmith.data.verify import Verified, verify

DATA_VERSION = 2
"""Raised whenever the same inputs would give other rows."""
CATALOG = "catalog.json"
REJECTS = "rejects.jsonl"
_BUILDING, _COMPLETE = ".data-building", ".data-complete"


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set whose files are those that its manifest names."""

    catalog: Catalog
    train: list[Example]
    val: list[Example]
    test: list[Example]
    manifest: Manifest


def build_data(config: DataConfig, out: Path, *, seed: int, progress: Progress) -> Manifest:
    """Build the data set of a config, unless it is there already.

    Raises:
        InputError: the config's files cannot be used, or no row is left.
        ServiceError: a package could not be fetched.
        StorageError: the folder cannot be written; an earlier data set there stays as it was.

    """
    _finish_moving(out)
    inputs = inputs_hash(config, seed=seed)
    earlier = _complete(out, inputs)
    if earlier is not None:
        progress.note(f"data in {out}: already built from the same inputs, nothing to do")
        return earlier
    loaded = _load(config, seed=seed, progress=progress)
    verified = verify(loaded.candidates, loaded.catalog, max_steps=config.max_steps, progress=progress)
    repeated = _drop_near(verified, config, seed=seed)
    read = len(loaded.candidates) + len(loaded.rejects)
    if not verified.kept:
        rejects = [*loaded.rejects, *verified.rejects]
        raise InputError(f"none of {read} rows of {loaded.name!r} can be used. {_first_rejects(rejects)}")
    examples = split_rows(verified.kept, config.split, seed=seed)
    examples, leaked = _keep_tests_out(examples, config, seed=seed)
    rejects = [*loaded.rejects, *verified.rejects, *repeated, *leaked]
    catalog = _scope(loaded.catalog, examples, config.catalog)
    manifest = _manifest(config, loaded, verified, examples, rejects, catalog, seed=seed, inputs=inputs)
    manifest = _write(out, catalog, examples, rejects, manifest)
    progress.note(describe(manifest))
    return manifest


def _drop_near(verified: Verified, config: DataConfig, *, seed: int) -> list[Reject]:
    """Take near duplicates out of the kept rows; rows that are reserved for testing come first and win."""
    if config.dedupe is None:
        return []
    from plansmith.data.dedupe import Deduper

    rejects: list[Reject] = []
    ranked = sorted(verified.kept, key=lambda row: row.part is None)
    with Deduper(config.dedupe, seed=seed) as deduper:
        for row, found in deduper.run(ranked):
            if found is not None:
                rejects.append(found.reject(row))
    dropped = {row.id for row in rejects}
    verified.kept = [row for row in verified.kept if row.id not in dropped]
    return rejects


def _keep_tests_out(examples: list[Example], config: DataConfig, *, seed: int) -> tuple[list[Example], list[Reject]]:
    """Take rows out of training and validation that are nearly a row of a test part."""
    if config.decontaminate is None:
        return examples, []
    from plansmith.data.decontaminate import Decontaminator, own_tests

    kept: list[Example] = []
    rejects: list[Reject] = []
    with Decontaminator(own_tests(examples), config.decontaminate, seed=seed) as decontaminator:
        for row, found in decontaminator.run(examples):
            if found is None:
                kept.append(row)
            else:
                rejects.append(found.reject(row))
    return kept, rejects


def describe(manifest: Manifest) -> str:
    """One line with every count."""
    counts = manifest.counts
    test = ", ".join(f"{part} {number}" for part, number in counts.test.items()) or "none"
    dropped = ", ".join(f"{reason} {number}" for reason, number in counts.rejects.items()) or "none"
    return (
        f"{counts.read} rows read from {manifest.source}: train {counts.train}, val {counts.val}, test ({test}), "
        f"dropped ({dropped})"
    )


def _load(config: DataConfig, *, seed: int, progress: Progress) -> Loaded:
    source = config.source
    if isinstance(source, NestfulSource):
        from plansmith.data.sources.nestful import load_nestful

        return load_nestful(source, progress, max_steps=config.max_steps)
    if isinstance(source, BfclSource):
        from plansmith.data.sources.bfcl import load_bfcl

        return load_bfcl(source, progress)
    if isinstance(source, ScriptSource):
        from plansmith.data.sources.script import load_script

        return load_script(source, seed=seed)
    from plansmith.data.sources.jsonl import load_jsonl

    return load_jsonl(source)


def inputs_hash(config: DataConfig, *, seed: int) -> str:
    """Sha256 over everything that a build depends on.

    Raises:
        InputError: an input file cannot be read.

    """
    hashes: dict[str, str] = {}
    for path in _input_files(config):
        try:
            hashes[str(path)] = file_hash(path)
        except OSError as error:
            raise InputError(f"input {str(path)!r} cannot be read: {error.strerror or error}.") from error
    parts = [DATA_VERSION, seed, config.model_dump(mode="json"), hashes]
    return text_hash(json.dumps(parts, sort_keys=True))


def _input_files(config: DataConfig) -> list[Path]:
    """Files of the user that rows come from; for a script also the Python files beside it, which it may import."""
    source = config.source
    if isinstance(source, JsonlSource):
        return [source.path, source.catalog]
    if isinstance(source, ScriptSource):
        from plansmith.data.sources.script import catalog_path

        beside = sorted(path for path in source.path.parent.glob("*.py") if path != source.path)
        return [source.path, catalog_path(source), *source.extra, *beside]
    return [source.wheel] if source.wheel is not None else []


def _first_rejects(rejects: list[Reject]) -> str:
    first = "; ".join(f"{row.reason}: {row.detail}" for row in rejects[:3])
    return f"First reasons: {first}" if first else ""


def _scope(catalog: Catalog, examples: list[Example], scope: CatalogScope) -> Catalog:
    if scope is CatalogScope.ALL:
        return catalog
    used = {step["type"] for row in examples for step in row.plan}
    return catalog.subset(sorted(used))


def _manifest(
    config: DataConfig,
    loaded: Loaded,
    verified: Verified,
    examples: list[Example],
    rejects: list[Reject],
    catalog: Catalog,
    *,
    seed: int,
    inputs: str,
) -> Manifest:
    return Manifest(
        source=loaded.name,
        licence=loaded.licence,
        seed=seed,
        catalog_name=catalog.name,
        catalog_hash=catalog.hash,
        counts=count_rows(examples, rejects, read=len(loaded.candidates) + len(loaded.rejects)),
        families=count_families(examples),
        warnings=dict(sorted(verified.warnings.items())),
        notes=loaded.notes,
        files={},
        inputs=inputs,
        config=config.model_dump(mode="json"),
    )


def _write(out: Path, catalog: Catalog, examples: list[Example], rejects: list[Reject], manifest: Manifest) -> Manifest:
    """Write all files into a folder beside, the manifest last, then move them in."""
    building = out / _BUILDING
    try:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        write_text(building / CATALOG, json.dumps(catalog.to_json(), ensure_ascii=False, indent=1) + "\n")
        for split in Split:
            write_rows(building / f"{split.value}.jsonl", [row for row in examples if row.split is split])
        write_rows(building / REJECTS, rejects)
        hashes = {path.name: file_hash(path) for path in sorted(building.iterdir())}
        manifest = manifest.model_copy(update={"files": hashes})
        write_text(building / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
        building.rename(out / _COMPLETE)
    except OSError as error:
        raise StorageError(f"cannot write data into {str(out)!r}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    _finish_moving(out)
    return manifest


def _finish_moving(out: Path) -> None:
    """Move a completely written data set in, the manifest last; does nothing where there is none."""
    complete = out / _COMPLETE
    if not complete.is_dir():
        return
    try:
        for path in sorted(complete.iterdir(), key=lambda path: path.name == MANIFEST):
            path.replace(out / path.name)
        complete.rmdir()
    except OSError as error:
        raise StorageError(f"cannot move new data into {str(out)!r}: {error.strerror or error}.") from error


def _complete(out: Path, inputs: str) -> Manifest | None:
    """The manifest of a data set that was built from the same inputs and whose files are unchanged."""
    try:
        manifest = read_manifest(out)
        _require_files(out, manifest)
    except InputError:
        return None
    return manifest if manifest.inputs == inputs else None


def _require_files(out: Path, manifest: Manifest) -> None:
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
    """Load a data set.

    Raises:
        InputError: there is none, or a file was changed after the build; the message names both hashes.
        CatalogMismatchError: the folder's catalog is another one.

    """
    _finish_moving(out)
    manifest = read_manifest(out)
    catalog = Catalog.load(out / CATALOG)
    if catalog.hash != manifest.catalog_hash:
        raise CatalogMismatchError(what=f"data in {str(out)!r}", expected=catalog.hash, found=manifest.catalog_hash)
    _require_files(out, manifest)
    rows = {split: read_rows(out / f"{split.value}.jsonl", Example) for split in Split}
    return DataSet(catalog, rows[Split.TRAIN], rows[Split.VAL], rows[Split.TEST], manifest)
