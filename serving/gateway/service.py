"""What the gateway does, apart from HTTP: plans and runs within places and deadlines, and recent runs to look up.

Takes a planner's ladder, a registry of workers and what runs need. A run belongs to the key that began it, whose name
is the beginning of its id. A caller who goes away ends the planning of a run; once its steps have begun they go on to
their end, since effects cannot be taken back, and the result can be fetched.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from plansmith.contract.catalog import Catalog
from plansmith.contract.endpoint import Planner
from plansmith.contract.errors import InputError
from plansmith.contract.plan import Json
from plansmith.serving.gateway.admission import KeyRing, Place, Places, Rates
from plansmith.serving.gateway.config import GatewayConfig, KeyConfig
from plansmith.serving.gateway.errors import ErrorCode, GatewayError
from plansmith.serving.gateway.ladder import Attempt, FallbackAgent, Ladder, Outcome, Planned
from plansmith.serving.gateway.metrics import Computed, Metrics
from plansmith.serving.gateway.readiness import Readiness
from plansmith.serving.gateway.running import RecentRuns, Running
from plansmith.serving.gateway.wire import PlanResponse, RunResponse, RunState, of_result, of_saved
from plansmith.serving.runs.answer import Answerer
from plansmith.serving.runs.config import RunConfig
from plansmith.serving.runs.events import StepOutcome
from plansmith.serving.runs.journal import Journal
from plansmith.serving.runs.orchestrator import Orchestrator
from plansmith.serving.workers.registry import Registry


@dataclass(frozen=True, slots=True)
class Parts:
    """What a gateway is made of."""

    planner: Planner
    catalog: Catalog
    registry: Registry | None = None
    """Workers with code; None: there are plans, but no runs."""
    runs: RunConfig = field(default_factory=RunConfig)
    journal: Journal | None = None
    answerer: Answerer | None = None
    teacher: Planner | None = None
    agent: FallbackAgent | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    key: KeyConfig
    request_id: str
    begun: float
    """`time.monotonic` of the request's start."""


class Service:
    """One gateway's work; for one event loop."""

    def __init__(self, parts: Parts, config: GatewayConfig) -> None:
        self.config = config
        self.parts = parts
        self.keys = KeyRing(config.keys)
        self.rates = Rates(config.limits.rate_per_minute)
        self.places = Places(config.limits)
        self.readiness = Readiness(parts.planner, parts.catalog, config.ready)
        self.metrics = Metrics(
            waiting=lambda: self.places.waiting,
            under_way=lambda: self.places.under_way,
            computed=_computed(parts.planner),
        )
        self.ladder = Ladder(
            parts.planner,
            parts.catalog,
            config.ladder,
            teacher=parts.teacher,
            agent=parts.agent,
            told=self._attempted,
        )
        self.stopping = False
        self._orchestrators: dict[frozenset[str], Orchestrator] = {}
        self._recent = RecentRuns(config.limits.recent_runs, config.limits.recent_bytes)
        self._tasks: set[asyncio.Task[RunResponse]] = set()

    def deadline(self, caller: Caller, asked: float | None) -> float:
        """When a request must have ended, as `time.monotonic`."""
        limit = self.config.limits.deadline_s
        return caller.begun + (limit if asked is None else min(asked, limit))

    async def plan(self, query: str, caller: Caller, deadline_s: float | None = None) -> PlanResponse:
        """Plan a query.

        Raises:
            GatewayError: it was not taken on, its time was over, or no planner answered.

        """
        self._require(query, caller)
        deadline = self.deadline(caller, deadline_s)
        planned = await self._planned(query, deadline)
        draft = planned.draft
        self.metrics.plans.labels(planned.rung or "none").inc()
        self._require_answered(planned)
        return PlanResponse(
            request_id=caller.request_id,
            valid=draft is not None,
            plan=draft.check.plan.to_json() if draft is not None and draft.check.plan is not None else None,
            findings=planned.findings,
            rung=planned.rung,
            rungs=planned.attempts,
            prompt_tokens=sum(one.prompt_tokens for one in planned.attempts),
            completion_tokens=sum(one.completion_tokens for one in planned.attempts),
            seconds=time.monotonic() - caller.begun,
            catalog=self.parts.catalog.hash,
        )

    def start_run(self, query: str, plan: Json, caller: Caller, *, deadline_s: float | None, agent: bool) -> Running:
        """Begin a run; it goes on in a task of its own.

        Raises:
            GatewayError: it was not taken on.

        """
        if self.parts.registry is None:
            message = "this gateway has no workers, so it only plans; start it with --workers."
            raise GatewayError(ErrorCode.NOT_FOUND, message)
        if not query and plan is None:
            raise GatewayError(ErrorCode.BAD_REQUEST, "give 'query', or a 'plan' to run.")
        self._require(query, caller)
        running = Running(f"{caller.key.name}-{uuid.uuid4().hex}")
        deadline = self.deadline(caller, deadline_s)
        self._recent.keep(
            RunResponse(run_id=running.run_id, request_id=caller.request_id, query=query, status=RunState.RUNNING)
        )
        return self._begin(running, self._run(running, query, plan, caller, deadline, agent), query, caller)

    def start_resume(self, run_id: str, approve: Mapping[int, bool], caller: Caller) -> Running:
        """Go on with a run that waits for a person, or that a crash interrupted."""
        if self.parts.journal is None:
            raise GatewayError(ErrorCode.NOT_FOUND, "this gateway keeps no journal, so no run can be taken up again.")
        self._require_own(run_id, caller)
        self._require("", caller)
        running = Running(run_id)
        running.steps_begun = True
        return self._begin(running, self._resumed(running, approve, caller), "", caller)

    async def find_run(self, run_id: str, caller: Caller) -> RunResponse:
        """A run of this key, from memory or from the journal."""
        self._require_own(run_id, caller)
        found = self._recent.get(run_id)
        if found is not None:
            return found
        if self.parts.journal is not None:
            try:
                saved = await self.parts.journal.load(run_id)
            except InputError as error:
                raise _no_run(run_id) from error
            steps = tuple(
                StepOutcome.model_validate(step.outcome)
                for _, step in sorted(saved.steps.items())
                if step.outcome is not None
            )
            return of_saved(run_id, saved.query, saved.status, saved.plan, steps)
        raise _no_run(run_id)

    async def finish(self) -> int:
        """Wait for runs under way, at most the grace time; how many did not end and were cancelled."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.config.limits.grace_s)
        left = [task for task in self._tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=5)
        return len(left)

    def _begin(self, running: Running, work: Any, query: str, caller: Caller) -> Running:
        running.task = asyncio.create_task(work, name=running.run_id)
        self._tasks.add(running.task)

        def ended(task: asyncio.Task[RunResponse]) -> None:
            self._tasks.discard(task)
            if task.cancelled() or task.exception() is not None:
                gone = RunResponse(run_id=running.run_id, query=query, status=RunState.FAILED)
                reason = (
                    "the caller went away before a step had begun" if task.cancelled() else "it was not carried out"
                )
                self._recent.keep(gone.model_copy(update={"request_id": caller.request_id, "missing": (reason,)}))

        running.task.add_done_callback(ended)
        return running

    async def _run(
        self, running: Running, query: str, plan: Json, caller: Caller, deadline: float, agent: bool
    ) -> RunResponse:
        planned = Planned(draft=None, attempts=())
        async with Place(self.places, deadline):
            if plan is None:
                planned = await self.ladder.plan(
                    query, deadline=deadline, allow_agent=agent, on_event=running.tell_of_agent
                )
                self.metrics.plans.labels(planned.rung or "none").inc()
                for attempt in planned.attempts:
                    running.tell("attempt", attempt.model_dump(mode="json"))
                if planned.agent is not None:
                    return self._ended(self._of_agent(running, planned, query, caller))
                self._require_answered(planned)
                if planned.draft is None:
                    return self._ended(self._refused(running, planned, query, caller))
                assert planned.draft.check.plan is not None
                plan = planned.draft.check.plan.to_json()
                running.tell("plan", {"plan": plan})
            running.steps_begun = True
            orchestrator = self.orchestrator(caller.key)
            left = max(0.05, deadline - time.monotonic())
            result = await orchestrator.run(
                plan, query=query, run_id=running.run_id, deadline_s=left, on_event=running.tell_of_run
            )
        took = time.monotonic() - caller.begun
        return self._ended(of_result(result, caller.request_id, planned.attempts, took))

    async def _resumed(self, running: Running, approve: Mapping[int, bool], caller: Caller) -> RunResponse:
        deadline = self.deadline(caller, None)
        async with Place(self.places, deadline):
            try:
                result = await self.orchestrator(caller.key).resume(
                    running.run_id,
                    approve=approve,
                    deadline_s=max(0.05, deadline - time.monotonic()),
                    on_event=running.tell_of_run,
                )
            except InputError as error:
                raise GatewayError(ErrorCode.CONFLICT, str(error)) from error
        return self._ended(of_result(result, caller.request_id, (), time.monotonic() - caller.begun))

    def orchestrator(self, key: KeyConfig) -> Orchestrator:
        """That of a key's permissions."""
        parts = self.parts
        assert parts.registry is not None
        allowed = parts.runs.permissions | key.permissions
        found = self._orchestrators.get(allowed)
        if found is None:
            config = parts.runs.model_copy(update={"permissions": allowed})
            found = self._orchestrators[allowed] = Orchestrator(
                parts.registry, config, parts.journal, catalog=parts.catalog, answerer=parts.answerer
            )
        return found

    async def _planned(self, query: str, deadline: float) -> Planned:
        async with Place(self.places, deadline):
            return await self.ladder.plan(query, deadline=deadline)

    def _attempted(self, attempt: Attempt) -> None:
        self.metrics.attempt(attempt)
        if attempt.rung == "planner":
            if attempt.outcome is Outcome.FAILED:
                self.readiness.failed(attempt.message or "the planner failed")
            elif attempt.outcome is not Outcome.LATE:
                self.readiness.good()

    def _require(self, query: str, caller: Caller) -> None:
        if self.stopping:
            raise GatewayError(
                ErrorCode.STOPPING, "the gateway is being stopped; ask another one, or later.", retry_after=5
            )
        limit = self.config.limits.query_chars
        if len(query) > limit:
            raise GatewayError(
                ErrorCode.BAD_REQUEST, f"the query has {len(query)} characters, and the limit is {limit}; shorten it."
            )
        self.rates.take(caller.key.name)

    def _require_own(self, run_id: str, caller: Caller) -> None:
        if run_id.rpartition("-")[0] != caller.key.name:
            raise _no_run(run_id)

    def _require_answered(self, planned: Planned) -> None:
        """Raise where no plan came at all, for reasons that are not the query's."""
        if planned.rung is not None or any(one.outcome is Outcome.INVALID for one in planned.attempts):
            return
        rungs = [one.model_dump(mode="json") for one in planned.attempts]
        last = planned.attempts[-1]
        if last.outcome is Outcome.LATE:
            raise GatewayError(ErrorCode.DEADLINE, "the request's time was over before there was a plan.", rungs=rungs)
        raise GatewayError(ErrorCode.PLANNER_UNAVAILABLE, last.message or "no planner answered.", rungs=rungs)

    def _refused(self, running: Running, planned: Planned, query: str, caller: Caller) -> RunResponse:
        errors = [str(one["message"]) for one in planned.findings if one.get("severity") == "error"]
        return RunResponse(
            run_id=running.run_id,
            request_id=caller.request_id,
            query=query,
            status=RunState.REFUSED,
            findings=planned.findings,
            missing=tuple(errors) or ("there is no valid plan",),
            rungs=planned.attempts,
            seconds=time.monotonic() - caller.begun,
        )

    def _of_agent(self, running: Running, planned: Planned, query: str, caller: Caller) -> RunResponse:
        found = planned.agent
        return RunResponse(
            run_id=running.run_id,
            request_id=caller.request_id,
            query=query,
            status=RunState(found.status),
            findings=planned.findings,
            steps=tuple(call.outcome for call in found.calls),
            missing=found.answer.missing,
            answer=found.answer,
            rung=planned.rung,
            rungs=planned.attempts,
            seconds=time.monotonic() - caller.begun,
        )

    def _ended(self, response: RunResponse) -> RunResponse:
        self.metrics.runs.labels(response.status).inc()
        for step in response.steps:
            self.metrics.steps.labels(step.status).inc()
        self._recent.keep(response)
        return response


def _no_run(run_id: str) -> GatewayError:
    return GatewayError(ErrorCode.NOT_FOUND, f"there is no run {run_id[:80]!r} of this key, or it is too long ago.")


def _computed(planner: Planner) -> Callable[[], Computed] | None:
    """What asks a planner in this process for its counts; None where it has none, as one behind a URL."""
    return (lambda: planner.computed) if isinstance(planner, _Counting) else None


@runtime_checkable
class _Counting(Protocol):
    @property
    def computed(self) -> Computed: ...
