"""Makes the calls of a turn, at once, and writes what comes of them into the state.

Time limits, retries and circuit breakers are those of runs (`runs/calls.py`). An outcome becomes a `tool` message in
the order in which the model asked. A worker that keeps failing is taken off the tools. Calls that a crash interrupted
are made again only where that does no harm.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from plansmith.contract.catalog import Effect
from plansmith.contract.plan import Json, Step, dumps
from plansmith.serving.react.config import ReActConfig
from plansmith.serving.react.state import AgentState, MadeCall, PendingCall
from plansmith.serving.runs.breaker import Breaker
from plansmith.serving.runs.calls import Abandoned, Caller, is_repeatable, key_of
from plansmith.serving.runs.config import RunConfig
from plansmith.serving.runs.events import EventKind, StepOutcome, StepStatus
from plansmith.serving.runs.running import ApprovalRequest, Approve
from plansmith.serving.runs.secrecy import Secrets, holds_redacted
from plansmith.serving.workers.base import CallableWorker, CallFailure, CallInfo, FailureCode
from plansmith.serving.workers.registry import Registry

_CUT = " ... (cut)"
_NOT_THE_WORKER = frozenset({FailureCode.INVALID_ARGUMENT, FailureCode.NOT_FOUND, FailureCode.FORBIDDEN})
"""Failures that say something about the call; they take no worker off the tools."""


class Calling:
    """Makes calls for one run."""

    def __init__(
        self,
        registry: Registry,
        config: ReActConfig,
        breaker: Callable[[str], Breaker],
        approve: Approve | None,
        secrets: Secrets,
        tell: Callable[..., None],
        *,
        resumed: bool,
    ) -> None:
        """Take the parts; `resumed`: the first calls may have been sent by a process that is gone."""
        self._registry, self._config, self._breaker, self._approve = registry, config, breaker, approve
        self._secrets, self._tell, self._resumed = secrets, tell, resumed
        self._run = RunConfig(retries=config.retries, breaker=config.breaker)
        self._slots = asyncio.Semaphore(config.concurrency)
        self._sent: set[int] = set()
        self.abandoned = Abandoned()

    async def make(self, state: AgentState, stop: float) -> None:
        """Make the pending calls of a state; by `stop` all have an outcome."""
        calls = state.pending
        tasks = [asyncio.create_task(self._one(state.run_id, call, stop)) for call in calls]
        try:
            await asyncio.wait(tasks, timeout=max(0.0, stop - time.monotonic()) + 0.05)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=0.05)
        self._resumed = False
        for call, task in zip(calls, tasks, strict=True):
            outcome = task.result() if task.done() and not task.cancelled() else self._cut_off(call)
            self._note(state, call, outcome)
        state.pending = []

    async def _one(self, run_id: str, call: PendingCall, stop: float) -> StepOutcome:
        begun = time.monotonic()
        target = self._registry.get(call.worker)
        step = Step(type=call.worker, args=call.args)
        if target is None:
            return _failed(call, FailureCode.NOT_FOUND, f"{call.worker!r} is not registered any more.")
        if self._resumed and not is_repeatable(target.worker):
            reason = "it was under way when the process ended; nobody knows whether it took effect."
            return _outcome(call, StepStatus.OUTCOME_UNKNOWN, begun, reason=reason)
        if self._resumed and holds_redacted(call.args):
            message = "an argument holds a secret, which a saved state does not keep."
            return _failed(call, FailureCode.INVALID_ARGUMENT, message)
        self._secrets.learn_args(step, call.args)
        shown = self._secrets.args(step, call.args)
        refused = await self._refused(run_id, call, target, shown)
        if refused is not None:
            return refused
        async with self._slots:
            return await self._called(run_id, call, target, shown, stop, begun)

    async def _called(
        self,
        run_id: str,
        call: PendingCall,
        target: CallableWorker,
        shown: dict[str, Json],
        stop: float,
        begun: float,
    ) -> StepOutcome:
        values = shown if self._config.show_values else None
        self._tell(EventKind.STEP_STARTED, step=call.number, worker=call.worker, data=values)
        key = key_of(run_id, call.number, shown) if target.worker.effect is Effect.WRITE else None
        caller = Caller(target, self._run, self._breaker(call.worker), self.abandoned)
        self._sent.add(call.number)

        def retried(attempt: int, failure: CallFailure) -> None:
            failure = self._secrets.failure(failure)
            self._tell(EventKind.STEP_RETRIED, step=call.number, worker=call.worker, attempt=attempt, failure=failure)

        found = await caller.call(call.args, CallInfo(run_id, call.number, idempotency_key=key), stop, retried)
        if found.failure is None:
            return _outcome(call, StepStatus.DONE, begun, result=found.result, attempts=caller.attempts)
        failure = self._secrets.failure(found.failure)
        status = StepStatus.OUTCOME_UNKNOWN if found.in_doubt else StepStatus.FAILED
        return _outcome(call, status, begun, failure=failure, attempts=caller.attempts)

    async def _refused(
        self, run_id: str, call: PendingCall, target: CallableWorker, shown: dict[str, Json]
    ) -> StepOutcome | None:
        """How a call ends that a person did not agree to."""
        if not target.approval:
            return None
        if self._approve is None:
            message = f"{call.worker!r} needs a person's approval, and nobody is asked here."
            return _failed(call, FailureCode.FORBIDDEN, message)
        self._tell(EventKind.APPROVAL_NEEDED, step=call.number, worker=call.worker, data=shown)
        try:
            agreed = await self._approve(ApprovalRequest(run_id, call.number, call.worker, shown)) is True
        except Exception as error:
            message = f"asking for approval of {call.worker!r} failed ({type(error).__name__})."
            return _failed(call, FailureCode.FORBIDDEN, message)
        return None if agreed else _failed(call, FailureCode.FORBIDDEN, f"a person refused {call.worker!r}.")

    def _cut_off(self, call: PendingCall) -> StepOutcome:
        target = self._registry.get(call.worker)
        failure = CallFailure(code=FailureCode.TIMEOUT, message="the run's time was over.", retryable=True)
        unknown = call.number in self._sent and target is not None and not is_repeatable(target.worker)
        status = StepStatus.OUTCOME_UNKNOWN if unknown else StepStatus.FAILED
        return StepOutcome(step=call.number, worker=call.worker, status=status, failure=failure)

    def _note(self, state: AgentState, call: PendingCall, outcome: StepOutcome) -> None:
        """Outcome into history, record and counts."""
        content = self._observation(outcome)
        if len(content) > self._config.observation_chars:
            whole = len(content)
            content = f"{content[: self._config.observation_chars]}{_CUT} {whole} characters in all"
            state.cut += 1
        state.history.append({"role": "tool", "tool_call_id": call.id, "content": content})
        for id_ in call.same:
            same = f"(the same call as {call.id}, made once; its result is the same)"
            state.history.append({"role": "tool", "tool_call_id": id_, "content": same})
        shown = self._secrets.args(Step(type=call.worker, args=call.args), call.args)
        state.calls.append(MadeCall(turn=state.turns, worker=call.worker, args=shown, outcome=outcome))
        self._count(state, outcome)
        kind = EventKind.STEP_FINISHED if outcome.status is StepStatus.DONE else EventKind.STEP_FAILED
        self._tell(
            kind,
            step=call.number,
            worker=call.worker,
            status=outcome.status,
            failure=outcome.failure,
            message=outcome.reason,
            seconds=outcome.seconds,
            data=self._secrets.value(outcome.result) if self._config.show_values else None,
        )

    def _observation(self, outcome: StepOutcome) -> str:
        if outcome.status is StepStatus.DONE:
            return dumps(outcome.result)
        if outcome.failure is not None:
            told = outcome.failure.model_dump(mode="json")
        else:
            told = {"error": True, "code": "OUTCOME_UNKNOWN", "message": outcome.reason, "retryable": False}
        if outcome.status is StepStatus.OUTCOME_UNKNOWN:
            told["message"] = f"{told['message']} Whether it took effect is unknown; do not repeat it."
        return dumps(told)

    def _count(self, state: AgentState, outcome: StepOutcome) -> None:
        failure = outcome.failure
        if failure is None:
            state.failures.pop(outcome.worker, None)
        elif failure.code not in _NOT_THE_WORKER:
            state.failures[outcome.worker] = state.failures.get(outcome.worker, 0) + 1
            if state.failures[outcome.worker] >= self._config.worker_failures:
                state.removed[outcome.worker] = f"{failure.code}, {failure.message:.120}"


def _failed(call: PendingCall, code: FailureCode, message: str) -> StepOutcome:
    failure = CallFailure(code=code, message=message, retryable=False)
    return StepOutcome(step=call.number, worker=call.worker, status=StepStatus.FAILED, failure=failure)


def _outcome(
    call: PendingCall,
    status: StepStatus,
    begun: float,
    *,
    result: Json = None,
    failure: CallFailure | None = None,
    reason: str | None = None,
    attempts: int = 0,
) -> StepOutcome:
    return StepOutcome(
        step=call.number,
        worker=call.worker,
        status=status,
        result=result,
        failure=failure,
        reason=reason,
        attempts=attempts,
        seconds=time.monotonic() - begun,
    )
