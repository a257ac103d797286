"""A Python module, by import name or by file, into a catalog of its functions.

`module` or `file.py` takes its registry where it has one, else its decorated workers where it has some, else the public
functions that it defines, in their order; `module:attribute` or `file.py:attribute` takes that attribute: a registry, a
list of functions and workers, a mapping of names to functions, one function, or a `Catalog`. What a registry and a
decorated worker are is told by their shape (`catalog`, `worker`), since they are another stage's. Importing runs the
module's code, so name only modules that you would run.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.errors import InputError
from plansmith.contract.importers.functions import catalog_from_functions, worker_from_function
from plansmith.contract.importers.result import Notes, short


def catalog_from_module(spec: str | Path, *, name: str | None = None, notes: Notes | None = None) -> Catalog:
    """A catalog of a module's functions.

    Args:
        spec: `module`, `module:attribute`, `file.py` or `file.py:attribute`.
        name: name of the catalog; the module's own where it is not given.
        notes: receives what could not be read.

    Raises:
        InputError: the module cannot be imported, has no such attribute, or holds no functions.
        CatalogError: the workers cannot form a catalog.

    """
    where, attribute = split_spec(str(spec))
    module = load_module(where)
    found = _public(module, where, notes) if attribute is None else _attribute(module, attribute, where)
    known = found if isinstance(found, Catalog) else _catalog_of(found)
    if known is not None:
        return known if name is None else Catalog(name, known.workers)
    return catalog_from_functions(
        name or module.__name__.rpartition(".")[2], _workers(found, str(spec), notes), notes=notes
    )


def split_spec(spec: str) -> tuple[str, str | None]:
    """Module or file, and the attribute after the last colon (the colon of a drive letter is none)."""
    head, colon, tail = spec.rpartition(":")
    return (head, tail) if colon and all(part.isidentifier() for part in tail.split(".")) else (spec, None)


def load_module(where: str) -> ModuleType:
    """Import a module by name, or by file where `where` ends in `.py`; its code runs.

    Raises:
        InputError: there is none, or its code raised; the message says what.

    """
    is_file = where.endswith(".py")
    if is_file and not Path(where).is_file():
        raise InputError(f"module file {where!r} does not exist.")
    if not is_file and not all(part.isidentifier() for part in where.split(".")):
        raise InputError(f"{where!r} is neither a module name nor a '.py' file.")
    try:
        return _load_file(Path(where)) if is_file else importlib.import_module(where)
    except (Exception, SystemExit) as error:  # importing runs the user's code, which may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"module {where!r} cannot be imported: {reason}. Run it alone to see where.") from error


def _load_file(path: Path) -> ModuleType:
    """Import a file under a name of its own; its folder can be imported from while it loads, as for a script."""
    place = path.resolve()
    name = f"_plansmith_{hashlib.sha256(str(place).encode()).hexdigest()[:12]}.{place.stem}"
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise InputError(f"{str(path)!r} cannot be loaded as a module.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(place.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(place.parent))
    return module


def _public(module: ModuleType, where: str, notes: Notes | None) -> Any:
    """A module's only registry, or its decorated workers, or its functions."""
    names = cast(
        "Iterable[str]", getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    )
    values = [getattr(module, name, None) for name in names]
    registries = [value for value in values if _catalog_of(value) is not None]
    if len(registries) == 1:
        return registries[0]
    functions = [value for value in values if inspect.isfunction(value) and value.__module__ == module.__name__]
    workers = [value for value in values if _entry_of(value) is not None]
    if workers and notes is not None:
        for function in functions:
            notes.add("is no worker, and is left out beside those that are", f"function {function.__name__!r}")
    found = workers or functions
    if not found:
        raise InputError(f"module {where!r} defines no public function. Name a list of functions: '{where}:ATTRIBUTE'.")
    return found


def _attribute(module: ModuleType, attribute: str, where: str) -> Any:
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            known = ", ".join(sorted(n for n in vars(module) if not n.startswith("_"))[:20]) or "nothing public"
            raise InputError(f"module {where!r} has no {attribute!r}; it has {known}.")
        value = getattr(value, part)
    return value


def _catalog_of(value: Any) -> Catalog | None:
    """The catalog of a registry; None for anything else."""
    found = None if isinstance(value, type | ModuleType) else getattr(value, "catalog", None)
    return found if isinstance(found, Catalog) else None


def _entry_of(value: Any) -> Worker | None:
    """The entry of a worker, decorated or not; None for anything else."""
    found = value if isinstance(value, Worker) else getattr(value, "worker", None)
    return found if isinstance(found, Worker) else None


def _workers(found: Any, spec: str, notes: Notes | None) -> list[Worker]:
    """The functions of an attribute as workers; a mapping's keys are their names."""
    if isinstance(found, Mapping):
        pairs: list[tuple[str | None, Any]] = [(str(k), v) for k, v in cast("Mapping[Any, Any]", found).items()]
    elif isinstance(found, Iterable) and not isinstance(found, str):
        pairs = [(None, value) for value in cast("Iterable[Any]", found)]
    else:
        pairs = [(None, found)]
    if not pairs:
        raise InputError(f"{spec!r} holds no functions.")
    for _, value in pairs:
        if _entry_of(value) is None and not callable(value):
            raise InputError(f"{spec!r} must hold functions or workers, found {short(value)}.")
    return [_entry_of(v) or worker_from_function(v, name=name, notes=notes) for name, v in pairs]
