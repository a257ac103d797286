"""Directories that appear complete or not at all.

Writes beside the target and renames; a killed process leaves at most a hidden draft, which the next call removes.
Replacing a directory takes two renames: what a process killed between them moved away is put back by the next call.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from glob import escape
from pathlib import Path

from plansmith.contract.errors import InputError
from plansmith.contract.store import StorageError, file_hash

CARD_NAME = "plansmith.json"
"""Beside the weights of an adapter or a planner: what it was made from and for."""
TERMS_FILES = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*", "USE_POLICY*")
"""Names of the files that hold a model's terms; they go along with every copy of its weights."""


def make_directory(target: Path, build: Callable[[Path], object]) -> None:
    """Fill a directory beside `target` and rename it when complete; what dead processes left half done is removed.

    Raises:
        StorageError: it cannot be written.

    """
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for old in target.parent.glob(f".{target.name}.*.tmp"):
            if not _alive(old.name.split(".")[-2]):
                shutil.rmtree(old, ignore_errors=True)
        draft.mkdir()
        try:
            build(draft)
            if not target.is_dir():
                draft.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        if target.is_dir():
            return
        raise StorageError(f"cannot write {str(target)!r}: {error.strerror or error}.") from error


def replace_directory(target: Path, build: Callable[[Path], object]) -> None:
    """As `make_directory`, in place of what `target` holds, which stays untouched until the new one is complete.

    Raises:
        StorageError: it cannot be written; what was there is still there.

    """
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_up(target)
        draft.mkdir()
        try:
            build(draft)
            _share(draft)
            _swap(draft, target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise StorageError(f"cannot write {str(target)!r}: {error.strerror or error}.") from error


def _swap(draft: Path, target: Path) -> None:
    if not target.exists():
        draft.rename(target)
        return
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    target.rename(old)
    try:
        draft.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _clear_up(target: Path) -> None:
    """Put back or remove what dead processes left beside the target."""
    for kind in ("old", "tmp"):
        for left in target.parent.glob(f".{escape(target.name)}.*.{kind}"):
            if _alive(left.name.split(".")[-2]):
                continue
            if kind == "old" and not target.exists():
                left.rename(target)
            else:
                shutil.rmtree(left, ignore_errors=True)


def _share(folder: Path) -> None:
    """Files as readable as the folder is: safetensors come out readable by their owner alone, which no server likes."""
    mode = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)


def hash_files(folder: Path) -> dict[str, str]:
    """Sha256 of each file of a folder, by its path in it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): file_hash(path) for path in paths}


def require_replaceable(target: Path, marker: str, what: str) -> None:
    """Refuse to replace anything but a folder that holds what we wrote, unchanged.

    Args:
        target: the folder to be replaced.
        marker: its file that lists the hashes of all others under `files`.
        what: what such a folder is called in the message.

    Raises:
        InputError: what is in the way.

    """
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    advice = "Give another directory, or move it away."
    if not target.is_dir():
        raise InputError(f"{str(target)!r} is a file; a folder is to be written there. {advice}")
    try:
        listed = json.loads((target / marker).read_text(encoding="utf-8"))["files"]
        wanted = dict(listed)
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{str(target)!r} is not empty and no earlier {what}, so it is left alone. {advice}") from None
    found = {name: digest for name, digest in hash_files(target).items() if name != marker}
    other = sorted(name for name, digest in found.items() if wanted.get(name) != digest)
    if other:
        raise InputError(
            f"{str(target)!r} holds files that the earlier {what} did not write, or that were changed since "
            f"({', '.join(map(repr, other[:5]))}); they would be lost. {advice}"
        )


def copy_files(source: Path, target: Path, patterns: Iterable[str]) -> list[str]:
    """Copy the files of a folder whose names match, and return the names."""
    names = sorted({path.name for pattern in patterns for path in source.glob(pattern) if path.is_file()})
    for name in names:
        shutil.copyfile(source / name, target / name)
    return names


def _alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return int(process) != os.getpid()
