"""The fallback ladder: what is tried, in which order, until there is a valid plan; each rung is told and counted.

Grammar decoding, then one re-ask that lists the findings and the workers' names, then the teacher's endpoint, then a
ReAct agent, then a refusal. No rung invents a plan: where none is valid, there is none. A planner that does not answer
is not asked again. All of it within one deadline. Takes planners of the `Planner` protocol, and an agent of any make.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import Draft, Planner
from plansmith.contract.errors import PlansmithError
from plansmith.contract.findings import Severity
from plansmith.contract.plan import Json
from plansmith.serving.gateway.config import LadderConfig
from plansmith.serving.runs.tracing import note, span

_FROZEN = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
_SHOWN = 5


class Rung(StrEnum):
    """What is tried."""

    PLANNER = "planner"
    """the planner, under the plan grammar unless the config says otherwise"""
    REASK = "reask"
    """the planner once more, with the findings and the names of the workers"""
    TEACHER = "teacher"
    """the teacher's endpoint"""
    REACT = "react"
    """an agent that calls workers turn by turn; it gives an answer, no plan"""


class Outcome(StrEnum):
    """How a rung ended."""

    VALID = "valid"
    """with a valid plan, or with an agent's answer"""
    INVALID = "invalid"
    """with a plan that is not valid"""
    FAILED = "failed"
    """without a plan: the endpoint did not answer, or the agent found no answer"""
    LATE = "late"
    """cut off by the deadline"""


class Attempt(BaseModel):
    """One rung that was tried."""

    model_config = _FROZEN

    rung: Rung
    outcome: Outcome
    findings: tuple[dict[str, Json], ...] = ()
    """What the check found in its plan."""
    message: str | None = None
    """Why there is no plan."""
    seconds: float
    prompt_tokens: int = 0
    completion_tokens: int = 0


class FallbackAgent(Protocol):
    """Answers a query by calling workers itself; gives something with `status`, as runs have it."""

    async def run(self, query: str, *, deadline_s: float | None = None, on_event: Any = None) -> Any:
        """Answer a query within so many seconds; never raises for what model and workers do."""
        ...


class Planned(BaseModel):
    """What the ladder came to."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True, extra="forbid")

    draft: Draft | None
    """The valid draft; None where no rung gave one."""
    attempts: tuple[Attempt, ...]
    agent: Any = None
    """What the agent came to, where it was asked."""

    @property
    def rung(self) -> Rung | None:
        """The rung that gave the plan or the answer; None: all failed."""
        return next((one.rung for one in self.attempts if one.outcome is Outcome.VALID), None)

    @property
    def findings(self) -> tuple[dict[str, Json], ...]:
        """Of the valid plan (warnings), else of the last plan that was not valid."""
        last = next((one for one in self.attempts if one.outcome is Outcome.VALID), None)
        if last is None:
            last = next((one for one in reversed(self.attempts) if one.findings), None)
        return last.findings if last is not None else ()


class Ladder:
    """Plans queries, rung by rung."""

    def __init__(
        self,
        planner: Planner,
        catalog: Catalog,
        config: LadderConfig | None = None,
        *,
        teacher: Planner | None = None,
        agent: FallbackAgent | None = None,
        told: Callable[[Attempt], None] = lambda _: None,
    ) -> None:
        """Take the rungs.

        Args:
            planner: is asked first.
            catalog: what may be called.
            config: which rungs are tried.
            teacher: is asked where the planner's plans are not valid.
            agent: is asked last, where the caller allows it.
            told: is told of every attempt.

        """
        self.catalog = catalog
        self.planner = planner
        self._config = config or LadderConfig()
        self._teacher, self._agent, self._told = teacher, agent, told

    async def plan(self, query: str, *, deadline: float, allow_agent: bool = False, on_event: Any = None) -> Planned:
        """Climb until there is a valid plan or `deadline` (`time.monotonic`) is over."""
        attempts: list[Attempt] = []

        async def tried(rung: Rung, planner: Planner, asked: str) -> Draft | None:
            with span("plansmith.attempt", {"rung": rung.value}) as on:
                attempt, draft = await self._try(rung, planner, asked, deadline)
                note(on, "outcome", attempt.outcome.value)
            attempts.append(attempt)
            self._told(attempt)
            return draft if attempt.outcome is Outcome.VALID else None

        draft = await tried(Rung.PLANNER, self.planner, query)
        if draft is None and self._config.reask and attempts[-1].outcome is Outcome.INVALID:
            draft = await tried(Rung.REASK, self.planner, self.reask(query, attempts[-1]))
        if draft is None and self._teacher is not None and attempts[-1].outcome is not Outcome.LATE:
            draft = await tried(Rung.TEACHER, self._teacher, query)
        agent = None
        if draft is None and allow_agent and self._agent is not None and attempts[-1].outcome is not Outcome.LATE:
            attempt, agent = await self._by_agent(self._agent, query, deadline, on_event)
            attempts.append(attempt)
            self._told(attempt)
        return Planned(draft=draft, attempts=tuple(attempts), agent=agent)

    def reask(self, query: str, failed: Attempt) -> str:
        """The query with what was wrong with the last plan, and the names that may be used."""
        errors = [str(one["message"]) for one in failed.findings if one.get("severity") == Severity.ERROR.value]
        wrong = "\n".join(f"- {one}" for one in errors[:_SHOWN]) or f"- {failed.message}"
        return f"{query}\n\nYour last plan was not valid:\n{wrong}\nWorkers: {', '.join(self.catalog.names)}"

    async def _try(self, rung: Rung, planner: Planner, query: str, deadline: float) -> tuple[Attempt, Draft | None]:
        begun = time.monotonic()

        def ended(outcome: Outcome, message: str | None = None, draft: Draft | None = None) -> Attempt:
            return Attempt(
                rung=rung,
                outcome=outcome,
                findings=tuple(one.to_json() for one in draft.check.findings) if draft is not None else (),
                message=message,
                seconds=time.monotonic() - begun,
                prompt_tokens=draft.prompt_tokens if draft is not None else 0,
                completion_tokens=draft.completion_tokens if draft is not None else 0,
            )

        try:
            async with asyncio.timeout(max(0.0, deadline - begun)):
                draft = await planner.plan(query, self.catalog, constrained=self._config.constrained)
        except TimeoutError:
            return ended(Outcome.LATE, "the request's time was over."), None
        except PlansmithError as error:
            return ended(Outcome.FAILED, str(error)), None
        if draft.error is not None:
            return ended(Outcome.FAILED, draft.error, draft), None
        if not draft.check.valid:
            reason = draft.finish_reason.value
            cut = "the plan was cut at the token limit." if reason == "length" else None
            return ended(Outcome.INVALID, cut, draft), None
        return ended(Outcome.VALID, None, draft), draft

    async def _by_agent(self, agent: FallbackAgent, query: str, deadline: float, on_event: Any) -> tuple[Attempt, Any]:
        begun = time.monotonic()
        result = await agent.run(query, deadline_s=max(0.05, deadline - begun), on_event=on_event)
        good = result.status in ("complete", "partial")
        return (
            Attempt(
                rung=Rung.REACT,
                outcome=Outcome.VALID if good else Outcome.FAILED,
                message=None if good else "the agent found no answer.",
                seconds=time.monotonic() - begun,
                prompt_tokens=result.prompt_tokens,
                completion_tokens=result.completion_tokens,
            ),
            result,
        )
