"""Registries by name: `module:attribute`, `path/to/file.py:attribute`, or entry points of installed packages.

An attribute may be a registry, a worker, a list of workers, or a function without arguments that gives one of these.
Entry points stand in the group `plansmith.workers`; `entry-points` takes all, the name of a distribution takes its own.
Loading runs the code that it names. `compare_catalogs` says whether the workers are those that a planner was trained
for. MCP servers are not here, because they must be connected: see `mcp.py`.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.errors import InputError
from plansmith.contract.importers.modules import load_module, split_spec
from plansmith.contract.importers.result import short
from plansmith.contract.plan import dumps
from plansmith.serving.workers.base import CallableWorker
from plansmith.serving.workers.registry import Registry

GROUP = "plansmith.workers"
"""Group of entry points under which a package offers its workers."""
ALL_ENTRY_POINTS = "entry-points"
"""In place of a module: the workers of every installed package."""


def load_registry(where: str | Sequence[str], *, name: str | None = None) -> Registry:
    """The workers that one or more names stand for, in one registry.

    Args:
        where: `module:attribute`, `file.py:attribute`, `entry-points`, a distribution's name, or a list of these.
        name: name of the catalog (it is part of the catalog's hash); None: that of the first registry found, else of
            the first module, file or distribution.

    Raises:
        InputError: something is not there, cannot be imported, or is no worker; two workers have the same name.
        CatalogError: the workers cannot form a catalog.

    """
    specs = [where] if isinstance(where, str) else list(where)
    if not specs:
        raise InputError("no workers are named. Give 'module:attribute', 'file.py:attribute' or 'entry-points'.")
    parts = [part for spec in specs for part in _load(spec)]
    first = parts[0]
    alone = len(parts) == 1 and (name is None or name == first.name)
    registry = first if alone else Registry(name or first.name, []).joined(*parts)
    _ = registry.catalog  # raises where these workers cannot form one
    return registry


def _load(spec: str) -> list[Registry]:
    place, attribute = split_spec(spec)
    if attribute is not None:
        module = load_module(place)
        default = module.__name__.rpartition(".")[2]
        return [_registry(_attribute(module, attribute, place), spec, default)]
    if spec.endswith(".py") or ":" in spec or "/" in spec:
        raise InputError(f"{spec!r} names no attribute. Say what holds the workers: '{place}:ATTRIBUTE'.")
    return [_entry_point(point) for point in _entry_points(spec)]


def _attribute(module: ModuleType, path: str, where: str) -> Any:
    value: Any = module
    for part in path.split("."):
        if not hasattr(value, part):
            known = [name for name in dir(value) if not name.startswith("_")]
            close = difflib.get_close_matches(part, known, n=3)
            hint = (
                f"closest: {', '.join(map(repr, close))}" if close else f"it has {', '.join(known[:20]) or 'nothing'}"
            )
            raise InputError(f"{where!r} has no attribute {path!r}; {hint}.")
        value = getattr(value, part)
    return value


def _entry_points(spec: str) -> list[EntryPoint]:
    found = sorted(entry_points(group=GROUP), key=lambda point: (_owner(point), point.name))
    if spec == ALL_ENTRY_POINTS:
        if not found:
            raise InputError(f"no installed package has an entry point in the group {GROUP!r}.")
        return found
    try:
        distribution(spec)
    except (PackageNotFoundError, ValueError) as error:
        known = sorted({_owner(point) for point in found})
        have = f"Packages with workers: {', '.join(known)}." if known else "No installed package offers workers."
        raise InputError(
            f"{spec!r} is no installed distribution. {have} For a module write '{spec}:ATTRIBUTE'."
        ) from error
    own = [point for point in found if _normal(_owner(point)) == _normal(spec)]
    if not own:
        raise InputError(f"the distribution {spec!r} is installed, but has no entry point in the group {GROUP!r}.")
    return own


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else ""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _entry_point(point: EntryPoint) -> Registry:
    what = f"entry point {point.name!r} of {_owner(point) or 'an unnamed distribution'!r} ({point.value})"
    try:
        value = point.load()
    except (Exception, SystemExit) as error:  # importing runs the package's code, which may raise anything
        raise InputError(f"{what} cannot be loaded: {type(error).__name__}: {error}.") from error
    return _registry(value, what, _owner(point) or point.name)


def _registry(value: Any, spec: str, default_name: str) -> Registry:
    """A registry of what an attribute holds, or gives when it is called."""
    if _is_factory(value):
        value = _called(value, spec)
    if isinstance(value, Registry):
        return value
    if isinstance(value, CallableWorker) and not inspect.isclass(value):
        return Registry(default_name, [value])
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, dict, Worker)):
        found = list(cast("Iterable[Any]", value))
        for index, one in enumerate(found):
            if not isinstance(one, CallableWorker) or inspect.isclass(one):
                raise InputError(f"entry {index} of {spec!r} {_no_worker(one)}")
        if not found:
            raise InputError(f"{spec!r} holds no workers: it is empty.")
        return Registry(default_name, cast("list[CallableWorker]", found))
    raise InputError(f"{spec!r} {_no_worker(value)}")


def _is_factory(value: Any) -> bool:
    return callable(value) and not isinstance(value, (Registry, CallableWorker)) and not inspect.isclass(value)


def _called(fn: Any, spec: str) -> Any:
    """What a function without arguments gives; a function with arguments was probably meant as a worker."""
    if inspect.iscoroutinefunction(fn):
        raise InputError(f"{spec!r} is async. Await it yourself, and give the registry that it returns.")
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError) as error:
        raise InputError(f"{spec!r} {_no_worker(fn)}") from error
    needed = [
        one for one in parameters if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if needed:
        raise InputError(f"{spec!r} {_no_worker(fn)}")
    try:
        made = fn()
    except (Exception, SystemExit) as error:  # it is the user's code
        raise InputError(f"{spec!r} was called for its workers and raised {type(error).__name__}: {error}.") from error
    if inspect.isawaitable(made):
        close = getattr(made, "close", None)
        if close is not None:
            close()
        raise InputError(f"{spec!r} gave something to await. Await it yourself, and give the registry.")
    return made


def _no_worker(value: Any) -> str:
    """The rest of a sentence about something that is no worker, with what to do."""
    if isinstance(value, Worker):
        return f"is the catalog entry of {value.name!r} without code. Decorate its function with @worker."
    if inspect.isroutine(value):
        return f"is the plain function {value.__name__!r}. Decorate it with @worker."
    if isinstance(value, Catalog):
        return "is a catalog, which has no code. Name the workers themselves."
    return f"is no worker, list of workers or registry: found {short(value)}."


class CatalogComparison(NamedTuple):
    """How the workers at hand differ from a catalog that something was made for."""

    expected_hash: str
    found_hash: str
    missing: tuple[str, ...]
    """In the expected catalog, and no worker has that name."""
    superfluous: tuple[str, ...]
    """Workers that the expected catalog does not have."""
    changed: dict[str, tuple[str, ...]]
    """Worker to the keys of its entry that differ."""
    other: tuple[str, ...]
    """What else changes the hash: the catalog's name, the order of the workers."""

    @property
    def equal(self) -> bool:
        """Whether the hashes are equal: the workers are exactly those."""
        return self.expected_hash == self.found_hash

    def lines(self) -> list[str]:
        """In words, one line a difference; empty where there is none."""
        lines = [
            f"worker {name!r} is missing: the catalog has it, and no code stands behind it" for name in self.missing
        ]
        for name, keys in self.changed.items():
            lines.append(f"worker {name!r} is another one than in the catalog: {', '.join(keys)} differ")
        lines += [f"worker {name!r} is superfluous: the catalog does not have it" for name in self.superfluous]
        return lines + list(self.other)


def compare_catalogs(workers: Registry | Catalog, expected: Catalog | str | Path) -> CatalogComparison:
    """Hold workers against a catalog, e.g. the file that a planner was trained with.

    Args:
        workers: a registry, or its catalog.
        expected: a catalog, or the path of a catalog file.

    Raises:
        InputError: the file cannot be read.
        CatalogError: it is no catalog.

    """
    found = workers.catalog if isinstance(workers, Registry) else workers
    wanted = expected if isinstance(expected, Catalog) else Catalog.load(expected)
    common = [name for name in wanted.names if found.get(name) is not None]
    changed = {name: keys for name in common if (keys := _changed(wanted, found, name))}
    other: list[str] = []
    if wanted.name != found.name:
        other.append(f"the catalog is named {wanted.name!r}, the workers' one {found.name!r}")
    if common != [name for name in found.names if wanted.get(name) is not None]:
        other.append("the workers stand in another order")
    return CatalogComparison(
        expected_hash=wanted.hash,
        found_hash=found.hash,
        missing=tuple(name for name in wanted.names if found.get(name) is None),
        superfluous=tuple(name for name in found.names if wanted.get(name) is None),
        changed=changed,
        other=tuple(other),
    )


def _changed(wanted: Catalog, found: Catalog, name: str) -> tuple[str, ...]:
    """Keys of an entry that differ; the order inside schemas counts, since the hash sees it."""
    before, after = wanted.get(name), found.get(name)
    assert before is not None
    assert after is not None
    pairs = zip(before.model_dump(mode="json").items(), after.model_dump(mode="json").values(), strict=True)
    return tuple(key for (key, old), new in pairs if dumps(old) != dumps(new))
