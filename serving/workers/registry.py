"""The workers of an application: found by name, and the catalog that planners are trained for.

A registry holds callable workers under their names and gives the catalog of all. Loading one from `module:attribute`,
from entry points or from an MCP server is in `loading.py` and `mcp.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from plansmith.contract.catalog import Catalog, Worker
from plansmith.contract.errors import InputError
from plansmith.contract.plan import Json
from plansmith.serving.workers.base import CallableWorker, CallInfo


@runtime_checkable
class Closing(Protocol):
    """Something that holds a connection or a process until it is closed."""

    async def aclose(self) -> None:
        """Let go of it; a second time does nothing."""
        ...


class Registry:
    """Immutable set of callable workers with a name; an async context manager, since workers may hold connections."""

    def __init__(self, name: str, workers: Iterable[CallableWorker], *, closing: Iterable[Closing] = ()) -> None:
        """Take the workers together.

        Args:
            name: of the catalog.
            workers: in the order of the catalog.
            closing: what is closed with the registry.

        Raises:
            InputError: two workers have the same name.

        """
        self.name = name
        self._workers: dict[str, CallableWorker] = {}
        for one in workers:
            if one.worker.name in self._workers:
                raise InputError(f"two workers are named {one.worker.name!r}; give one of them another name.")
            self._workers[one.worker.name] = one
        self._closing = tuple(closing)

    @cached_property
    def catalog(self) -> Catalog:
        """What may be called, as data."""
        return Catalog(self.name, [one.worker for one in self._workers.values()])

    def get(self, name: str) -> CallableWorker | None:
        """The worker of that name."""
        return self._workers.get(name)

    def __iter__(self) -> Iterator[CallableWorker]:
        return iter(self._workers.values())

    def __len__(self) -> int:
        return len(self._workers)

    def joined(self, *others: Registry) -> Registry:
        """Its own workers and those of others after them, under its own name."""
        parts = (self, *others)
        workers = [one for part in parts for one in part]
        return Registry(self.name, workers, closing=[one for part in parts for one in part._closing])

    def under(self, catalog: Catalog) -> Registry:
        """The same code under the entries of a catalog that a planner was trained for.

        The entries say what plans may hold; the code has to take all of it and need nothing else.

        Raises:
            InputError: a worker of the catalog has no code here, or its code takes other parameters.

        """
        entered: list[CallableWorker] = []
        for entry in catalog.workers:
            code = self._workers.get(entry.name)
            if code is None:
                raise InputError(
                    f"the catalog {catalog.name!r} has a worker {entry.name!r}, but there is no code for it."
                )
            unknown = sorted(entry.properties.keys() - code.worker.properties.keys())
            needed = sorted(code.worker.required - entry.required)
            if unknown or needed:
                what = f"does not take {', '.join(map(repr, unknown))}" if unknown else ""
                what += (" and " if what and needed else "") + (
                    f"needs {', '.join(map(repr, needed))}, which the entry leaves open" if needed else ""
                )
                raise InputError(
                    f"the code of worker {entry.name!r} {what}. Change the code, or train for its own entry."
                )
            entered.append(_Entered(entry, code))
        return Registry(catalog.name, entered, closing=self._closing)

    async def aclose(self) -> None:
        """Close what its workers hold."""
        for one in self._closing:
            await one.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


@dataclass(frozen=True, slots=True)
class _Entered:
    """A worker's code under another entry."""

    worker: Worker
    code: CallableWorker

    @property
    def secrets(self) -> frozenset[str]:
        return self.code.secrets

    @property
    def approval(self) -> bool:
        return self.code.approval

    async def call(self, args: dict[str, Json], info: CallInfo) -> Json:
        return await self.code.call(args, info)
