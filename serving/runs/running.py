"""One run of a valid plan: every step starts when its own dependencies are done, and all have ended by the deadline.

Reads a plan and a registry; writes the journal, where there is one, and tells events. A write step's key is on disk
before it is sent, every result before its dependants start. Steps of which nobody knows the outcome are never repeated.
"""

from __future__ import annotations

import asyncio
import copy
import heapq
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from plansmith.contract.catalog import Effect
from plansmith.contract.compiled import CompiledWorker
from plansmith.contract.errors import PlansmithError
from plansmith.contract.execution import dependants, prepare_args
from plansmith.contract.plan import Json, Plan
from plansmith.serving.runs.breaker import Breaker
from plansmith.serving.runs.calls import Abandoned, Caller, is_repeatable, key_of
from plansmith.serving.runs.config import ApprovalMode, RunConfig
from plansmith.serving.runs.events import EventKind, StepOutcome, StepStatus
from plansmith.serving.runs.journal import Journal
from plansmith.serving.runs.secrecy import Secrets, holds_redacted
from plansmith.serving.runs.tracing import note, span
from plansmith.serving.runs.turns import Turns
from plansmith.serving.workers.base import CallableWorker, CallFailure, CallInfo, FailureCode
from plansmith.serving.workers.registry import Registry


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What a person is asked."""

    run_id: str
    step: int
    worker: str
    args: dict[str, Json]
    """Without secrets."""


Approve = Callable[[ApprovalRequest], Awaitable[bool]]
"""Asks a person; True lets the step run."""
Emit = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run needs besides its plan."""

    registry: Registry
    compiled: Mapping[str, CompiledWorker]
    config: RunConfig
    breaker: Callable[[str], Breaker]
    journal: Journal | None
    approve: Approve | None
    emit: Emit
    turns: Turns


class Run:
    """The steps of one run."""

    def __init__(self, run_id: str, plan: Plan, setting: Setting, secrets: Secrets) -> None:
        """Prepare it; `keep` and `decisions` may be set before `go`."""
        self.run_id = run_id
        self.plan = plan
        self.outcomes: dict[int, StepOutcome] = {}
        self.decisions: dict[int, bool] = {}
        """What a person said about steps, before the run or since it was interrupted."""
        self.abandoned = Abandoned()
        self._in = setting
        self._secrets = secrets
        self._resumed = False
        self._context: list[Json] = [None] * len(plan.steps)
        self._needs = plan.dependencies()
        self._users = dependants(plan)
        self._waits = [len(needed) for needed in self._needs]
        self._ready: list[int] = []
        self._tasks: dict[asyncio.Task[StepOutcome], int] = {}
        self._callers: dict[int, Caller] = {}
        self._keys: dict[int, str] = {}
        self._begun: dict[int, float] = {}
        self._deadline = 0.0

    def keep(self, outcomes: Mapping[int, StepOutcome]) -> None:
        """Take over how steps ended before the run was interrupted."""
        self._resumed = True
        self.outcomes.update(outcomes)

    async def go(self, deadline: float) -> tuple[StepOutcome, ...]:
        """Run to the end; by `deadline` (`time.monotonic`) every step has its outcome."""
        self._deadline = deadline
        grace = min(self._in.config.grace_s, max(0.0, deadline - time.monotonic()) / 10)
        self._ready = [index for index, waits in enumerate(self._waits) if waits == 0]
        heapq.heapify(self._ready)
        try:
            await self._until(deadline - grace)
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=grace)
        await self._give_up(deadline)
        return tuple(self.outcomes[index] for index in range(len(self.plan.steps)))

    async def _until(self, stop: float) -> None:
        while True:
            self._start_ready()
            left = stop - time.monotonic()
            if not self._tasks or left <= 0:
                return
            done, _ = await asyncio.wait(self._tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                del self._tasks[task]
                self._settle(task.result())

    def _start_ready(self) -> None:
        while self._ready and len(self._tasks) < self._in.config.concurrency:
            index = heapq.heappop(self._ready)
            kept = self.outcomes.get(index)
            if kept is not None:
                self._settle(kept, told=False)
                continue
            reason = self._blocked(index)
            if reason is not None:
                self._settle(self._outcome(index, StepStatus.SKIPPED, reason=reason))
                continue
            self._begun[index] = time.monotonic()
            self._tasks[asyncio.create_task(self._step(index), name=f"{self.run_id}/{index}")] = index

    def _blocked(self, index: int) -> str | None:
        """Why a step whose dependencies have ended cannot run."""
        for needed in sorted(self._needs[index]):
            found = self.outcomes[needed]
            if found.status is StepStatus.DONE:
                continue
            how = {
                StepStatus.FAILED: "failed",
                StepStatus.SKIPPED: "was skipped",
                StepStatus.OUTCOME_UNKNOWN: "has an unknown outcome",
                StepStatus.AWAITING_APPROVAL: "waits for approval",
            }[found.status]
            return f"it needs step {needed} ({found.worker!r}), which {how}."
        return None

    def _settle(self, outcome: StepOutcome, *, told: bool = True) -> None:
        index = outcome.step
        self.outcomes[index] = outcome
        if outcome.status is StepStatus.DONE:
            self._context[index] = outcome.result
            self._secrets.learn_result(index, outcome.result)
        for user in self._users[index]:
            self._waits[user] -= 1
            if self._waits[user] == 0:
                heapq.heappush(self._ready, user)
        if told:
            self._tell(outcome)

    def _tell(self, outcome: StepOutcome) -> None:
        kind = {StepStatus.DONE: EventKind.STEP_FINISHED, StepStatus.SKIPPED: EventKind.STEP_SKIPPED}.get(
            outcome.status, EventKind.STEP_FAILED
        )
        if outcome.status is StepStatus.AWAITING_APPROVAL:
            return
        shown = self._secrets.value(outcome.result) if self._in.config.show_values else None
        self._in.emit(
            kind,
            step=outcome.step,
            worker=outcome.worker,
            status=outcome.status,
            failure=outcome.failure,
            message=outcome.reason,
            seconds=outcome.seconds,
            data=shown,
        )

    async def _step(self, index: int) -> StepOutcome:
        await self._in.turns.take()
        step = self.plan.steps[index]
        with span("plansmith.step", {"plansmith.run": self.run_id, "plansmith.step": index, "worker": step.type}) as on:
            outcome = await self._prepared(index)
            note(on, "status", outcome.status)
            note(on, "attempts", outcome.attempts)
        return outcome

    async def _prepared(self, index: int) -> StepOutcome:
        step = self.plan.steps[index]
        target = self._in.registry.get(step.type)
        assert target is not None
        try:
            args = prepare_args(step, self._context, self._in.compiled.get(step.type))
        except PlansmithError as error:
            self._secrets.learn_args(step, step.args)
            return await self._record(index, self._refused(index, FailureCode.INVALID_ARGUMENT, str(error)))
        if self._resumed and holds_redacted(args):
            message = "an argument holds a secret, and the journal keeps none; resume the run with its plan."
            return await self._record(index, self._refused(index, FailureCode.INVALID_ARGUMENT, message))
        self._secrets.learn_args(step, args)
        shown = self._secrets.args(step, args)
        self._keys[index] = key_of(self.run_id, index, shown)
        stopped = await self._approval(index, target, shown)
        if stopped is not None:
            return await self._record(index, stopped)
        return await self._called(index, target, copy.deepcopy(args), shown)

    async def _called(
        self, index: int, target: CallableWorker, args: dict[str, Json], shown: dict[str, Json]
    ) -> StepOutcome:
        worker, key = target.worker, self._keys[index]
        writes = worker.effect is Effect.WRITE
        values = shown if self._in.config.show_values else None
        self._in.emit(EventKind.STEP_STARTED, step=index, worker=worker.name, data=values)
        if writes and self._in.journal is not None:
            await self._in.journal.dispatched(self.run_id, index, key)
        caller = Caller(target, self._in.config, self._in.breaker(worker.name), self.abandoned)
        self._callers[index] = caller

        def retried(attempt: int, failure: CallFailure) -> None:
            failure = self._secrets.failure(failure)
            self._in.emit(EventKind.STEP_RETRIED, step=index, worker=worker.name, attempt=attempt, failure=failure)

        info = CallInfo(self.run_id, index, idempotency_key=key if writes else None)
        found = await caller.call(args, info, self._deadline, retried)
        if found.failure is None:
            self._secrets.learn_result(index, found.result)
            return await self._record(index, self._outcome(index, StepStatus.DONE, result=found.result))
        status = StepStatus.OUTCOME_UNKNOWN if found.in_doubt else StepStatus.FAILED
        return await self._record(index, self._outcome(index, status, failure=found.failure))

    async def _approval(self, index: int, target: CallableWorker, shown: dict[str, Json]) -> StepOutcome | None:
        """How a step ends that may not run, or not yet; None lets it run."""
        mode = self._in.config.approval
        if not target.approval or mode is ApprovalMode.GRANT:
            return None
        name, said = target.worker.name, self.decisions.get(index)
        if mode is ApprovalMode.REFUSE:
            return self._refused(index, FailureCode.FORBIDDEN, f"{name!r} needs approval, and nobody is asked here.")
        if said is None:
            self._in.emit(EventKind.APPROVAL_NEEDED, step=index, worker=name, data=shown)
            if self._in.approve is None and self._in.journal is not None:
                reason = "a person must agree; resume the run with the answer."
                return self._outcome(index, StepStatus.AWAITING_APPROVAL, reason=reason)
            if self._in.approve is None:
                message = f"{name!r} needs approval, and there is neither a callback that asks nor a journal."
                return self._refused(index, FailureCode.FORBIDDEN, message)
            try:
                said = await self._in.approve(ApprovalRequest(self.run_id, index, name, shown)) is True
            except Exception as error:
                message = f"{name!r} needs approval, and asking for it failed ({type(error).__name__})."
                return self._refused(index, FailureCode.FORBIDDEN, message)
        return None if said else self._refused(index, FailureCode.FORBIDDEN, f"a person refused the call of {name!r}.")

    async def _record(self, index: int, outcome: StepOutcome) -> StepOutcome:
        """Put an outcome on disk; one that waits is worked out again on resume."""
        if self._in.journal is not None and outcome.status is not StepStatus.AWAITING_APPROVAL:
            shown: dict[str, Any] = outcome.model_dump(mode="json")
            shown["result"] = self._secrets.value(shown["result"])
            key = self._keys.get(index, "")
            await self._in.journal.ended(self.run_id, index, key, outcome.status, shown)
        return outcome

    async def _give_up(self, deadline: float) -> None:
        """Outcomes of what the deadline cut off."""
        cut = set(self._tasks.values())
        for task, index in list(self._tasks.items()):
            if task.done() and not task.cancelled() and task.exception() is None:
                cut.discard(index)
                self._settle(task.result())
        self._tasks.clear()
        ended = [self._cut(index) for index in sorted(cut)]
        for outcome in ended:
            self._settle(outcome)
        for index in range(len(self.plan.steps)):
            if index not in self.outcomes:
                reason = "the run's time was over before it could start."
                needed = [one for one in self._needs[index] if one in self.outcomes]
                blocked = self._blocked(index) if len(needed) == len(self._needs[index]) else None
                self._settle(self._outcome(index, StepStatus.SKIPPED, reason=blocked or reason))
        if self._in.journal is not None and ended:
            writes = [asyncio.ensure_future(self._record(outcome.step, outcome)) for outcome in ended]
            await asyncio.wait(writes, timeout=max(0.0, deadline - time.monotonic()))

    def _cut(self, index: int) -> StepOutcome:
        caller = self._callers.get(index)
        message = "the run's time was over."
        if caller is not None and caller.last is not None:
            message += f" Its last call had failed: {caller.last.code}, {caller.last.message}"
        failure = CallFailure(code=FailureCode.TIMEOUT, message=message, retryable=True)
        worker = self._in.registry.get(self.plan.steps[index].type)
        sent = caller is not None and caller.attempts > 0
        unknown = sent and worker is not None and not is_repeatable(worker.worker)
        return self._outcome(index, StepStatus.OUTCOME_UNKNOWN if unknown else StepStatus.FAILED, failure=failure)

    def _refused(self, index: int, code: FailureCode, message: str) -> StepOutcome:
        failure = CallFailure(code=code, message=message, retryable=False)
        return self._outcome(index, StepStatus.FAILED, failure=failure)

    def _outcome(
        self,
        index: int,
        status: StepStatus,
        *,
        result: Json = None,
        failure: CallFailure | None = None,
        reason: str | None = None,
    ) -> StepOutcome:
        caller, begun = self._callers.get(index), self._begun.get(index)
        return StepOutcome(
            step=index,
            worker=self.plan.steps[index].type,
            status=status,
            result=result,
            failure=self._secrets.failure(failure) if failure is not None else None,
            reason=reason,
            attempts=caller.attempts if caller is not None else 0,
            seconds=time.monotonic() - begun if begun is not None else 0.0,
        )
