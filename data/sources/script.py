"""Rows from a user's Python file: `candidates(seed, count)` yields `Candidate` rows as dicts, beside a `catalog.json`.

The module is loaded by its path and run in this process; what goes wrong inside it is reported with its own file and
line. Extra JSONL files (rows written by hand) are kept for testing.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError
from plansmith.contract.records import Candidate, Reject
from plansmith.data.config import ScriptSource
from plansmith.data.sources.base import Loaded, candidate_or_reject
from plansmith.data.sources.jsonl import read_jsonl, split_rows

HANDWRITTEN = "handwritten"


def load_script(config: ScriptSource, *, seed: int) -> Loaded:
    """All rows of the script, then those of the extra files.

    Raises:
        InputError: the script, the catalog or an extra file cannot be used; the message has file and line.

    """
    catalog = Catalog.load(catalog_path(config))
    candidates, rejects = split_rows(_rows(config, seed))
    if not candidates and not rejects:
        raise InputError(f"script {str(config.path)!r}: candidates(seed={seed}, count={config.count}) gave no row.")
    for path in config.extra:
        more, bad = split_rows(read_jsonl(path, part=HANDWRITTEN))
        candidates += more
        rejects += bad
    return Loaded(config.path.name, config.licence, catalog, candidates, rejects)


def catalog_path(config: ScriptSource) -> Path:
    return config.catalog or config.path.parent / "catalog.json"


def _rows(config: ScriptSource, seed: int) -> Iterator[Candidate | Reject]:
    with _importable(config.path.resolve().parent):
        make = getattr(_load(config.path), "candidates", None)
        if not callable(make):
            raise InputError(f"script {str(config.path)!r} has no function 'candidates(seed, count)' that yields rows.")
        try:
            for number, row in enumerate(cast("Callable[[int, int], Iterable[Any]]", make)(seed, config.count)):
                defaults = {"id": f"{config.path.stem}-{number}", "source": config.path.name}
                yield candidate_or_reject(row, where=f"{config.path}, row {number}", defaults=defaults)
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            raise _blame(config.path, error) from error


@contextmanager
def _importable(folder: Path) -> Generator[None]:
    """Helper modules beside the script can be imported meanwhile; they are forgotten afterwards, as is the script."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if isinstance(file, str) and Path(file).resolve().parent == folder:
                del sys.modules[name]


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"script {str(path)!r} is not there; expected a Python file with 'candidates(seed, count)'.")
    spec = importlib.util.spec_from_file_location(f"plansmith_script_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"script {str(path)!r} cannot be imported; expected a file that ends in '.py'.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _blame(path, error) from error
    return module


def _blame(path: Path, error: BaseException) -> InputError:
    """The user's error with the last line of the user's own file that it passed through."""
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}, line {error.lineno}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        folder = str(path.resolve().parent)
        own = [f for f in frames if str(Path(f.filename).resolve()).startswith(folder)]
        where = f"{own[-1].filename}, line {own[-1].lineno}" if own else str(path)
    return InputError(f"script {where}: {type(error).__name__}: {error}.")
