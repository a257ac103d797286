"""The orchestrator: plans in, results out, within a deadline, nothing done twice.

Checks a plan first; one that is invalid, needs a permission that is missing or names a worker without code runs
nothing. Then `running.py` runs it. With a journal a run that a crash or a person's absence interrupted goes on with
`resume`. Logs go to the logger `plansmith.serving.runs`, one record an event; values are out of them unless asked for.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from plansmith.contract.catalog import Catalog
from plansmith.contract.check import check_plan
from plansmith.contract.compiled import compile_catalog
from plansmith.contract.errors import InputError
from plansmith.contract.plan import Json, Plan
from plansmith.serving.runs.answer import Answerer, TemplateAnswerer
from plansmith.serving.runs.breaker import Breaker
from plansmith.serving.runs.calls import is_repeatable
from plansmith.serving.runs.config import RunConfig
from plansmith.serving.runs.events import (
    EventKind,
    Refusal,
    RunEvent,
    RunResult,
    RunStatus,
    StepOutcome,
    StepStatus,
)
from plansmith.serving.runs.journal import DISPATCHED, RUNNING, Journal, SavedRun
from plansmith.serving.runs.running import Approve, Run, Setting
from plansmith.serving.runs.secrecy import Secrets, holds_redacted
from plansmith.serving.runs.tracing import note, span
from plansmith.serving.runs.turns import Turns
from plansmith.serving.workers.base import CallFailure, FailureCode
from plansmith.serving.workers.registry import Registry

LOG = logging.getLogger(__name__)
OnEvent = Callable[[RunEvent], None]


class Orchestrator:
    """Runs plans on the workers of a registry; for one event loop, and any number of runs at once."""

    def __init__(
        self,
        registry: Registry,
        config: RunConfig | None = None,
        journal: Journal | None = None,
        *,
        catalog: Catalog | None = None,
        approve: Approve | None = None,
        answerer: Answerer | None = None,
    ) -> None:
        """Take what all runs share.

        Args:
            registry: the workers with their code.
            config: limits, retries, permissions.
            journal: makes runs outlive the process; whoever opened it closes it.
            catalog: what planners may call, where that is more than the registry; its own catalog otherwise.
            approve: asks a person about calls of workers that need it.
            answerer: makes the answer of a run that has ended, complete or not; None: runs have none.

        """
        self.registry = registry
        self.config = config or RunConfig()
        self.journal = journal
        self.catalog = catalog or registry.catalog
        self._approve = approve
        self._answerer = answerer
        self._breakers: dict[str, Breaker] = {}
        self._turns = Turns()

    def breaker(self, worker: str) -> Breaker:
        """The circuit breaker of a worker."""
        found = self._breakers.get(worker)
        if found is None:
            found = self._breakers[worker] = Breaker(self.config.breaker)
        return found

    async def run(
        self,
        plan: Json,
        *,
        query: str = "",
        run_id: str | None = None,
        deadline_s: float | None = None,
        on_event: OnEvent | None = None,
    ) -> RunResult:
        """Run a plan, given as text, JSON or `Plan`; never raises for what plans and workers do.

        Raises:
            JournalError: the journal has a run of that id, or cannot be written.

        """
        begun = time.monotonic()
        await self._turns.take()
        name = run_id or uuid.uuid4().hex
        emit = self._emitter(name, on_event)
        with span("plansmith.run", {"plansmith.run": name}) as on:
            emit(EventKind.RUN_STARTED)
            checked = check_plan(
                plan.to_json() if isinstance(plan, Plan) else plan, self.catalog, max_steps=self.config.max_steps
            )
            findings = tuple(found.to_json() for found in checked.findings)
            refusals = self.refusals(checked.plan) if checked.plan is not None else ()
            result = RunResult(run_id=name, query=query, status=RunStatus.REFUSED, findings=findings, refusals=refusals)
            may_run = checked.plan is not None and not refusals
            told = [one.model_dump(mode="json") for one in refusals]
            emit(EventKind.PLAN_READY, status="ready" if may_run else "refused", data=[*_shown(findings), *told])
            if checked.plan is None or refusals:
                result = result.model_copy(update={"missing": _why_refused(result)})
            else:
                deadline = begun + (deadline_s or self.config.deadline_s)
                result = await self._go(result, checked.plan, self._stop(begun, deadline), emit)
                result = await self._answered(result, deadline, emit)
            result = result.model_copy(update={"seconds": time.monotonic() - begun})
            note(on, "status", result.status)
            emit(EventKind.RUN_FINISHED, status=result.status, seconds=result.seconds)
        return result

    async def resume(
        self,
        run_id: str,
        *,
        approve: Mapping[int, bool] | None = None,
        plan: Json = None,
        deadline_s: float | None = None,
        on_event: OnEvent | None = None,
    ) -> RunResult:
        """Go on with a run that was interrupted or waits for a person; one that has ended gives its result again.

        Args:
            run_id: of the run.
            approve: what a person said, by step.
            plan: the plan of the run, needed only where it holds secrets, which the journal does not keep.
            deadline_s: seconds from now; the config's otherwise.
            on_event: is told what happens.

        Raises:
            JournalError: no such run, or somebody else is running it.
            InputError: there is no journal, or the plan does not fit the run or today's workers.

        """
        if self.journal is None:
            raise InputError("this orchestrator has no journal; give it the one that holds the run.")
        begun = time.monotonic()
        await self.journal.claim(run_id)
        try:
            saved = await self.journal.load(run_id)
            plan_of = self._plan_of(saved, plan)
            emit = self._emitter(run_id, on_event)
            result = RunResult(run_id=run_id, query=saved.query, status=RunStatus.REFUSED)
            deadline = begun + (deadline_s or self.config.deadline_s)
            with span("plansmith.run", {"plansmith.run": run_id}) as on:
                emit(EventKind.RUN_STARTED, message="resumed")
                stop = self._stop(begun, deadline)
                result = await self._go(result, plan_of, stop, emit, saved=saved, decisions=approve)
                result = await self._answered(result, deadline, emit)
                result = result.model_copy(update={"seconds": time.monotonic() - begun})
                note(on, "status", result.status)
                emit(EventKind.RUN_FINISHED, status=result.status, seconds=result.seconds)
            return result
        finally:
            self.journal.release(run_id)

    async def stream(
        self, plan: Json, *, on_result: Callable[[RunResult], None] | None = None, **options: Any
    ) -> AsyncGenerator[RunEvent]:
        """Run a plan and give its events as they happen; closing the generator cancels the run.

        Args:
            plan: as `run` takes it.
            on_result: gets the result, before the generator ends.
            **options: as `run` takes them, without `on_event`.

        """
        events: asyncio.Queue[RunEvent | None] = asyncio.Queue()
        task = asyncio.create_task(self.run(plan, on_event=events.put_nowait, **options))
        task.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            result = await task
            if on_result is not None:
                on_result(result)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))

    def _stop(self, begun: float, deadline: float) -> float:
        """When the steps must have ended, so that there is time for an answer."""
        return deadline if self._answerer is None else deadline - self.config.answer_share * (deadline - begun)

    async def _answered(self, result: RunResult, deadline: float, emit: Callable[..., None]) -> RunResult:
        """The result with its answer; a list of the results where the answer does not come in time."""
        if self._answerer is None or result.status is RunStatus.AWAITING_APPROVAL:
            return result
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                answer = await self._answerer.answer(result)
        except TimeoutError:
            listed = await TemplateAnswerer().answer(result)
            told = {"for_person": True, "error": "no answer came before the run's time was over."}
            answer = listed.model_copy(update=told)
        if answer.confidence is not None and answer.confidence < self.config.min_confidence:
            answer = answer.model_copy(update={"for_person": True})
        emit(EventKind.ANSWER, status="for_person" if answer.for_person else "given")
        return result.model_copy(update={"answer": answer})

    async def _go(
        self,
        result: RunResult,
        plan: Plan,
        deadline: float,
        emit: Callable[..., None],
        *,
        saved: SavedRun | None = None,
        decisions: Mapping[int, bool] | None = None,
    ) -> RunResult:
        secrets = Secrets(plan, self.registry)
        setting = Setting(
            self.registry,
            compile_catalog(self.catalog),
            self.config,
            self.breaker,
            self.journal,
            self._approve,
            emit,
            self._turns,
        )
        run = Run(result.run_id, plan, setting, secrets)
        run.decisions.update(decisions or {})
        if saved is not None:
            kept = self._kept(plan, saved)
            if any(index not in kept and holds_redacted(step.args) for index, step in enumerate(plan.steps)):
                raise InputError(f"run {saved.run_id!r} holds secrets, which the journal does not keep; give its plan.")
            run.keep(kept)
        elif self.journal is not None:
            await self.journal.begin(result.run_id, self.catalog.hash, secrets.text(result.query), secrets.plan(plan))
        try:
            steps = await run.go(deadline)
            status = _status(steps)
            if self.journal is not None:
                finishing = asyncio.ensure_future(self.journal.finished(result.run_id, status))
                await asyncio.wait((finishing,), timeout=max(0.0, deadline - time.monotonic()))
        finally:
            if self.journal is not None:
                self.journal.release(result.run_id)
        told = {"status": status, "steps": steps, "plan": plan.to_json(), "abandoned": len(run.abandoned)}
        return result.model_copy(update={**told, "missing": _missing(steps)})

    def _kept(self, plan: Plan, saved: SavedRun) -> dict[int, StepOutcome]:
        """Outcomes that stand; a step that was sent and has none is repeated only where that does no harm."""
        kept: dict[int, StepOutcome] = {}
        needed = plan.dependencies()
        over = saved.status not in (RUNNING, RunStatus.AWAITING_APPROVAL)
        for index, step in enumerate(plan.steps):
            found = saved.steps.get(index)
            if found is None:
                needs = needed[index]
                if over and all(one in kept and kept[one].status is StepStatus.DONE for one in needs):
                    reason = "the run had ended without it."
                    kept[index] = StepOutcome(step=index, worker=step.type, status=StepStatus.SKIPPED, reason=reason)
            elif found.status != DISPATCHED:
                kept[index] = StepOutcome.model_validate(found.outcome)
            elif (target := self.registry.get(step.type)) is None or not is_repeatable(target.worker):
                reason = (
                    "it was sent, and the process ended before its result was recorded; look whether it took effect."
                )
                status = StepStatus.OUTCOME_UNKNOWN
                kept[index] = StepOutcome(step=index, worker=step.type, status=status, reason=reason, attempts=1)
        return kept

    def _plan_of(self, saved: SavedRun, given: Json) -> Plan:
        """The plan of a saved run, checked against today's workers."""
        plan = saved.plan if given is None else given.to_json() if isinstance(given, Plan) else given
        checked = check_plan(plan, self.catalog, max_steps=self.config.max_steps)
        if checked.plan is None:
            first = "; ".join(found.message for found in checked.findings[:3])
            raise InputError(f"the plan of run {saved.run_id!r} does not fit the workers given here: {first}")
        if given is not None and Secrets(checked.plan, self.registry).plan(checked.plan) != saved.plan:
            raise InputError(f"the plan given is not that of run {saved.run_id!r}.")
        refusals = self.refusals(checked.plan)
        if refusals:
            raise InputError(f"run {saved.run_id!r} cannot go on: " + "; ".join(r.failure.message for r in refusals))
        return checked.plan

    def refusals(self, plan: Plan) -> tuple[Refusal, ...]:
        """Why a valid plan would not be run; nothing runs."""
        found: list[Refusal] = []
        for index, step in enumerate(plan.steps):
            target = self.registry.get(step.type)
            needed = target.worker.permission if target is not None else None
            if target is None:
                code = FailureCode.NOT_FOUND
                message = (
                    f"{step.type!r} is in the catalog, but the registry {self.registry.name!r} has no code for it."
                )
            elif needed is not None and needed not in self.config.permissions:
                code = FailureCode.FORBIDDEN
                message = f"{step.type!r} needs the permission {needed!r}, which this run does not have."
            else:
                continue
            failure = CallFailure(code=code, message=message, retryable=False)
            found.append(Refusal(step=index, worker=step.type, failure=failure))
        return tuple(found)

    def _emitter(self, run_id: str, on_event: OnEvent | None) -> Callable[..., None]:
        def emit(kind: EventKind, **fields: Any) -> None:
            logged = LOG.isEnabledFor(logging.INFO)
            if on_event is None and not logged:
                return
            event = RunEvent(kind=kind, run_id=run_id, **fields)
            if logged:
                shown = event.model_dump(mode="json", exclude_none=True)
                if not self.config.show_values:
                    shown.pop("data", None)
                LOG.info("%s %s", kind.value, run_id, extra={"plansmith": shown})
            if on_event is not None:
                try:
                    on_event(event)
                except Exception as error:
                    LOG.warning("a listener of run %s raised %s at %s", run_id, type(error).__name__, kind.value)

        return emit


def _status(steps: tuple[StepOutcome, ...]) -> RunStatus:
    found = {one.status for one in steps}
    if StepStatus.AWAITING_APPROVAL in found:
        return RunStatus.AWAITING_APPROVAL
    if found <= {StepStatus.DONE}:
        return RunStatus.COMPLETE
    return RunStatus.PARTIAL if StepStatus.DONE in found else RunStatus.FAILED


def _missing(steps: tuple[StepOutcome, ...]) -> tuple[str, ...]:
    said: list[str] = []
    for one in steps:
        if one.status is not StepStatus.DONE:
            why = one.failure.message if one.failure is not None else one.reason or ""
            said.append(f"Step {one.step} ({one.worker}) has no result, {one.status.value.replace('_', ' ')}: {why}")
    return tuple(said)


def _shown(findings: tuple[dict[str, Json], ...]) -> list[dict[str, Json]]:
    """Findings without their words, which may quote arguments."""
    return [{key: value for key, value in one.items() if key != "message"} for one in findings]


def _why_refused(result: RunResult) -> tuple[str, ...]:
    errors = [str(one["message"]) for one in result.findings if one["severity"] == "error"]
    return (*errors, *(one.failure.message for one in result.refusals))
