"""The workers of an application: found by name, and the catalog that planners are trained for.

A registry holds callable workers under their names and gives the catalog of all. Loading one from `module:attribute`,
from entry points or from an MCP server is in `loading.py` and `mcp.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from plansmith.contract.catalog import Catalog
from plansmith.contract.errors import InputError
from plansmith.serving.workers.base import CallableWorker


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
