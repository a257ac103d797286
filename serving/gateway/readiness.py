"""Readiness that means something: a plan was made lately. A probe asks for one whenever no user did for a while."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import Planner
from plansmith.contract.errors import PlansmithError
from plansmith.serving.gateway.config import ReadyConfig


class State(NamedTuple):
    """Whether the planner answers."""

    ready: bool
    reason: str
    """Why not, or since when."""


class Readiness:
    """Watches a planner; `watch` runs as a task of its own."""

    def __init__(self, planner: Planner, catalog: Catalog, config: ReadyConfig) -> None:
        self._planner, self._catalog, self._config = planner, catalog, config
        self._good: float | None = None
        self._fault: str | None = "no plan was made yet"

    @property
    def state(self) -> State:
        """Whether a plan was made lately, and nothing failed since."""
        if self._fault is not None:
            return State(False, self._fault)
        age = time.monotonic() - (self._good or 0.0)
        if age > 2 * self._config.every_s + self._config.timeout_s:
            return State(False, f"the last plan was made {age:.0f} s ago")
        return State(True, f"a plan was made {age:.1f} s ago")

    def good(self) -> None:
        """A plan was made just now, valid or not."""
        self._good, self._fault = time.monotonic(), None

    def failed(self, why: str) -> None:
        """The planner did not answer."""
        self._fault = why

    async def watch(self) -> None:
        """Probe for ever."""
        while True:
            due = 0.0 if self._good is None or self._fault else self._good + self._config.every_s - time.monotonic()
            if due > 0:
                await asyncio.sleep(due)
                continue
            await self.probe()
            if self._fault is not None:
                await asyncio.sleep(min(self._config.every_s, 2.0))

    async def probe(self) -> None:
        """Ask for a plan; whatever it is, it was made."""
        try:
            async with asyncio.timeout(self._config.timeout_s):
                draft = await self._planner.plan(self._config.query, self._catalog)
        except TimeoutError:
            self.failed(f"the planner gave no plan within {self._config.timeout_s:g} s")
        except PlansmithError as error:
            self.failed(str(error))
        except Exception as error:
            self.failed(f"the planner raised {type(error).__name__}")
        else:
            if draft.error is not None:
                self.failed(draft.error)
            else:
                self.good()
