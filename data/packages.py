"""Data that comes as a Python package: the wheel is fetched once by pip into the user's cache and read in place.

Reads the package index that pip is configured for; writes `<cache>/wheels/NAME`. The cache is `PLANSMITH_CACHE`, or
`~/.cache/plansmith`. Nothing is installed and nothing of the package is run.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from plansmith.contract.errors import InputError, ServiceError
from plansmith.contract.progress import Progress
from plansmith.contract.store import StorageError, file_hash


@dataclass(frozen=True, slots=True)
class Package:
    """A pinned data package."""

    name: str
    version: str
    wheel: str
    """File name of the wheel."""
    sha256: str
    licence: str
    megabytes: int


def cache_dir() -> Path:
    """The user's cache directory: `PLANSMITH_CACHE`, or `~/.cache/plansmith`."""
    return Path(os.environ.get("PLANSMITH_CACHE") or Path.home() / ".cache" / "plansmith")


def fetch_wheel(package: Package, progress: Progress) -> Path:
    """Path of the package's wheel, fetched if the cache does not have it.

    Raises:
        ServiceError: pip cannot get it (no network, no such version), or what came is another file.
        StorageError: the cache cannot be written.

    """
    target = cache_dir() / "wheels" / package.wheel
    if target.is_file() and file_hash(target) == package.sha256:
        return target
    progress.note(
        f"fetching {package.name} {package.version} ({package.megabytes} MB, licence {package.licence}) into {target}"
    )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
            _download(package, Path(folder)).replace(target)
    except OSError as error:
        raise StorageError(f"cannot write the cache {str(target)!r}: {error.strerror or error}.") from error
    return target


def _download(package: Package, folder: Path) -> Path:
    wanted = f"{package.name}=={package.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), wanted]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()[-1:]
        raise ServiceError(
            f"pip could not fetch {wanted}: {' '.join(lines).strip() or 'no reason given'}. "
            "Check the network and pip's package index, or give the wheel's path as 'wheel'."
        )
    found = folder / package.wheel
    if not found.is_file():
        names = sorted(path.name for path in folder.iterdir())
        raise ServiceError(f"pip fetched {names} for {wanted}; expected {package.wheel!r}.")
    check_wheel(package, found, ServiceError)
    return found


def check_wheel(package: Package, wheel: Path, error: type[ServiceError] | type[InputError]) -> None:
    """Refuse a file that is not the pinned wheel."""
    try:
        found = file_hash(wheel)
    except OSError as problem:
        raise InputError(f"wheel {str(wheel)!r} cannot be read: {problem.strerror or problem}.") from problem
    if found != package.sha256:
        raise error(f"{str(wheel)!r} has sha256 {found}, but {package.name} {package.version} has {package.sha256}.")


def read_member(wheel: Path, member: str) -> Any:
    """A JSON file inside a wheel.

    Raises:
        InputError: the wheel is damaged or has no such member.

    """
    return _read(wheel, member, json.load)


def read_member_lines(wheel: Path, member: str) -> list[Any]:
    """A file of JSON lines inside a wheel, one value a line.

    Raises:
        InputError: the wheel is damaged or has no such member.

    """
    return _read(wheel, member, lambda file: [json.loads(line) for line in file if line.strip()])


def _read(wheel: Path, member: str, read: Callable[[IO[bytes]], Any]) -> Any:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as file:
            return read(file)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{str(wheel)!r} holds no readable {member!r}: {error}. Delete it and run again.") from error


def text_hash(text: str) -> str:
    """Sha256 (64 hex digits) of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
