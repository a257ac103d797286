"""Catalogs from other forms: Python functions, OpenAI tools, MCP lists, BFCL docs, NESTFUL specs, and catalog files.

`import_catalog` reads a file or a module and says in notes what it had to drop or map; `import_value` does the same for
JSON in memory. Worker names are never changed. The importers read data that others wrote: whatever it holds, the
outcome is a catalog or an `InputError`.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import CatalogError, InputError
from plansmith.contract.importers.bfcl import from_bfcl, looks_like_bfcl
from plansmith.contract.importers.mcp import from_mcp, looks_like_mcp
from plansmith.contract.importers.nestful import from_nestful, looks_like_nestful
from plansmith.contract.importers.openai import from_openai, looks_like_openai
from plansmith.contract.importers.result import (
    ImportResult,
    Notes,
    make_catalog,
    read_json,
    require_plain_json,
    short,
)
from plansmith.contract.plan import Json

__all__ = ["CatalogSource", "ImportResult", "detect_source", "import_catalog", "import_value"]


class CatalogSource(StrEnum):
    """Where a catalog comes from."""

    PYTHON = "python"
    """a module or `.py` file with annotated functions; importing runs its code"""
    OPENAI = "openai"
    """an OpenAI `tools` or `functions` list, or a request body with one"""
    MCP = "mcp"
    """a Model Context Protocol `tools/list` response, its result, or its tools"""
    BFCL = "bfcl"
    """function docs or benchmark rows of the Berkeley Function Calling Leaderboard"""
    NESTFUL = "nestful"
    """API specs of the NESTFUL data set"""
    FILE = "file"
    """a catalog file of our own: `{"version":1,"name":...,"workers":[...]}`"""


def import_catalog(
    source: str | Path, kind: CatalogSource | str | None = None, name: str | None = None, *, trust_hints: bool = False
) -> ImportResult:
    """Read a catalog from a JSON file (or JSON lines), or from a Python module.

    Args:
        source: a path, or for Python `module`, `module:attribute`, `file.py`, `file.py:attribute`.
        kind: what it is; None: found out from the content.
        name: name of the catalog; None: the file's or the module's own.
        trust_hints: believe what an MCP server says about its own tools.

    Raises:
        InputError: it cannot be read, or its kind is unclear.
        CatalogError: it holds no usable catalog; the message lists every problem.

    """
    kind = _kind(kind)
    if kind is CatalogSource.PYTHON or (kind is None and _is_python(source)):
        from plansmith.contract.importers.modules import catalog_from_module

        notes = Notes()
        catalog = catalog_from_module(source, name=name, notes=notes)
        return ImportResult(catalog, notes.lines())
    value = read_json(source)
    try:
        return import_value(value, kind, name=name, default_name=Path(source).stem, trust_hints=trust_hints)
    except CatalogError as error:
        raise CatalogError(f"{source}: {error}") from error
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def import_value(
    value: Json,
    kind: CatalogSource | str | None = None,
    *,
    name: str | None = None,
    default_name: str = "imported",
    trust_hints: bool = False,
) -> ImportResult:
    """As `import_catalog`, for JSON in memory; a catalog file keeps its own name unless `name` is given."""
    kind = _kind(kind)
    require_plain_json(value, "the catalog's source")
    kind = detect_source(value) if kind is None else kind
    chosen = name if name is not None else default_name
    if kind is CatalogSource.OPENAI:
        return from_openai(value, name=chosen)
    if kind is CatalogSource.MCP:
        return from_mcp(value, name=chosen, trust_hints=trust_hints)
    if kind is CatalogSource.BFCL:
        return from_bfcl(value, name=chosen)
    if kind is CatalogSource.NESTFUL:
        return from_nestful(value, name=chosen)
    if kind is CatalogSource.FILE:
        catalog = Catalog.from_json(value)
        return ImportResult(catalog if name is None else make_catalog(name, catalog.workers))
    raise InputError("a Python catalog comes from a module or a '.py' file, not from JSON.")


def detect_source(value: Json) -> CatalogSource:
    """Which kind of source a JSON value is.

    Raises:
        InputError: it could be none, or more than one; the message says which kinds to choose from.

    """
    tests = {
        CatalogSource.FILE: _looks_like_file,
        CatalogSource.OPENAI: looks_like_openai,
        CatalogSource.MCP: looks_like_mcp,
        CatalogSource.BFCL: looks_like_bfcl,
        CatalogSource.NESTFUL: looks_like_nestful,
    }
    found = [kind for kind, test in tests.items() if test(value)]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"this may be {' or '.join(map(repr, map(str, found)))}. Say which with the kind.")
    if _is_plain_functions(value):
        raise InputError("these function descriptions may be 'openai' or 'bfcl'. Say which with the kind.")
    kinds = ", ".join(repr(str(kind)) for kind in CatalogSource)
    raise InputError(
        f"no known form of catalog: found {short(value)}. Known kinds are {kinds}; name one with the kind."
    )


def _kind(kind: CatalogSource | str | None) -> CatalogSource | None:
    try:
        return None if kind is None else CatalogSource(kind)
    except ValueError as error:
        kinds = ", ".join(repr(str(known)) for known in CatalogSource)
        raise InputError(f"unknown kind of catalog {kind!r}; expected one of {kinds}.") from error


def _is_python(source: str | Path) -> bool:
    """A `.py` file, or what is no file but has the form `module:attribute` or `package.module`."""
    text = str(source)
    head = text.partition(":")[0]
    if text.endswith(".py") or head.endswith(".py"):
        return True
    is_dotted = all(part.isidentifier() for part in head.split("."))
    return is_dotted and not Path(text).exists() and not text.endswith((".json", ".jsonl"))


def _looks_like_file(value: Json) -> bool:
    return isinstance(value, dict) and "workers" in value


def _is_plain_functions(value: Json) -> bool:
    found = cast("list[Any]", value) if isinstance(value, list) else [value]
    return bool(found) and all(isinstance(item, dict) and {"name", "parameters"} <= item.keys() for item in found)
