"""A built data set as a folder to share: Parquet and JSONL for `datasets.load_dataset`, the catalog, and a data card.

Reads a folder that `build_data` wrote, row by row, and refuses one whose files were changed after the build; writes
`parquet/`, `jsonl/`, `catalog.json`, `manifest.json`, `README.md` and, where rows are for changed catalogs,
`catalogs.json` into another folder, which is replaced as a whole.
`load_dataset(folder)` gives the Parquet files, `load_dataset(folder + "/jsonl")` the same rows from JSONL (`datasets`
reads one kind of file a folder).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from plansmith.contract.errors import InputError
from plansmith.contract.records import Example, Split
from plansmith.contract.store import StorageError, file_hash, iter_rows, write_text
from plansmith.data.arrow import FileFormat, require_packages, write_file
from plansmith.data.built import CATALOGS
from plansmith.data.card import CardFiles, CardText, card, format_card
from plansmith.data.manifest import MANIFEST, Manifest, read_manifest
from plansmith.data.stats import DataStats, StatsBuilder, TokenCount

CATALOG, CARD = "catalog.json", "README.md"

ALL_FORMATS = (FileFormat.PARQUET, FileFormat.JSONL)
_OURS = frozenset({CATALOG, CATALOGS, CARD, MANIFEST, *(kind.value for kind in FileFormat)})


def export_data(
    folder: Path,
    out: Path,
    text: CardText,
    *,
    formats: Sequence[FileFormat] = ALL_FORMATS,
    tokens: TokenCount | None = None,
) -> DataStats:
    """Write a built data set for sharing.

    Args:
        folder: the built data set.
        out: the folder to write; an earlier export there is replaced, anything else is refused.
        text: name of the data set, and what the card shall say about it.
        formats: kinds of files; `load_dataset` reads the first from `out`, others from their folders in it.
        tokens: counts the tokens of a text, for the card's lengths; None leaves them out.

    Raises:
        MissingExtraError: a package of the extra `data` is not installed.
        InputError: the folder holds no complete, unchanged data set, or `out` holds something else.
        StorageError: the output cannot be written; an earlier export stays as it was.

    """
    require_packages()
    manifest = read_manifest(folder)
    _require_unchanged(folder, manifest)
    _require_ours(out)
    builder = StatsBuilder(tokens)
    for reason, number in manifest.counts.rejects.items():
        builder.add_reject(reason, number)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as name:
            draft = Path(name) / "export"
            stats = _write(folder, draft, manifest, builder, text, formats)
            _replace(draft, out, Path(name) / "earlier")
    except OSError as error:
        raise StorageError(f"cannot write {str(out)!r}: {error.strerror or error}.") from error
    return stats


def _write(
    folder: Path, draft: Path, manifest: Manifest, builder: StatsBuilder, text: CardText, formats: Sequence[FileFormat]
) -> DataStats:
    draft.mkdir()
    splits: dict[Split, int] = {}
    for split in Split:
        rows = _counted(iter_rows(folder / f"{split.value}.jsonl", Example), builder)
        if number := write_file(rows, Example, draft, split.value, formats):
            splits[split] = number
    for name in (CATALOG, MANIFEST, *({CATALOGS} & manifest.files.keys())):
        shutil.copyfile(folder / name, draft / name)
    paths = sorted(path for path in draft.rglob("*") if path.is_file())
    hashes = {path.relative_to(draft).as_posix(): file_hash(path) for path in paths}
    stats = builder.result()
    files = CardFiles(splits, formats, hashes)
    write_text(draft / CARD, card(manifest, stats, files, text))
    for kind in formats[1:]:
        write_text(draft / kind.value / CARD, format_card(files, kind))
    return stats


def _counted(rows: Iterator[Example], builder: StatsBuilder) -> Iterator[Example]:
    for row in rows:
        builder.add(row)
        yield row


def _require_unchanged(folder: Path, manifest: Manifest) -> None:
    for name, expected in manifest.files.items():
        try:
            found = file_hash(folder / name)
        except OSError as error:
            raise InputError(f"{str(folder / name)!r} cannot be read: {error.strerror or error}.") from error
        if found != expected:
            raise InputError(
                f"{str(folder / name)!r} has sha256 {found}, but {MANIFEST!r} says {expected}. Build the data again."
            )


def _require_ours(out: Path) -> None:
    """Refuse to replace what is no earlier export."""
    if not out.exists():
        return
    found = {path.name for path in out.iterdir()} if out.is_dir() else {out.name}
    if not out.is_dir() or (found and (CARD not in found or not found <= _OURS)):
        strange = sorted(found - _OURS)[:3] or sorted(found)[:3]
        raise InputError(f"{str(out)!r} is no earlier export (it holds {strange}). Name an empty or new folder.")


def _replace(draft: Path, out: Path, earlier: Path) -> None:
    if out.exists():
        out.rename(earlier)
    try:
        draft.rename(out)
    except BaseException:
        if earlier.exists() and not out.exists():
            earlier.rename(out)
        raise
