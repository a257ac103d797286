"""One step of a run: its call with time limit, breaker, retries and journal, and what comes of it.

The call itself runs in a task of its own that the step waits for no longer than its limit: a worker that swallows its
cancellation is left behind and counted. Whatever a worker raises, subclasses of `BaseException` included, is a failure
of that step.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tenacity import AsyncRetrying, RetryCallState, stop_after_attempt, wait_exponential, wait_random

from plansmith.contract.catalog import Effect, Worker
from plansmith.contract.execution import not_json
from plansmith.contract.plan import Json, dumps
from plansmith.serving.runs.breaker import Breaker
from plansmith.serving.runs.config import RunConfig
from plansmith.serving.workers.base import CallableWorker, CallFailure, CallInfo, FailureCode, failure_of


class Outcome(NamedTuple):
    """How a call, or the last of several, ended."""

    result: Json = None
    failure: CallFailure | None = None
    in_doubt: bool = False
    """Whether it may have taken effect all the same."""
    again: bool = False
    """Whether another call may be made."""


def is_repeatable(worker: Worker) -> bool:
    """Whether a second call of the same step does no harm."""
    return worker.effect is not Effect.WRITE or worker.idempotent


def key_of(run_id: str, step: int, shown_args: dict[str, Json]) -> str:
    """The idempotency key of a step: the same for every try, also after a crash; holds nothing of a secret."""
    ordered = {name: shown_args[name] for name in sorted(shown_args)}
    return hashlib.sha256(dumps([run_id, step, ordered]).encode()).hexdigest()


class Abandoned:
    """Calls that did not end when they were cancelled."""

    def __init__(self) -> None:
        self._calls: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: asyncio.Task[Any]) -> None:
        """Keep one until it ends."""
        if not call.done():
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)


class Caller:
    """Calls one worker for one step."""

    def __init__(self, target: CallableWorker, config: RunConfig, breaker: Breaker, abandoned: Abandoned) -> None:
        self._target = target
        self._config = config
        self._breaker = breaker
        self._abandoned = abandoned
        self.attempts = 0
        self.last: CallFailure | None = None
        """Of the last call that failed."""

    async def call(
        self,
        args: dict[str, Json],
        info: CallInfo,
        deadline: float,
        before_retry: Callable[[int, CallFailure], None],
    ) -> Outcome:
        """Call until it succeeds, may not be called again, or was called often enough."""
        retries = self._config.retries

        def told(state: RetryCallState) -> None:
            outcome = _outcome_of(state)
            if outcome.failure is not None:
                before_retry(state.attempt_number, outcome.failure)

        retrying = AsyncRetrying(
            stop=stop_after_attempt(retries.max_attempts),
            wait=wait_exponential(multiplier=retries.initial_s, max=retries.max_s) + wait_random(0, retries.jitter_s),
            retry=lambda state: _outcome_of(state).again,
            retry_error_callback=_outcome_of,
            before_sleep=told,
            sleep=asyncio.sleep,
        )
        return await retrying(self._once, args, info, deadline)

    async def _once(self, args: dict[str, Json], info: CallInfo, deadline: float) -> Outcome:
        refusal = self._breaker.refusal()
        if refusal is not None:
            return Outcome(failure=refusal)
        self.attempts += 1
        worker = self._target.worker
        left = deadline - time.monotonic()
        limit = max(0.0, min(worker.timeout_s, left))
        told = CallInfo(info.run_id, info.step, self.attempts, info.idempotency_key, limit)
        call = asyncio.ensure_future(_guarded(self._target, args, told))
        try:
            await asyncio.wait((call,), timeout=limit)
        finally:
            if not call.done():
                call.cancel()
                self._abandoned.add(call)
                self._breaker.given_up()
        if not call.done():
            await asyncio.sleep(0)
            message = f"{worker.name!r} gave nothing within {limit:.3g} s."
            outcome = self._failed(CallFailure(code=FailureCode.TIMEOUT, message=message, retryable=True))
            if left > worker.timeout_s:
                self._breaker.ended(outcome.failure)
            return outcome
        result, error = call.result()
        outcome = self._read(result) if error is None else self._failed(_failure(error))
        self._breaker.ended(outcome.failure)
        return outcome

    def _read(self, result: Json) -> Outcome:
        """A result, where it is JSON and not too large."""
        name, limit = self._target.worker.name, self._config.max_result_bytes
        wrong = not_json(result)
        if wrong is not None:
            message = f"{name!r} gave {wrong}; expected JSON."
        elif (size := len(dumps(result).encode())) > limit:
            message = f"{name!r} gave {size} bytes of JSON; the limit is {limit}. Ask it for less, or raise the limit."
        else:
            return Outcome(json.loads(dumps(result)))
        failure = CallFailure(code=FailureCode.INVALID_RESULT, message=message, retryable=False)
        return self._failed(failure)

    def _failed(self, failure: CallFailure) -> Outcome:
        self.last = failure
        repeatable = is_repeatable(self._target.worker)
        in_doubt = failure.code in (FailureCode.TIMEOUT, FailureCode.NETWORK, FailureCode.INTERNAL)
        return Outcome(None, failure, in_doubt and not repeatable, failure.retryable and repeatable)


def _failure(error: BaseException) -> CallFailure:
    if isinstance(error, asyncio.CancelledError):
        return CallFailure(code=FailureCode.CANCELLED, message="the worker cancelled itself.", retryable=False)
    return failure_of(error)


def _outcome_of(state: RetryCallState) -> Outcome:
    assert state.outcome is not None
    outcome: Outcome = state.outcome.result()
    return outcome


async def _guarded(target: CallableWorker, args: dict[str, Json], info: CallInfo) -> tuple[Json, BaseException | None]:
    """A call that never raises, since some subclasses of `BaseException` would end the event loop."""
    try:
        return await target.call(args, info), None
    except BaseException as error:
        return None, error
