"""Protocols between stages: who can plan, who can execute. Stages take these; the command line hands them in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import CheckResult
from plansmith.contract.plan import Step
from plansmith.contract.records import FinishReason


@dataclass(frozen=True, slots=True)
class Draft:
    """What a planner wrote for one query, checked by the client whatever the server promised."""

    query: str
    text: str
    """Generated text without the stop token; empty on error."""
    check: CheckResult
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    """Wall time from request to last token, waiting in a queue included."""
    finish_reason: FinishReason
    error: str | None = None


class Planner(Protocol):
    """Turns a query and a catalog into a draft. Never raises for a bad plan: that is a finding of the draft."""

    async def plan(self, query: str, catalog: Catalog, *, constrained: bool = True) -> Draft:
        """Plan one query; `constrained` decodes under the catalog's plan grammar."""
        ...


class Executor(Protocol):
    """Runs one step whose references are already resolved."""

    async def execute(self, step: Step, args: dict[str, Any]) -> Any:
        """JSON-compatible result of the worker; raises for a failed call."""
        ...
