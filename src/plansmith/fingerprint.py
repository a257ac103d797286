"""Hashes of what a stage reads: code, texts; and the versions of packages.

Two runs with equal fingerprints have read the same bytes. Not covered: the bytes of installed packages (versions only).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def code_hash(*packages: str) -> str:
    """Sha256 over the Python files of our sub-packages."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for package in packages:
        for file in sorted((root / package).rglob("*.py")):
            digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()


def package_versions(*names: str) -> dict[str, str | None]:
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
