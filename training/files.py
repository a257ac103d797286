"""Directories that appear complete or not at all.

Writes beside the target and renames; a killed process leaves at most a hidden draft, which the next call removes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from plansmith.contract.store import StorageError


def make_directory(target: Path, build: Callable[[Path], None]) -> None:
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


def _alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return int(process) != os.getpid()
